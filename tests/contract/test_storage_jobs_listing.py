"""Pages of jobs: in order, complete, and steady while jobs come and go."""

from __future__ import annotations

import time
from urllib.parse import quote

import pytest

from samovar.errors import InvalidInput
from samovar.jobs import JobState
from samovar_storage.jobs.listing import State
from samovar_storage.jobs.records import NewJob, Settlement
from samovar_storage.jobs.redis_jobs import RedisJobs
from support.new_jobs import FAILED, FINISHED, QUARANTINED, QUEUE, new_job, run_all

BOTH = ["embed", "other"]


async def all_ids(
    jobs: RedisJobs,
    state: State | None = None,
    key_id: str | None = None,
    group: str | None = None,
    functions: list[str] = BOTH,
    limit: int = 3,
) -> list[str]:
    """Return the ids of all pages; a page has at most `limit` jobs."""
    found, cursor = [], ""
    while True:
        page = await jobs.list(functions, state, key_id, group, cursor, limit)
        assert len(page.jobs) <= limit
        found += [record.id for record in page.jobs]
        if not page.cursor:
            return found
        cursor = page.cursor


def ids(jobs: list[NewJob], *, newest_first: bool = True) -> list[str]:
    """Return the ids of jobs, by default as the list has them."""
    found = [job.id for job in jobs]
    return sorted(found, reverse=True) if newest_first else found


async def test_without_a_filter_all_jobs_are_listed_newest_first(jobs: RedisJobs) -> None:
    new = [new_job(function=function, key_id=key_id) for key_id in ("k1", "k2", "k3") for function in BOTH * 2]
    await jobs.submit(new)
    await run_all(jobs)
    assert await all_ids(jobs) == ids(new)
    assert await all_ids(jobs, key_id="k2") == ids([job for job in new if job.spec.key_id == "k2"])
    assert await all_ids(jobs, functions=["other"]) == ids([job for job in new if job.spec.function == "other"])
    assert await all_ids(jobs, functions=[]) == []
    assert (await jobs.list(BOTH, None, None, None, "", 12)).cursor != "", "there may be more"


@pytest.mark.parametrize("key_id", [None, "k1"])
async def test_each_state_is_listed_whole(jobs: RedisJobs, key_id: str | None) -> None:
    """State by state: five jobs that come to it, beside one of another key."""
    stopped = Settlement(state=JobState.CANCELED)
    ends = {JobState.FINISHED: FINISHED, JobState.FAILED: FAILED, JobState.CANCELED: stopped}
    await jobs.beat("w")
    for state, settlement in ends.items():
        new = [new_job() for _ in range(5)]
        await jobs.submit([*new, new_job(key_id="k9", function="nobody")])
        await run_all(jobs, settlement)
        assert sorted(await all_ids(jobs, state, key_id)) == sorted(ids(new))
    started = [new_job() for _ in range(5)]
    await jobs.submit(started)
    assert len(await jobs.take(QUEUE, "w", 9)) == 5
    assert await all_ids(jobs, JobState.STARTED, key_id) == ids(started)
    scheduled = [new_job(due_at_s=time.time() + 500 + number // 2) for number in range(6)]
    deferred = [new_job(depends_on=[started[0].id]) for _ in range(5)]
    await jobs.submit([*scheduled, *deferred])
    assert sorted(await all_ids(jobs, JobState.SCHEDULED, key_id)) == sorted(ids(scheduled))
    assert (await all_ids(jobs, JobState.SCHEDULED, key_id))[0] in ids(scheduled[4:])
    assert sorted(await all_ids(jobs, JobState.DEFERRED, key_id)) == sorted(ids(deferred))


async def test_what_waits_is_listed_from_the_end_of_each_queue(jobs: RedisJobs) -> None:
    normal, low = [new_job() for _ in range(10)], [new_job(lane="low") for _ in range(2)]
    await jobs.submit([*normal, *low])
    for gone in (normal[8], normal[5], normal[4]):
        await jobs.cancel(gone.id)
    left = [job for job in normal if job not in (normal[8], normal[5], normal[4])]
    expected = ids(left[::-1], newest_first=False) + ids(low[::-1], newest_first=False)
    assert await all_ids(jobs, JobState.QUEUED) == expected
    assert await all_ids(jobs, JobState.QUEUED, "k1", limit=1) == expected


async def test_pages_hold_while_jobs_come_and_go(jobs: RedisJobs) -> None:
    new = [new_job() for _ in range(8)]
    await jobs.submit(new)
    first = await jobs.list(BOTH, JobState.QUEUED, None, None, "", 3)
    all_first = await jobs.list(BOTH, None, None, None, "", 3)
    await jobs.submit([new_job() for _ in range(4)])
    await jobs.beat("w")
    await jobs.take(QUEUE, "w", 2)
    rest = [record.id for record in (await jobs.list(BOTH, JobState.QUEUED, None, None, first.cursor, 9)).jobs]
    assert [*(record.id for record in first.jobs), *rest] == ids(new[:1:-1], newest_first=False)
    rest = [record.id for record in (await jobs.list(BOTH, None, None, None, all_first.cursor, 9)).jobs]
    assert [*(record.id for record in all_first.jobs), *rest] == ids(new)


async def test_the_dead_letters(jobs: RedisJobs) -> None:
    bad, worse = [new_job() for _ in range(4)], [new_job(key_id="k2") for _ in range(4)]
    await jobs.submit([*bad, *worse])
    await run_all(jobs, FAILED)
    await run_all(jobs, QUARANTINED, QUEUE._replace(key_id="k2"))
    assert sorted(await all_ids(jobs, "quarantined")) == sorted(ids(worse))
    assert await all_ids(jobs, "quarantined", "k1") == []
    assert sorted(await all_ids(jobs, JobState.FAILED)) == sorted(ids([*bad, *worse]))


async def test_the_jobs_of_a_group_come_in_the_order_of_its_inputs(jobs: RedisJobs) -> None:
    members = [new_job(group="a" * 24, index=number) for number in range(8)]
    await jobs.submit(members[:5])
    await run_all(jobs)
    await jobs.submit([*members[5:], new_job()])
    assert await all_ids(jobs, group="a" * 24) == ids(members, newest_first=False)
    assert await all_ids(jobs, JobState.QUEUED, group="a" * 24) == ids(members[5:], newest_first=False)
    assert await all_ids(jobs, key_id="k2", group="a" * 24) == []
    assert await all_ids(jobs, functions=["other"], group="a" * 24) == []


async def test_a_list_is_without_results(jobs: RedisJobs) -> None:
    await jobs.submit([new_job()])
    await run_all(jobs)
    (record,) = (await jobs.list(["embed"], None, "k1", None, "", 5)).jobs
    assert (record.result, record.result_bytes) == (None, 5)
    assert await jobs.result(record) == b'"yes"'


@pytest.mark.parametrize("state", [None, JobState.QUEUED, JobState.STARTED, JobState.FINISHED, "quarantined"])
@pytest.mark.parametrize("cursor", ["zzz", "nan~" + "0" * 24, "inf~" + "0" * 24, "1~2", "sv:echo:k1~x", "1 ~", "-1"])
async def test_a_made_up_cursor_is_refused(jobs: RedisJobs, state: JobState | None, cursor: str) -> None:
    """Whoever was given the first page instead would go round for ever."""
    with pytest.raises(InvalidInput) as caught:
        await jobs.list(BOTH, state, None, None, cursor, 3)
    assert caught.value.extra["path"] == "cursor"


@pytest.mark.parametrize("state", [None, JobState.QUEUED, JobState.FINISHED])
async def test_a_cursor_stands_in_a_url_as_it_is(jobs: RedisJobs, state: JobState | None) -> None:
    await jobs.submit([new_job() for _ in range(8)])
    await jobs.beat("w")
    for job in await jobs.take(QUEUE, "w", 4):
        assert await jobs.settle("w", job, FINISHED)
    cursor = (await jobs.list(BOTH, state, None, None, "", 3)).cursor
    assert cursor and quote(cursor, safe=":~") == cursor
