"""Names of queues, ids and keys; the scripts name keys as RQ does."""

from __future__ import annotations

import pytest
from rq.group import Group
from rq.job import Job

from samovar_storage.jobs import scripts
from samovar_storage.jobs.layout import (
    QUEUES,
    REGISTRIES,
    QueueName,
    job_key,
    new_job_id,
    parse_queue,
    parse_queue_keys,
    queue_key,
)
from samovar_storage.jobs.specs import is_job_id


@pytest.mark.parametrize("queue", [QueueName("embed", "k1"), QueueName("embed", "k1", "low")])
def test_the_name_of_a_queue_is_read_back(queue: QueueName) -> None:
    assert parse_queue(str(queue)) == queue
    assert parse_queue_keys([queue_key(queue).encode()]) == [queue]


@pytest.mark.parametrize("name", ["default", "sv", "sv:embed", "sv:a:b:c:d", "x:embed:k1"])
def test_others_queues_are_none_of_ours(name: str) -> None:
    assert parse_queue(name) is None
    assert parse_queue_keys([f"rq:queue:{name}".encode()]) == []


def test_ids_rise_with_time() -> None:
    ids = [new_job_id(ms) for ms in (1, 16, 255, 1_764_500_000_000, 1_964_500_000_000)]
    assert ids == sorted(ids)
    assert all(map(is_job_id, ids))


def test_the_scripts_name_keys_as_rq_does() -> None:
    for name in (job_key(""), queue_key(QueueName("", ""))[:9], QUEUES, Group.REDIS_GROUP_KEY):
        assert f"'{name}'" in scripts.SUBMIT, name
    for state, template in REGISTRIES.items():
        assert f"{state} = '{template.format('')}'" in scripts.TAKE
    assert Job.dependents_key_for("x") == f"{job_key('x')}:dependents"
    assert f"'{Group.get_key('')}'" in scripts.SUBMIT
