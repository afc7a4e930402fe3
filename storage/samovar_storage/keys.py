"""Every Redis key and channel: type, lifetime, and the one process that writes it.

| key                       | type   | lifetime          | written by        | holds
|---------------------------|--------|-------------------|-------------------|-------------------------------------------
| sv:registry:built         | string | none              | registry rebuild  | "1" once the index below mirrors object storage
| sv:registry:dirty         | set    | none              | gateway (deploy)  | names whose index entry may be behind object storage
| sv:lock:{name}            | string | 10 s … 600 s      | gateway           | registry, function:<name>, request-log, job-upload:<id>: one writer at a time
| sv:functions              | hash   | none              | gateway (deploy)  | name → FunctionRecord (JSON)
| sv:apikeys                | hash   | none              | gateway (keys)    | key id → ApiKeyRecord (JSON, hash of the secret only)
| sv:upload:{sha256}        | string | 24 h              | gateway (upload)  | multipart upload in progress (JSON): id and size
| sv:instances              | hash   | none              | pool manager      | instance id → InstanceRecord (JSON)
| sv:boot:{ref}             | string | back-off + 5 s    | pool manager      | BootFailure (JSON) of the last failed boot
| sv:status:{ref}           | string | 10 s              | pool manager      | VersionStatus (JSON): desired, ready, starting
| sv:node:{node}            | string | 10 s              | pool manager      | NodeStatus (JSON): blanks, memory, devices
| sv:decisions:{name}       | list   | newest 100        | pool manager      | Decision (JSON), newest first
| sv:logs:{name}            | stream | newest ~10,000    | pool manager      | {line: LogLine (JSON)}
| sv:warm:{ref}             | string | as asked          | gateway (warm)    | WarmRequest (JSON): instances to keep ready until then
| sv:manager:lease          | string | 15 s, renewed     | pool manager      | fencing token of the leader
| sv:manager:fence          | int    | none              | pool manager      | last fencing token given out
| sv:demand:{gateway}       | hash   | 3 s, renewed      | that gateway      | ref → Demand (JSON): queued, running
| sv:traffic:{ref}          | stream | 1 h, renewed      | each gateway      | {slice: TrafficSlice (JSON)}, one a second with traffic
| sv:trial:{name}           | string | 30 s, renewed     | pool manager      | TrialReport (JSON): the verdict on the canary so far
| sv:mirror:{ref}           | hash   | 24 h, renewed     | each gateway      | counts of compared answers, by outcome and by differing path
| sv:requests:{name}        | stream | 10 min, capped    | each gateway      | {f: frame of the request log (msgpack), n: its records}
| sv:requests-size:{name}   | hash   | as the stream     | each gateway      | bytes and records the stream holds
| sv:answer:{id}            | string | as the function   | each gateway      | Answer (msgpack) to keep for fallback or cache; id = name:hash
| sv:answers                | zset   | by script, capped | each gateway      | id of every kept answer by expiry (unix ms)
| sv:answers-of:{name}      | zset   | by script, capped | each gateway      | the same, of one function
| sv:answers:sizes          | hash   | by script, capped | each gateway      | id → bytes
| sv:answers:totals         | hash   | by script, capped | each gateway      | function → bytes of its answers, "" → of all
| sv:breaker:{ref}          | string | as it holds + 5 s | each gateway      | BreakerNews (JSON): the last word while not closed
| sv:gateways               | zset   | pruned at 10 s    | each gateway      | gateway id by last heartbeat (unix s)
| sv:rate:{limit}           | string | until it is unused| each gateway      | a rate limit's TAT (unix s); limit = key:function, either may be empty
| sv:apikeys:edition        | string | none              | gateway (keys)    | a random mark, another one after each change of a key
| sv:apikeys:used           | hash   | none              | each gateway      | key id → when it was last used (unix s)
| rq:job:{id}               | hash   | until it expires  | gateway, workers  | a job: RQ's fields, and ours by `sv_`; docs/jobs.md has them all
| rq:queues                 | set    | none              | gateway, workers  | keys of all queues; a queue's name is `sv:function:key id[:low]`
| rq:queue:{queue}          | list   | none              | gateway, workers  | ids of the jobs that wait, oldest first
| rq:wip:{queue}            | zset   | none              | workers           | jobs that run; rq:scheduled, rq:deferred, rq:finished, rq:failed, rq:canceled likewise
| sv:jobs:of:{owner}        | zset   | none              | gateway, workers  | ids of all jobs of an owner (function:key id), in order of creation
| sv:jobs:waiting           | set    | none              | gateway, workers  | queues that are not empty
| sv:jobs:workers           | hash   | none              | workers           | worker id → its count of beats
| sv:jobs:worker:{worker}   | string | 5 s, renewed      | that worker       | WorkerStatus (JSON): what it runs, and leaves alone
| sv:jobs:takes:{worker}    | hash   | until it is gone  | workers           | queue → number of the worker's last take from it; `alive`
| sv:jobs:seq               | hash   | none              | gateway, workers  | queue → number of the last job that entered it
| sv:jobs:unique:{name}     | string | until it ended    | gateway, workers  | id of the unfinished job that has it; name = function:key id:text
| sv:jobs:group:{id}        | hash   | as its jobs       | gateway, workers  | a group: owner, number of jobs, counts by state, its reducing job
| sv:jobs:group:{id}:jobs   | list   | as its jobs       | gateway           | ids of the jobs of a group, in the order of its inputs
| sv:jobs:dead:{owner}      | zset   | none              | workers           | ids of an owner's quarantined jobs by expiry (unix s)
| sv:jobs:counts            | hash   | none              | gateway, workers  | accepted, finished, failed, canceled, quarantined, late, reaped, expired, webhooks_…: how many ever
| sv:jobs:running           | hash   | none              | workers           | function → its jobs that are started
| sv:jobs:due               | zset   | none              | gateway, workers  | queue → when to look at its scheduled jobs next (unix s)
| sv:jobs:bytes             | hash   | none              | workers           | key id → bytes of its ended jobs
| sv:jobs:ended             | hash   | none              | workers           | key id → number of its ended jobs
| sv:jobs:objects           | zset   | none              | gateway, workers  | ids of jobs with objects by when to delete them (unix s)
| sv:jobs:unresolved        | list   | none              | gateway, workers  | jobs that ended, whose dependents the next step of promote goes on with
| sv:jobs:barrier           | string | none              | gateway           | written to learn that all before is on the disk
| sv:jobs:uploads           | zset   | none              | gateway           | object keys of uploads of JSON lines by when they are deleted (unix s)
| sv:jobs:expanding         | hash   | none              | gateway           | upload → Expansion (JSON): lines that are being turned into jobs
| sv:job-events:{id}        | stream | 10 min after end  | workers           | {e: JobEvent (JSON, without id)}: progress, log lines, output, retries
| sv:idempotency:{key}      | hash   | 24 h              | gateway           | print, owner, seed, made_ms, answer (msgpack) of an Idempotency-Key; key = key id:route:function:hash
| sv:idempotency-bytes:{key}    | hash | 24 h, renewed   | gateway           | hour → bytes of what is kept of an API key's answers
| sv:idempotency-owners     | hash   | none              | each gateway      | gateway process → its count of beats, while it holds such keys
| sv:webhook:{event}        | hash   | 7 d after dead    | gateway, workers  | an event to be told, `job.state`; with all keys of webhooks in jobs/webhook_scripts.py
| sv:webhooks:due           | zset   | none              | gateway, workers  | lane (key and host) → when something of it may be sent next; sv:webhooks:{of,leased,lane}:{lane}
| sv:webhooks:endpoint:{id} | hash   | 7 d, renewed      | workers           | an endpoint that fails: since when, why, whether it is disabled
| sv:webhooks:ends:{key}    | set    | none              | workers           | the endpoints of an API key that fail
| sv:webhooks:open:{key}    | zset   | none, capped      | gateway, workers  | events not delivered
| sv:webhooks:dead:{key}    | zset   | none, capped      | workers           | events given up, kept for a week
| sv:webhooks:dropped       | hash   | none              | gateway, workers  | key id → events not noted, too many being open
| sv:crons                  | hash   | none              | gateway           | name → CronJob (JSON)
| sv:crons:built            | string | none              | workers, gateway  | "1" once sv:crons mirrors object storage
| sv:cron:{name}            | hash   | none              | gateway, workers  | of a cron job: last_s, last_job, notice

| channel                   | published by      | payload
|---------------------------|-------------------|------------------------------------------------------------
| sv:ch:wake                | gateway           | ref whose demand went from zero to non-zero
| sv:ch:functions           | gateway           | name whose FunctionRecord changed, "" = the index was built
| sv:ch:apikeys             | gateway           | key id that changed
| sv:ch:instances           | pool manager      | InstanceRecord (JSON) that changed; state "gone" = removed
| sv:ch:boot                | pool manager      | BootFailure (JSON): the invocations waiting on it must fail now
| sv:ch:unwell              | gateway           | Unwell (JSON): this instance fails its checks or says nothing, replace it
| sv:ch:breakers            | gateway           | BreakerNews (JSON): its breaker of a version moved
| sv:ch:jobs                | gateway, workers  | name of a queue that a job can be taken from
| sv:ch:jobs:cancel         | gateway           | id of a running job that is to stop
| sv:ch:job:{id}            | gateway, workers  | JobEvent (JSON) of that job
| sv:ch:idempotency:{key}   | gateway           | {"kind": "answered" or "released"}: who waits for the first answer may look
| sv:ch:job-watch           | nobody            | a gateway that is subscribed to it knows that its connection for news is up
| sv:ch:webhooks            | gateway, workers  | lane that has an event to send
| sv:ch:crons               | gateway           | name of a cron job that changed
| sv:ch:stream:{gateway}    | each gateway      | letter (msgpack) to that gateway about a resumable stream; docs/streaming.md
"""

# ruff: noqa: E501 - one table row per key
from __future__ import annotations

REGISTRY_BUILT = "sv:registry:built"
REGISTRY_DIRTY = "sv:registry:dirty"
FUNCTIONS = "sv:functions"
API_KEYS = "sv:apikeys"
API_KEYS_EDITION = "sv:apikeys:edition"
API_KEYS_USED = "sv:apikeys:used"
INSTANCES = "sv:instances"
MANAGER_LEASE = "sv:manager:lease"
MANAGER_FENCE = "sv:manager:fence"
GATEWAYS = "sv:gateways"
ANSWERS = "sv:answers"
ANSWER_SIZES = "sv:answers:sizes"
ANSWER_TOTALS = "sv:answers:totals"
JOBS_WAITING = "sv:jobs:waiting"
JOBS_WORKERS = "sv:jobs:workers"
JOBS_COUNTS = "sv:jobs:counts"
JOBS_BYTES = "sv:jobs:bytes"
JOBS_ENDED = "sv:jobs:ended"
JOBS_OBJECTS = "sv:jobs:objects"
JOBS_UNRESOLVED = "sv:jobs:unresolved"
JOBS_RUNNING = "sv:jobs:running"
JOBS_DUE = "sv:jobs:due"
JOBS_SEQ = "sv:jobs:seq"
JOBS_BARRIER = "sv:jobs:barrier"
JOBS_UPLOADS = "sv:jobs:uploads"
JOBS_EXPANDING = "sv:jobs:expanding"
IDEMPOTENCY_OWNERS = "sv:idempotency-owners"
WEBHOOKS_DUE = "sv:webhooks:due"
WEBHOOKS_DROPPED = "sv:webhooks:dropped"
CRONS = "sv:crons"
CRONS_BUILT = "sv:crons:built"

CHANNEL_WAKE = "sv:ch:wake"
CHANNEL_FUNCTIONS = "sv:ch:functions"
ALL_FUNCTIONS = ""
CHANNEL_API_KEYS = "sv:ch:apikeys"
CHANNEL_INSTANCES = "sv:ch:instances"
CHANNEL_BOOT = "sv:ch:boot"
CHANNEL_UNWELL = "sv:ch:unwell"
CHANNEL_BREAKERS = "sv:ch:breakers"
CHANNEL_JOBS = "sv:ch:jobs"
CHANNEL_JOBS_CANCEL = "sv:ch:jobs:cancel"
CHANNEL_JOB_WATCH = "sv:ch:job-watch"
CHANNEL_WEBHOOKS = "sv:ch:webhooks"
CHANNEL_CRONS = "sv:ch:crons"

UPLOAD_LIFETIME_S = 24 * 3600
STATUS_LIFETIME_S = 10
WORKER_LIFETIME_S = 5
LEASE_LIFETIME_S = 15  # a manager on a busy core renews late; its successor on the same node does not wait for it
DEMAND_LIFETIME_S = 3
TRAFFIC_LIFETIME_S = 3600
TRIAL_LIFETIME_S = 30
MIRROR_LIFETIME_S = 24 * 3600
LIVE_REQUESTS_LIFETIME_S = 600
GATEWAY_LIFETIME_S = 10
MAX_DECISIONS = 100
MAX_LOG_LINES = 10_000
MAX_LIVE_REQUESTS = 20_000
MAX_TRAFFIC_SLICES = 10_000  # an hour of three gateways


def lock(name: str) -> str:
    """Return the key of a lock: `registry`, `request-log`, `function:<name>` or `job-upload:<id>`."""
    return f"sv:lock:{name}"


def upload(sha256: str) -> str:
    """Return the key of the multipart upload in progress for a blob."""
    return f"sv:upload:{sha256}"


def boot(ref: str) -> str:
    """Return the key of a version's last boot failure."""
    return f"sv:boot:{ref}"


def status(ref: str) -> str:
    """Return the key of a version's status."""
    return f"sv:status:{ref}"


def node(node_id: str) -> str:
    """Return the key of a node's status."""
    return f"sv:node:{node_id}"


def decisions(name: str) -> str:
    """Return the key of a function's recent scaling decisions."""
    return f"sv:decisions:{name}"


def logs(name: str) -> str:
    """Return the key of a function's log stream."""
    return f"sv:logs:{name}"


def warm(ref: str) -> str:
    """Return the key of a version's warm request."""
    return f"sv:warm:{ref}"


def demand(gateway_id: str) -> str:
    """Return the key of one gateway's demand."""
    return f"sv:demand:{gateway_id}"


def breaker(ref: str) -> str:
    """Return the key of what gateways last said of a version's circuit breaker."""
    return f"sv:breaker:{ref}"


def traffic(ref: str) -> str:
    """Return the key of a version's traffic slices."""
    return f"sv:traffic:{ref}"


def trial(name: str) -> str:
    """Return the key of the report on a function's canary."""
    return f"sv:trial:{name}"


def mirror(ref: str) -> str:
    """Return the key of how a mirror's answers compare."""
    return f"sv:mirror:{ref}"


def requests(name: str) -> str:
    """Return the key of a function's newest request records."""
    return f"sv:requests:{name}"


def requests_size(name: str) -> str:
    """Return the key of what a function's newest request records take up."""
    return f"sv:requests-size:{name}"


def answer(answer_id: str) -> str:
    """Return the key of a kept answer, `function:hash`."""
    return f"sv:answer:{answer_id}"


def answers_of(name: str) -> str:
    """Return the key of the expiries of a function's kept answers."""
    return f"sv:answers-of:{name}"


def rate(limit: str) -> str:
    """Return the key of a rate limit, `key id:function`, either of which may be empty."""
    return f"sv:rate:{limit}"


def jobs_of(owner: str) -> str:
    """Return the key of the ids of all jobs of an owner, `function:key id`."""
    return f"sv:jobs:of:{owner}"


def jobs_dead(owner: str) -> str:
    """Return the key of the ids of the quarantined jobs of an owner, `function:key id`."""
    return f"sv:jobs:dead:{owner}"


def jobs_unique(name: str) -> str:
    """Return the key of the unfinished job that has a `unique`; name: `function:key id:text`."""
    return f"sv:jobs:unique:{name}"


def jobs_worker(worker: str) -> str:
    """Return the key of what a worker says of itself."""
    return f"sv:jobs:worker:{worker}"


def jobs_takes(worker: str) -> str:
    """Return the key of the numbers of a worker's last takes."""
    return f"sv:jobs:takes:{worker}"


def jobs_group(group_id: str) -> str:
    """Return the key of what is known of a group."""
    return f"sv:jobs:group:{group_id}"


def jobs_in_group(group_id: str) -> str:
    """Return the key of the ids of the jobs of a group, in the order of its inputs."""
    return f"sv:jobs:group:{group_id}:jobs"


def job_events(job_id: str) -> str:
    """Return the key of what happened to a job."""
    return f"sv:job-events:{job_id}"


def job_channel(job_id: str) -> str:
    """Return the channel on which it is told what happens to a job."""
    return f"sv:ch:job:{job_id}"


def idempotency(key: str) -> str:
    """Return the key of the first answer to a request that named an Idempotency-Key."""
    return f"sv:idempotency:{key}"


def webhook(event_id: str) -> str:
    """Return the key of an event that a webhook is to be told of."""
    return f"sv:webhook:{event_id}"


def webhooks_open(key_id: str) -> str:
    """Return the key of the events of an API key that are not delivered."""
    return f"sv:webhooks:open:{key_id}"


def webhooks_dead(key_id: str) -> str:
    """Return the key of the events of an API key that were given up."""
    return f"sv:webhooks:dead:{key_id}"


def webhooks_ends(key_id: str) -> str:
    """Return the key of the names of an API key's endpoints that fail."""
    return f"sv:webhooks:ends:{key_id}"


def webhooks_endpoint(name: str) -> str:
    """Return the key of how an endpoint fails."""
    return f"sv:webhooks:endpoint:{name}"


def cron(name: str) -> str:
    """Return the key of when a cron job last ran."""
    return f"sv:cron:{name}"


def idempotency_bytes(key_id: str) -> str:
    """Return the key of what is kept of an API key's answers, in bytes by hour."""
    return f"sv:idempotency-bytes:{key_id}"


def idempotency_channel(key: str) -> str:
    """Return the channel on which it is told that a request with an Idempotency-Key has its answer."""
    return f"sv:ch:idempotency:{key}"


def stream_channel(gateway: str) -> str:
    """Return the channel on which a gateway hears of resumable streams; gateway: as in the ids of their events."""
    return f"sv:ch:stream:{gateway}"
