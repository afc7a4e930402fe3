"""The pool manager replaces an instance that a gateway found to stay unwell."""

from __future__ import annotations

import pytest

from samovar_storage import keys
from samovar_storage.breakers import Unwell
from samovar_storage.records import dumps
from support.pool import Pool, alive, quick_scaling

pytestmark = pytest.mark.process


def test_an_unwell_instance_leaves_and_another_comes(pool: Pool) -> None:
    ref = pool.deploy("echo_sum", name="unwell", scaling=quick_scaling()).ref
    pool.demand(ref)
    (first,) = pool.ready(ref)
    for wrong in ({"instance_id": "i-nobody", "ref": ref}, {"instance_id": first.instance_id, "ref": "other@1"}):
        pool.redis.publish(keys.CHANNEL_UNWELL, dumps(Unwell(gateway="g1", **wrong)))
    pool.redis.publish(keys.CHANNEL_UNWELL, b"not JSON")
    pool.demand(ref)
    assert [record.instance_id for record in pool.ready(ref)] == [first.instance_id]
    news = Unwell(instance_id=first.instance_id, ref=ref, gateway="g1", fault="the samovar leaks")
    pool.redis.publish(keys.CHANNEL_UNWELL, dumps(news))
    pool.until(lambda: not alive(first.pid), what="it drained")
    (second,) = pool.ready(ref)
    assert second.instance_id != first.instance_id
    assert "unwell: the samovar leaks" in [decision.rule for decision in pool.decisions("unwell")]
