"""Jobs from Python over real sockets, with another side that is slow, away or cut off when a test wants it so."""

from __future__ import annotations

import json
import threading
import time

import msgspec
import pytest

import samovar
from samovar import errors
from samovar.jobs import CronJob, JobOptions
from support.http_peer import Asked, Reply
from support.jobs_peer import Failed, JobsPeer, jobs_peer, problem, told

pytestmark = pytest.mark.process


def spill(value: object) -> object:
    if value == {"n": 2}:
        raise Failed()
    return value


def submissions(peer: JobsPeer) -> list[Asked]:
    return [asked for asked in peer.asked if asked.method == "POST" and asked.path.endswith("/jobs")]


def test_a_job_from_submission_to_result() -> None:
    with jobs_peer() as peer, samovar.Client(peer.url, "sv_k_secret") as client:
        job = client.function("embed").submit({"text": "tea"}, retries=3, tags={"of": "monday"})
        assert job.result(timeout_s=5) == {"text": "tea"}
        assert client.job(job.id).status().retries == 3
        assert [found.id for found in client.jobs(function="embed")] == [job.id]
    (sent,) = submissions(peer)
    assert json.loads(sent.body) == {"input": {"text": "tea"}, "retries": 3, "tags": {"of": "monday"}}
    assert sent.headers["authorization"] == "Bearer sv_k_secret"
    assert len(sent.headers["idempotency-key"]) == 32


def test_the_same_key_is_the_same_job_and_another_is_another() -> None:
    with jobs_peer() as peer, samovar.Client(peer.url, "k") as client:
        embed = client.function("embed")
        assert embed.submit({}, idempotency_key="doc-42").id == embed.submit({}, idempotency_key="doc-42").id
        assert embed.submit({}).id != embed.submit({}).id
    assert len(peer.jobs) == 3


@pytest.mark.parametrize("refusals", [1, 3])
def test_a_submission_whose_answer_is_lost_makes_one_job(refusals: int) -> None:
    with jobs_peer() as peer, samovar.Client(peer.url, "k") as client:
        left = [problem(503, "draining", "leaving", retry_after_s=0.01)] * refusals

        def lose(asked: Asked, reply: Reply) -> Reply:
            """The first answers do not arrive: half of one, then refusals in its place."""
            if len(submissions(peer)) == 1:
                return Reply(reply.status, reply.body, reply.headers, cut=True)
            return left.pop() if left and asked.path.endswith("/jobs") else reply

        peer.after = lose
        job = client.function("embed").submit({"text": "tea"})
    assert (len(peer.jobs), job.id) == (1, next(iter(peer.jobs)))
    assert len(submissions(peer)) == refusals + 2
    assert len({asked.headers["idempotency-key"] for asked in submissions(peer)}) == 1


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (problem(422, "invalid_input", "retries is 0 to 1000", path="$.retries"), errors.InvalidInput),
        (problem(409, "not_unique", "one runs", job="j0"), errors.NotUnique),
        (problem(422, "webhook_refused", "a private address"), errors.WebhookRefused),
        (problem(503, "store_full", "no memory left", retry_after_s=600), errors.StoreFull),
    ],
)
def test_what_time_does_not_heal_is_raised_at_once(reply: Reply, error: type[errors.SamovarError]) -> None:
    with jobs_peer(before=lambda asked: reply) as peer, samovar.Client(peer.url, "k") as client:
        with pytest.raises(error) as raised:
            client.function("embed").submit({})
    assert len(peer.asked) == 1
    assert raised.value.extra.get("job", "j0") == "j0"


def test_a_job_says_why_it_is_not_done_and_goes_on() -> None:
    with jobs_peer(is_held=True) as peer, samovar.Client(peer.url, "k") as client:
        job = client.function("embed").submit({"text": "tea"})
        with pytest.raises(TimeoutError, match=r"still queued \(an instance is starting\) after 0.05 s") as raised:
            job.result(timeout_s=0.05)
        assert isinstance(raised.value, errors.JobNotDone)
        threading.Timer(0.2, peer.release).start()
        assert job.result() == {"text": "tea"}


def test_a_result_is_waited_for_through_a_restart_of_the_gateway() -> None:
    away = [problem(503, "draining", "leaving", retry_after_s=0.02)] * 2 + [Reply(cut=True)] * 2
    with jobs_peer(is_held=True) as peer, samovar.Client(peer.url, "k") as client:
        job = client.function("embed").submit(7)
        peer.before = lambda asked: away.pop() if away else None
        threading.Timer(0.3, peer.release).start()
        assert job.result(timeout_s=20) == 7
    assert not away


def test_a_gateway_that_does_not_come_back_is_not_waited_for_longer_than_asked() -> None:
    with samovar.Client("http://127.0.0.1:1", "k") as client:
        start_s = time.monotonic()
        with pytest.raises(errors.ConnectError):
            client.job("j").result(timeout_s=0.3)
        assert time.monotonic() - start_s < 10


def test_a_failed_job_raises_as_the_call_would_have() -> None:
    def run(value: object) -> object:
        raise Failed(code="invalid_input", status=422, detail="$.text: Expected `str`", path="$.text")

    with jobs_peer(run) as peer, samovar.Client(peer.url, "k") as client:
        with pytest.raises(errors.InvalidInput, match="Expected") as raised:
            client.function("embed").submit({}).result()
        assert raised.value.extra["path"] == "$.text"


def test_cancel_and_retry() -> None:
    with jobs_peer(is_held=True) as peer, samovar.Client(peer.url, "k") as client:
        job = client.function("embed").submit({"text": "tea"})
        assert job.cancel().state == "canceled"
        with pytest.raises(errors.JobEnded, match="was cancelled"):
            job.result()
        with pytest.raises(errors.JobEnded) as raised:
            job.cancel()
        assert raised.value.extra["state"] == "canceled"
        again = job.retry()
        peer.release()
        assert (again.id != job.id, again.result()) == (True, {"text": "tea"})


def test_a_large_result_is_fetched_without_the_key() -> None:
    def large(asked: Asked) -> Reply | None:
        if asked.path.endswith("/result"):
            return Reply(307, b"", {"Location": f"{elsewhere.url}/object?signature=s"})
        if asked.method == "GET" and "/v1/jobs/" in asked.path:
            view = {"id": "j", "function": "embed", "state": "finished", "result_bytes": 100_000}
            return told(view)
        return None

    with jobs_peer(before=lambda asked: told([1, 2, 3])) as elsewhere, jobs_peer(before=large) as peer:
        with samovar.Client(peer.url, "sv_k_secret") as client:
            assert client.job("j").result() == [1, 2, 3]
    (fetched,) = elsewhere.asked
    assert "authorization" not in fetched.headers


def test_events_go_on_where_a_broken_connection_left_them() -> None:
    with jobs_peer(is_held=True) as peer, samovar.Client(peer.url, "k") as client:
        job = client.function("embed").submit({})
        seen = []
        for event in job.events():
            seen.append(event)
            if event.kind == "log":
                peer.release()
        assert [event.kind for event in seen] == ["queued", "started", "log", "finished"]
        assert list(job.events(seen[-1].id)) == [], "who has seen the end is told at once"
        assert list(job.logs()) == [{"line": "poured"}]
    asked = [asked.headers.get("last-event-id") for asked in peer.asked if asked.path.endswith("/events")]
    assert asked[:2] == [None, "3-0"]


def test_events_end_with_silence_if_asked_to() -> None:
    def silent(asked: Asked) -> Reply | None:
        if asked.path.endswith("/events") and asked.headers.get("last-event-id"):
            time.sleep(5.0)
        return None

    with jobs_peer(is_held=True, before=silent) as peer, samovar.Client(peer.url, "k") as client:
        job = client.function("embed").submit({})
        assert [event.kind for event in job.events(silence_s=1.5)] == ["queued", "started", "log"]


def test_many_inputs_are_one_group_in_order() -> None:
    with jobs_peer(spill) as peer, samovar.Client(peer.url, "k") as client:
        group = client.function("embed").submit_many(({"n": n} for n in range(4)), reduce="join", priority="low")
        found = group.results(return_errors=True)
        assert [*found[:2], found[3]] == [{"n": 0}, {"n": 1}, {"n": 3}]
        assert isinstance(found[2], errors.FunctionRaised)
        with pytest.raises(errors.FunctionRaised, match="it spilt"):
            group.results()
        assert {job.id for job in group} == {job.id for job in group.jobs}
        assert group.reduced is not None
        assert group.reduced.result() == [{"n": 0}, {"n": 1}, None, {"n": 3}]
        assert client.group(group.id).status().counts == {"finished": 3, "failed": 1}
    (sent,) = submissions(peer)
    assert json.loads(sent.body)["reduce"] == {"function": "join"}
    assert json.loads(sent.body)["priority"] == "low"


def test_a_group_gives_its_jobs_as_they_end_and_says_when_it_is_not_done() -> None:
    with jobs_peer(is_held=True) as peer, samovar.Client(peer.url, "k") as client:
        group = client.function("embed").submit_many([1, 2])
        with pytest.raises(TimeoutError, match="2 queued"):
            group.wait(timeout_s=0)
        peer.jobs[group.jobs[1].id] |= {"state": "finished", "result": 2}
        ended = iter(group)
        assert next(ended).id == group.jobs[1].id
        group.cancel()
        assert [job.id for job in ended] == [group.jobs[0].id]


def test_more_than_one_request_can_carry_goes_by_an_upload() -> None:
    with jobs_peer() as peer, samovar.Client(peer.url, "sv_k_secret") as client:
        inputs = [{"n": n} for n in range(10_001)]
        group = client.function("embed").submit_many(inputs)
        assert group.results() == inputs
    (put,) = [asked for asked in peer.asked if asked.method == "PUT"]
    assert "authorization" not in put.headers, "a signed link is given no key"
    assert json.loads(submissions(peer)[0].body) == {"upload": "up0"}


def test_an_option_that_does_not_exist_is_a_type_error() -> None:
    with samovar.Client("http://127.0.0.1:1", "k") as client:
        with pytest.raises(TypeError, match="no option 'retires'"):
            client.function("embed").submit({}, retires=3)  # type: ignore[call-arg]


def test_cron_jobs() -> None:
    with jobs_peer() as peer, samovar.Client(peer.url, "k") as client:
        nightly = CronJob(name="nightly", function="embed", schedule="0 3 * * *", tz="Europe/Lisbon", input={"a": 1})
        made = client.crons.put(msgspec.structs.replace(nightly, options=JobOptions(retries=2)))
        assert (made.next_at_s > 0, made.options.retries) == (True, 2)
        assert [one.name for one in client.crons.list()] == ["nightly"]
        assert client.crons.enable("nightly", enabled=False).enabled is False
        assert client.crons.get("nightly").input == {"a": 1}
        assert client.crons.run("nightly").result() == {"a": 1}
        client.crons.delete("nightly")
        with pytest.raises(errors.NotFound):
            client.crons.get("nightly")


async def test_the_same_with_asyncio() -> None:
    with jobs_peer(spill) as peer:
        async with samovar.AsyncClient(peer.url, "k") as client:
            embed = client.function("embed")
            job = await embed.submit({"text": "tea"}, retries=1)
            assert await job.result(timeout_s=5) == {"text": "tea"}
            assert [event.kind async for event in job.events()] == ["queued", "started", "log", "finished"]
            assert [line async for line in job.logs()] == [{"line": "poured"}]
            group = await embed.submit_many([{"n": n} for n in range(3)], reduce=True)
            assert (await group.results(return_errors=True))[:2] == [{"n": 0}, {"n": 1}]
            assert {job.id async for job in group} == {job.id for job in group.jobs}
            assert len([found async for found in client.jobs(group=group.id)]) == 3
            peer.is_held = True
            waits = await embed.submit({})
            with pytest.raises(TimeoutError):
                await waits.result(timeout_s=0.05)
            assert (await waits.cancel()).state == "canceled"
            with pytest.raises(errors.JobEnded):
                await waits.result()
            peer.is_held = False
            assert await (await waits.retry()).result() == {}
            large = await embed.submit_many([{"n": 7}] * 10_001)
            assert (await large.wait()).num_jobs == 10_001
            cron = await client.crons.put(CronJob(name="n", function="embed", schedule="* * * * *", input=1))
            assert [one.name for one in await client.crons.list()] == [cron.name]
            assert await (await client.crons.run("n")).result() == 1
            await client.crons.delete("n")
