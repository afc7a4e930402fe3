"""Jobs that wait for others, and groups with a job that gets all results: resolved in the step that ends the last."""

from __future__ import annotations

import time

import pytest
import redis.asyncio as redis_async

from samovar.errors import BadOutput, Conflict, JobNotFound
from samovar_storage import keys
from samovar_storage.jobs.redis_jobs import RedisJobs
from support.new_jobs import AGAIN, FAILED, QUEUE, new_job, run_all

GROUP = "a" * 24


async def states(jobs: RedisJobs, *ids: str) -> list[str]:
    """Return the states of these jobs."""
    return [str(record.state) for record in await jobs.get_many(ids) if record is not None]


async def test_a_job_runs_once_all_it_waits_for_have_finished(jobs: RedisJobs) -> None:
    first, second = new_job(), new_job()
    child = new_job(depends_on=[first.id, second.id])
    await jobs.submit([first, second, child])
    await jobs.beat("w")
    assert [job.id for job in await run_all(jobs, AGAIN)] == [first.id, second.id]
    assert await states(jobs, child.id) == ["deferred"]
    await run_all(jobs)
    assert await states(jobs, first.id, second.id, child.id) == ["finished", "finished", "queued"]
    assert [job.id for job in await run_all(jobs)] == [child.id]


async def test_what_waits_for_a_failed_job_fails_all_the_way_down(jobs: RedisJobs) -> None:
    top = new_job()
    chain = [new_job(depends_on=[top.id])]
    for _ in range(30):
        chain.append(new_job(depends_on=[chain[-1].id]))
    anyway = new_job(depends_on=[chain[-1].id], allow_failed=True)
    await jobs.submit([top, *chain, anyway])
    await run_all(jobs, FAILED)
    assert await states(jobs, *(job.id for job in chain)) == ["failed"] * 31
    error = (await jobs.get(chain[0].id)).error
    assert error is not None and (error["code"], error["job"]) == ("dependency_failed", top.id)
    assert await states(jobs, anyway.id) == ["queued"]


async def test_what_has_ended_already_is_not_waited_for(jobs: RedisJobs) -> None:
    good, bad = new_job(), new_job(key_id="k2")
    await jobs.submit([good, bad])
    await run_all(jobs)
    await run_all(jobs, FAILED, QUEUE._replace(key_id="k2"))
    after = [new_job(depends_on=[good.id]), new_job(depends_on=[bad.id, good.id])]
    after += [new_job(depends_on=[bad.id], allow_failed=True)]
    after += [new_job(depends_on=[good.id], due_at_s=time.time() + 900)]
    await jobs.submit(after)
    assert await states(jobs, *(job.id for job in after)) == ["queued", "failed", "queued", "scheduled"]


async def test_a_job_may_wait_for_others_of_its_own_request(jobs: RedisJobs) -> None:
    bad = new_job()
    await jobs.submit([bad])
    await run_all(jobs, FAILED)
    first = new_job(depends_on=[bad.id])
    second = new_job(depends_on=[first.id, first.id])
    third, fourth = new_job(), new_job()
    fifth = new_job(depends_on=[third.id, fourth.id, third.id])
    await jobs.submit([first, second, third, fourth, fifth])
    assert await states(jobs, first.id, second.id, fifth.id) == ["failed", "failed", "deferred"]
    await run_all(jobs)
    assert await states(jobs, fifth.id) == ["queued"]
    with pytest.raises(JobNotFound):
        own = new_job()
        await jobs.submit([new_job(depends_on=[own.id]), own])


async def test_thousands_of_dependents_are_resolved_in_bounded_steps(
    jobs: RedisJobs, aredis: redis_async.Redis
) -> None:
    parent = new_job()
    await jobs.submit([parent])
    children = [new_job(depends_on=[parent.id], key_id="k2") for _ in range(1500)]
    await jobs.submit(children)
    await run_all(jobs)
    assert 20 <= (await jobs.waiting())[QUEUE._replace(key_id="k2")] < 1500
    assert await aredis.llen(keys.JOBS_UNRESOLVED) == 1
    await jobs.promote_due()
    assert (await jobs.waiting())[QUEUE._replace(key_id="k2")] == 1500
    assert await aredis.llen(keys.JOBS_UNRESOLVED) == 0


async def test_a_group_is_reduced_once_all_its_jobs_have_ended(jobs: RedisJobs) -> None:
    members = [new_job(group=GROUP, index=number) for number in range(4)]
    reduce = new_job(function="merge", reduce_of=GROUP)
    await jobs.submit(members[:2])
    assert len(await run_all(jobs)) == 2
    await jobs.submit([*members[2:], reduce])
    group = await jobs.group(GROUP)
    assert (group.num_jobs, group.counts, group.reduce) == (4, {"finished": 2, "queued": 2}, reduce.id)
    assert (group.function, group.key_id) == ("embed", "k1")
    assert await states(jobs, reduce.id) == ["deferred"]
    await run_all(jobs)
    assert await states(jobs, reduce.id) == ["queued"]
    assert await jobs.group_results(GROUP, 1, 2, 10) == [b'"yes"'] * 2
    assert await jobs.group_results(GROUP, 3, 9, 10) == [b'"yes"']
    with pytest.raises(BadOutput):
        await jobs.group_results(GROUP, 1, 2, 9)


@pytest.mark.parametrize(("allow_failed", "state"), [(False, "failed"), (True, "queued")])
async def test_a_group_in_which_a_job_failed(jobs: RedisJobs, allow_failed: bool, state: str) -> None:
    members = [new_job(group=GROUP), new_job(group=GROUP, index=1, key_id="k2")]
    reduce = new_job(function="merge", reduce_of=GROUP, allow_failed=allow_failed)
    await jobs.submit([reduce, *members][::-1])
    await run_all(jobs, FAILED)
    assert await states(jobs, reduce.id) == ["deferred"]
    await run_all(jobs, queue=QUEUE._replace(key_id="k2"))
    assert await states(jobs, reduce.id) == [state]
    assert await jobs.group_results(GROUP, 0, 9, 99) == [b'"yes"', None]


async def test_a_reducing_job_that_comes_last_runs_at_once(jobs: RedisJobs) -> None:
    await jobs.submit([new_job(group=GROUP)])
    await run_all(jobs)
    reduce = new_job(function="merge", reduce_of=GROUP)
    await jobs.submit([reduce])
    assert await states(jobs, reduce.id) == ["queued"]
    await run_all(jobs, FAILED, QUEUE._replace(function="merge"))
    again = await jobs.retry(reduce.id)
    assert await states(jobs, again) == ["queued"]
    assert (await jobs.group(GROUP)).reduce == again


async def test_cancelling_a_group_ends_what_has_not_ended(jobs: RedisJobs) -> None:
    members = [new_job(group=GROUP, index=number) for number in range(450)]
    reduce = new_job(function="merge", reduce_of=GROUP)
    await jobs.submit([*members, reduce])
    await jobs.beat("w")
    (running,) = await jobs.take(QUEUE, "w", 1)
    assert await jobs.cancel_group(GROUP) == 451
    group = await jobs.group(GROUP)
    assert group.counts == {"canceled": 449, "started": 1}
    assert (await jobs.get(running.id)).canceling
    assert await states(jobs, reduce.id) == ["canceled"]
    assert await jobs.waiting() == {}


async def test_an_unknown_group(jobs: RedisJobs) -> None:
    with pytest.raises(JobNotFound):
        await jobs.group(GROUP)
    reduce = new_job(reduce_of=GROUP)
    await jobs.submit([reduce])
    await run_all(jobs)
    with pytest.raises(Conflict):
        await jobs.retry(reduce.id)
