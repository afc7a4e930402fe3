"""Jobs over the real server: accepted, taken, settled, given back, returned from the dead."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
import redis as redis_sync
import redis.asyncio as redis_async

from samovar.errors import InvalidInput, JobEnded, JobNotFound, NotFound, NotUnique, StoreUnavailable
from samovar.jobs import MAX_INLINE_BYTES, JobState, Progress, Webhook
from samovar_storage import keys
from samovar_storage.jobs import inputs, scripts
from samovar_storage.jobs.layout import job_key
from samovar_storage.jobs.records import Backlog, JobSpec, Settlement
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.objects import ObjectStore
from support.new_jobs import AGAIN, BACK, FAILED, FINISHED, QUARANTINED, QUEUE, new_job, run_all

LARGE = b"x" * (MAX_INLINE_BYTES + 1)


async def test_a_job_is_accepted_taken_and_finished(jobs: RedisJobs) -> None:
    new = new_job(retries=3, tags={"a": "b"}, retry_on=["ValueError"])
    assert await jobs.submit([new]) == [new.id]
    assert await jobs.waiting() == {QUEUE: 1}
    assert await jobs.backlog() == {"embed": Backlog(normal=1)}
    queued = await jobs.get(new.id)
    assert (queued.state, queued.spec.tags, queued.input_bytes) == ("queued", {"a": "b"}, 7)
    assert await jobs.beat("w1")
    (taken,) = await jobs.take(QUEUE, "w1", 5)
    assert (taken.id, taken.input, taken.token, taken.attempt) == (new.id, b'{"a":1}', 1, 1)
    assert taken.spec == queued.spec
    assert await jobs.waiting() == {}
    started = await jobs.get(new.id)
    assert (started.state, started.worker, started.token) == ("started", "w1", 1)
    assert await jobs.settle("w1", taken, FINISHED)
    record = await jobs.get(new.id)
    assert (record.state, record.result, record.version) == ("finished", b'"yes"', 3)
    assert record.started_at_s <= record.ended_at_s < record.expires_at_s
    assert await jobs.settle("w1", taken, msgspec.structs.replace(FINISHED, result=b"2")), (
        "its answer was lost, it may think"
    )
    assert not await jobs.settle("w1", taken, FAILED), "terminal is final"
    assert (await jobs.get(new.id)).result == b'"yes"'
    assert await jobs.counts() == {"accepted": 1, "finished": 1, "late": 1}


async def test_all_of_a_spec_is_kept(jobs: RedisJobs) -> None:
    parent = new_job()
    spec: dict[str, Any] = {
        "content_type": "image/png",
        "retries": 5,
        "backoff_s": 0.5,
        "max_backoff_s": 7.0,
        "retry_on": ["E"],
        "give_up_on": ["F"],
        "timeout_s": 1.5,
        "deadline_at_s": time.time() + 100.25,
        "max_crashes": 9,
        "result_ttl_s": 12.5,
        "unique": "a:b é",
        "lane": "low",
        "depends_on": [parent.id],
        "allow_failed": True,
        "webhook": Webhook(url="https://example.org/hook"),
        "tags": {"a": "ü"},
        "group": "a" * 24,
        "index": 7,
        "cron": "nightly",
        "retry_of": parent.id,
    }
    assert {*spec, "function", "key_id", "created_at_s", "reduce_of"} == {*JobSpec.__struct_fields__}
    new = new_job(**spec)
    await jobs.submit([parent, new])
    stored = (await jobs.get(new.id)).spec
    for name in JobSpec.__struct_fields__:
        assert getattr(stored, name) == (
            pytest.approx(new.spec.created_at_s, abs=1e-5) if name == "created_at_s" else getattr(new.spec, name)
        )


async def test_submitting_twice_is_accepting_once(jobs: RedisJobs) -> None:
    first, second = new_job(), new_job()
    await jobs.submit([first])
    assert await jobs.submit([first, second]) == [first.id, second.id]
    assert await jobs.waiting() == {QUEUE: 2}
    assert len(await run_all(jobs)) == 2
    await jobs.submit([first])
    assert (await jobs.get(first.id)).state == "finished"


async def test_a_late_answer_changes_nothing(jobs: RedisJobs) -> None:
    new = new_job()
    await jobs.submit([new])
    await jobs.beat("w1")
    (lost,) = await jobs.take(QUEUE, "w1", 1)
    assert await jobs.reap("w1", 0) == [], "it has beaten since"
    assert await jobs.reap("w1", (await jobs.beats())["w1"]) == [new.id]
    assert not await jobs.beat("w1"), "it was reaped"
    assert await jobs.take(QUEUE, "w1", 1) == [], "and is given nothing"
    await jobs.beat("w2")
    (taken,) = await jobs.take(QUEUE, "w2", 1)
    assert (taken.token, taken.attempt) == (2, 2)
    assert not await jobs.settle("w1", lost, FINISHED)
    await jobs.progress("w1", lost, Progress(fraction=0.9))
    assert (await jobs.get(new.id)).progress is None
    await jobs.progress("w2", taken, Progress(fraction=0.5, message="half"))
    assert (await jobs.get(new.id)).progress == Progress(fraction=0.5, message="half")
    assert await jobs.settle("w2", taken, AGAIN)
    (again,) = await jobs.take(QUEUE, "w2", 1)
    assert (await jobs.get(new.id)).progress is None, "that was another attempt's"
    assert await jobs.settle("w2", again, FINISHED)


async def test_the_jobs_of_a_worker_that_leaves_are_first_again(jobs: RedisJobs) -> None:
    new = [new_job() for _ in range(4)]
    await jobs.submit(new)
    await jobs.beat("w")
    assert [job.id for job in await jobs.take(QUEUE, "w", 3)] == [job.id for job in new[:3]]
    await jobs.leave("w")
    assert await jobs.beats() == {}
    await jobs.beat("v")
    assert [job.id for job in await jobs.take(QUEUE, "v", 9)] == [job.id for job in new]
    assert (await jobs.counts())["reaped"] == 3


async def test_what_is_given_back_was_not_tried(jobs: RedisJobs) -> None:
    first, second = new_job(), new_job()
    await jobs.submit([first, second])
    await jobs.beat("w")
    (taken,) = await jobs.take(QUEUE, "w", 1)
    await jobs.settle("w", taken, BACK)
    again, after = await jobs.take(QUEUE, "w", 2)
    assert (again.id, again.attempt, again.token, after.id) == (first.id, 1, 2, second.id)
    await jobs.settle("w", again, AGAIN)
    (last,) = await jobs.take(QUEUE, "w", 2)
    assert (last.attempt, last.token, last.failures) == (2, 3, 1)


async def test_an_answer_that_was_lost_loses_no_job(jobs: RedisJobs) -> None:
    new = [new_job() for _ in range(3)]
    await jobs.submit(new)
    await jobs.beat("w")
    await jobs._run(scripts.TAKE, [str(QUEUE), "w", 2, 1, "", ""])  # the first take: done, but its answer lost
    assert {job.id for job in await jobs.take(QUEUE, "w", 2)} == {job.id for job in new[:2]}
    assert [job.id for job in await jobs.take(QUEUE, "w", 2)] == [new[2].id]
    assert await jobs.take(QUEUE, "w", 2) == []


async def test_a_take_that_comes_after_its_successor_takes_nothing(jobs: RedisJobs) -> None:
    """It lay in a buffer of the server while its caller asked again, and for more: nobody hears what it says."""
    await jobs.submit([new_job() for _ in range(3)])
    await jobs.beat("w")
    for number in (7, 8):
        assert len(await jobs._run(scripts.TAKE, [str(QUEUE), "w", 1, number, "", ""])) == 1
    assert await jobs._run(scripts.TAKE, [str(QUEUE), "w", 1, 7, "", ""]) == []
    assert (await jobs.waiting())[QUEUE] == 1


async def test_a_job_whose_input_cannot_be_had_is_given_back_although_redis_goes_away(
    jobs: RedisJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would ever settle it: its worker beats, and does not know that it holds it."""
    monkeypatch.setattr(inputs, "RETRY_S", 0.01)
    new = new_job(body=LARGE)
    await jobs.submit([new])
    await jobs.beat("w")
    monkeypatch.setattr(jobs._payloads, "get", _away)
    run, num_lost = jobs._run, 0

    async def run_or_not(script: str, *arguments: Any) -> Any:
        nonlocal num_lost
        if script == scripts.SETTLE and num_lost < 2:
            num_lost += 1
            raise StoreUnavailable("away")
        return await run(script, *arguments)

    monkeypatch.setattr(jobs, "_run", run_or_not)
    assert await jobs.take(QUEUE, "w", 1) == []
    assert ((await jobs.get(new.id)).state, num_lost) == ("scheduled", 2)


async def _away(name: str) -> bytes:
    raise StoreUnavailable("object storage is away")


async def test_takes_at_the_same_time_share_what_waits(jobs: RedisJobs) -> None:
    await jobs.submit([new_job() for _ in range(20)])
    await jobs.beat("w")
    taken = await asyncio.gather(*(jobs.take(QUEUE, "w", 3) for _ in range(8)))
    ids = [job.id for share in taken for job in share]
    assert len(ids) == len({*ids}) == 20


async def test_a_unique_job_is_one_until_it_has_ended(jobs: RedisJobs) -> None:
    first = new_job(unique="doc")
    await jobs.submit([first])
    with pytest.raises(NotUnique) as refused:
        await jobs.submit([new_job(), new_job(unique="doc")])
    assert refused.value.extra["job"] == first.id
    with pytest.raises(NotUnique):
        await jobs.submit([new_job(unique="twice"), new_job(unique="twice")])
    assert await jobs.waiting() == {QUEUE: 1}, "refused whole"
    await jobs.submit([first, new_job(unique="doc", key_id="k2"), new_job(unique="doc", function="other")])
    await run_all(jobs, AGAIN)
    with pytest.raises(NotUnique):
        await jobs.submit([new_job(unique="doc")])
    await run_all(jobs)
    await jobs.submit([new_job(unique="doc")])


async def test_an_unknown_dependency_is_refused_whole(jobs: RedisJobs) -> None:
    with pytest.raises(JobNotFound) as refused:
        await jobs.submit([new_job(), new_job(depends_on=["f" * 24])])
    assert refused.value.extra["job"] == "f" * 24
    assert await jobs.waiting() == {}


async def test_of_more_than_one_step_nothing_is_left_when_a_later_one_is_refused(
    jobs: RedisJobs, redis: redis_sync.Redis
) -> None:
    many = [new_job() for _ in range(210)]
    with pytest.raises(JobNotFound):
        await jobs.submit([*many, new_job(depends_on=["f" * 24])])
    assert await jobs.get_many([job.id for job in many[:3]]) == [None] * 3
    await jobs.sweep()
    assert {*redis.keys("*")} == {b"sv:jobs:counts"}
    with pytest.raises(JobNotFound):
        await jobs.submit([*many, new_job(depends_on=["f" * 24])], all_or_none=False)
    assert (await jobs.waiting())[QUEUE] == 200, "who submits the same again finds what was accepted"


async def test_a_job_past_its_deadline_is_not_started(jobs: RedisJobs) -> None:
    late, good = new_job(deadline_at_s=time.time() - 1), new_job(deadline_at_s=time.time() + 60)
    await jobs.submit([late, good])
    await jobs.beat("w")
    assert [job.id for job in await jobs.take(QUEUE, "w", 1)] == [good.id]
    record = await jobs.get(late.id)
    assert record.state == "failed" and record.error is not None
    assert (record.error["code"], record.error["phase"], record.attempt) == ("deadline_exceeded", "queue", 0)


async def test_scheduled_jobs_are_queued_when_they_are_due(jobs: RedisJobs) -> None:
    soon, later = new_job(), new_job(due_at_s=time.time() + 900)
    hopeless = new_job(due_at_s=time.time() + 900, deadline_at_s=time.time() - 1)
    await jobs.submit([soon, later, hopeless])
    await run_all(jobs, Settlement(state=JobState.SCHEDULED, due_at_s=time.time() - 1))
    assert [record.state for record in await jobs.get_many([soon.id, later.id]) if record] == ["scheduled"] * 2
    assert await jobs.promote_due() == 2
    records = [await jobs.get(job.id) for job in (soon, later, hopeless)]
    assert [record.state for record in records] == ["queued", "scheduled", "failed"]
    assert await jobs.promote_due() == 0


async def test_many_jobs_past_their_deadline_fail_in_short_steps_and_who_takes_hears_that_there_are_more(
    jobs: RedisJobs, aredis: redis_async.Redis
) -> None:
    late, good = [new_job(deadline_at_s=time.time() - 1) for _ in range(2000)], new_job()
    await jobs.submit([*late, good])
    await jobs.beat("w")
    async with aredis.pubsub(ignore_subscribe_messages=True) as news:
        await news.subscribe(keys.CHANNEL_JOBS)
        await news.get_message(timeout=60)
        assert await jobs.take(QUEUE, "w", 9) == []
        told: Any = await news.get_message(timeout=60)
        assert told["data"] == str(QUEUE).encode()
    num_takes = 1
    while not (taken := await jobs.take(QUEUE, "w", 9)):
        num_takes += 1
    assert [job.id for job in taken] == [good.id]
    assert num_takes > 1 and (await jobs.counts())["failed"] == 2000


async def test_caps_hold_over_all_workers(jobs: RedisJobs) -> None:
    other = QUEUE._replace(key_id="k2")
    await jobs.submit([new_job(key_id=key_id) for key_id in ("k1", "k2") for _ in range(5)])
    await jobs.beat("v")
    await jobs.beat("w")
    first = await jobs.take(QUEUE, "v", 9, 5, 3)
    assert [len(first), len(await jobs.take(QUEUE, "w", 9, 5, 3))] == [3, 0]
    assert [len(await jobs.take(other, "w", 9, 5, 3)), len(await jobs.take(other, "v", 9, 5, 3))] == [2, 0]
    await jobs.settle("v", first[0], FINISHED)
    assert len(await jobs.take(other, "v", 9, 5, 3)) == 1
    assert (await jobs.waiting())[other] == 2
    await jobs.leave("v")
    await jobs.leave("w")
    await jobs.beat("u")
    assert len(await jobs.take(QUEUE, "u", 9, 5, None)) == 4


async def test_cancelling(jobs: RedisJobs, aredis: redis_async.Redis) -> None:
    new = [new_job() for _ in range(5)]
    later = new_job(due_at_s=time.time() + 900)
    await jobs.submit([*new, later])
    await jobs.beat("w")
    (running,) = await jobs.take(QUEUE, "w", 1)
    async with aredis.pubsub(ignore_subscribe_messages=True) as news:
        await news.subscribe(keys.CHANNEL_JOBS_CANCEL)
        await news.get_message(timeout=60)
        assert await jobs.cancel(running.id) == "started"
        told: Any = await news.get_message(timeout=60)
        assert told["data"] == running.id.encode()
    assert [await jobs.cancel(job_id) for job_id in (new[2].id, new[4].id, later.id)] == ["canceled"] * 3
    with pytest.raises(JobEnded) as ended:
        await jobs.cancel(later.id)
    assert ended.value.extra["state"] == "canceled"
    with pytest.raises(JobNotFound):
        await jobs.cancel("f" * 24)
    assert [job.id for job in await jobs.take(QUEUE, "w", 9)] == [new[1].id, new[3].id]
    assert (await jobs.get(running.id)).canceling
    assert await jobs.settle("w", running, AGAIN)
    assert (await jobs.get(running.id)).state == "canceled"


async def test_jobs_deep_in_a_long_queue_are_cancelled_in_short_steps(
    jobs: RedisJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = [new_job(group="a" * 24, index=index) for index in range(6000)]
    await jobs.submit(new)
    run, num_steps = jobs._run, 0

    async def counted(script: str, *arguments: Any) -> Any:
        nonlocal num_steps
        num_steps += script == scripts.CANCEL
        return await run(script, *arguments)

    monkeypatch.setattr(jobs, "_run", counted)
    assert await jobs._cancel([job.id for job in new[2900:3100]]) == ["canceled"] * 200
    assert num_steps > 1
    assert (await jobs.waiting())[QUEUE] == 5800


async def test_positions(jobs: RedisJobs) -> None:
    new = [new_job() for _ in range(6)]
    await jobs.submit(new)
    await jobs.beat("w")
    (first,) = await jobs.take(QUEUE, "w", 1)

    async def positions() -> list[int]:
        return [await jobs.position(await jobs.get(job.id)) for job in new[1:]]

    assert await positions() == [0, 1, 2, 3, 4]
    await jobs.cancel(new[1].id)
    assert (await positions())[1:] == [0, 1, 2, 3]
    await jobs.settle("w", first, BACK)
    assert await jobs.position(await jobs.get(first.id)) == 0
    assert (await positions())[1:] == [1, 2, 3, 4]


async def test_retrying_is_a_new_job_with_the_same_input(jobs: RedisJobs) -> None:
    new = new_job(retries=2, group="a" * 24, deadline_at_s=time.time() + 60, unique="u", tags={"a": "b"})
    await jobs.submit([new])
    await run_all(jobs, FAILED)
    again = await jobs.retry(new.id)
    record = await jobs.get(again)
    assert (record.state, record.spec.retry_of, record.spec.retries, record.spec.group) == ("queued", new.id, 2, "")
    assert record.spec.tags == {"a": "b"}
    assert record.spec.deadline_at_s == pytest.approx(record.spec.created_at_s + 60, abs=1)
    assert await jobs.input(record) == new.input
    assert [job.input for job in await run_all(jobs)] == [new.input]
    assert (await jobs.get(new.id)).state == "failed", "what has ended stays as it is"


async def test_large_inputs_and_results_are_in_object_storage(
    jobs: RedisJobs, object_store: ObjectStore, redis: redis_sync.Redis
) -> None:
    new = new_job(body=LARGE)
    await jobs.submit([new])
    await jobs.beat("w1")
    (lost,) = await jobs.take(QUEUE, "w1", 1)
    assert lost.input == LARGE
    await jobs.reap("w1", (await jobs.beats())["w1"])
    await jobs.beat("w2")
    (taken,) = await jobs.take(QUEUE, "w2", 1)
    large = Settlement(state=JobState.FINISHED, result=LARGE + b"2", result_type="text/plain")
    assert await jobs.settle("w2", taken, large)
    assert await jobs.settle("w2", taken, large), "told twice"
    assert not await jobs.settle("w1", lost, large), "late"
    record = await jobs.get(new.id)
    assert (record.is_input_stored, record.is_result_stored, record.result) == (True, True, None)
    assert (record.input_bytes, record.result_bytes, record.result_type) == (len(LARGE), len(LARGE) + 1, "text/plain")
    assert [await jobs.input(record), await jobs.result(record)] == [LARGE, LARGE + b"2"]
    assert (await jobs.result_url(record)).startswith("http")
    stored = [info.key for info in object_store.list(f"jobs/{new.id}/")]
    assert stored == [f"jobs/{new.id}/input", f"jobs/{new.id}/result.2"], "the late one's is deleted"
    assert (redis.memory_usage(job_key(new.id)) or 0) < 2000
    again = await jobs.get(await jobs.retry(new.id))
    assert await jobs.input(again) == LARGE


async def test_a_job_whose_input_is_gone_fails(jobs: RedisJobs, object_store: ObjectStore) -> None:
    new = new_job(body=LARGE)
    await jobs.submit([new])
    object_store.delete(f"jobs/{new.id}/input")
    assert await run_all(jobs) == []
    record = await jobs.get(new.id)
    assert record.state == "failed" and record.error is not None and record.error["code"] == "not_found"


async def test_results(jobs: RedisJobs) -> None:
    empty, failed = new_job(), new_job(key_id="k2")
    await jobs.submit([empty, failed])
    with pytest.raises(NotFound):
        await jobs.result(await jobs.get(empty.id))
    await run_all(jobs, Settlement(state=JobState.FINISHED))
    await run_all(jobs, FAILED, QUEUE._replace(key_id="k2"))
    assert await jobs.result(await jobs.get(empty.id)) == b""
    with pytest.raises(NotFound):
        await jobs.result(await jobs.get(failed.id))


async def test_moves_are_told(jobs: RedisJobs, aredis: redis_async.Redis) -> None:
    new = new_job()
    async with aredis.pubsub() as news:
        await news.subscribe(keys.job_channel(new.id), keys.CHANNEL_JOBS)
        assert [await news.get_message(timeout=60) for _ in range(2)]
        await jobs.submit([new, new_job()])
        await run_all(jobs, AGAIN)
        await run_all(jobs)
        told = []
        while message := await news.get_message(timeout=0.3):
            told.append(message["data"].decode())
    kinds = [part.partition('"kind":"')[2].partition('"')[0] or part for part in told]
    assert kinds == ["sv:embed:k1", "started", "sv:embed:k1", "queued", "started", "finished"]


async def test_a_cursor_that_is_none_is_refused(jobs: RedisJobs) -> None:
    for state, group in (("finished", None), ("queued", None), (None, "a" * 24)):
        with pytest.raises(InvalidInput):
            wanted = None if state is None else JobState(state)
            await jobs.submit([new_job()])
            await jobs.list(["embed"], wanted, "k1", group, "sv:embed:k1 x", 5)


async def test_the_life_of_a_job_is_few_commands(jobs: RedisJobs, redis: redis_sync.Redis) -> None:
    def num_calls() -> int:
        stats: Any = redis.info("commandstats")
        return sum(int(entry["calls"]) for entry in stats.values())  # and one for this question

    async def life(number: int) -> float:
        """Return the commands that a job cost, `number` of which are in flight at a time."""
        await jobs.beat("w")
        before = num_calls()
        for _ in range(100 // number):
            await jobs.submit([new_job() for _ in range(number)])
            taken = await jobs.take(QUEUE, "w", number)
            await asyncio.gather(*(jobs.settle("w", job, FINISHED) for job in taken))
        return (num_calls() - before) / 100

    await jobs.submit([new_job()])
    await run_all(jobs)
    single, together = await life(1), await life(20)
    print(f"commands for the life of a no-op job: {single:.1f} alone, {together:.1f} with 20 in flight")
    assert single <= 36, "on its own a job pays for three scripts and two questions to the append-only file"
    assert together <= 15, "the target is 25, with all else that a worker asks"


async def test_the_reason_of_a_quarantined_job_is_kept(jobs: RedisJobs) -> None:
    new = new_job()
    await jobs.submit([new])
    await run_all(jobs, QUARANTINED)
    record = await jobs.get(new.id)
    assert record.error is not None and (record.state, record.error["code"]) == ("failed", "quarantined")
    assert record.crashes == 3
    page = await jobs.list(["embed"], "quarantined", "k1", None, "", 10)
    assert [job.id for job in page.jobs] == [new.id]
    assert (await jobs.counts())["quarantined"] == 1
