"""The pool manager brings a new version up before the old one goes, and canaries beside it, on real instances."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from samovar.spec import Scaling
from samovar_storage import routes
from samovar_storage.embedded import EmbeddedSeaweed, EmbeddedValkey
from support.folders import short_folder
from support.pool import Pool, quick_scaling, running_pool
from support.stores import NUM_DATABASES, stores_for_a_test

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def started(valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed) -> Iterator[Pool]:
    stores = stores_for_a_test(valkey, seaweed, NUM_DATABASES - 3)
    with short_folder() as folder, running_pool(stores, folder) as pool:
        pool.start()
        yield pool


@pytest.fixture
def pool(started: Pool) -> Iterator[Pool]:
    yield started
    started.reset()


def author(pool: Pool) -> routes.Author:
    return routes.Author("test", time.time())


def test_a_successor_comes_up_before_the_old_one_goes(pool: Pool) -> None:
    scaling = Scaling(max_instances=2, scale_down_window_s=3.0)
    first = pool.deploy("echo_sum", name="moves", scaling=scaling)
    pool.demand(first.ref, queued=0, running=2)
    pool.ready(first.ref, 2)
    second = pool.deploy("echo_sum", name="moves", scaling=scaling)
    pool.ready(second.ref, 2)
    assert len(pool.in_state("ready", first.ref)) == 2, "nobody has left yet"
    assert any(d.ref == second.ref and d.rule == "rollout" for d in pool.decisions("moves"))
    pool.demand(first.ref, queued=0, running=0)
    pool.demand(second.ref, queued=0, running=1)
    pool.until(lambda: not pool.instances(first.ref), what="the old version has gone")
    assert pool.in_state("ready", second.ref)
    pool.demand(second.ref, queued=0, running=0)
    pool.until(lambda: not pool.instances(second.ref), what="an idle function is at zero")


def test_one_that_does_not_come_up_replaces_nobody(pool: Pool) -> None:
    first = pool.deploy("echo_sum", name="stays", scaling=quick_scaling(min_instances=1))
    pool.ready(first.ref)
    broken = pool.deploy("raises_in_load", name="stays", scaling=quick_scaling(min_instances=1))
    failure = pool.until(
        lambda: (f := pool.boot_failure(broken.ref)) and f.num_failures >= 2 and f, what="two failures"
    )
    assert failure.code == "load_failed"
    assert pool.in_state("ready", first.ref), "the one before keeps its floor"


def test_a_canary_has_instances_while_the_stable_version_has(pool: Pool) -> None:
    stable = pool.deploy("echo_sum", name="tried", scaling=quick_scaling())
    pool.demand(stable.ref, queued=0, running=1)
    pool.ready(stable.ref)
    pool.registry.publish_version(stable, "test", (), routes.Trial(percent=10))
    pool.ready("tried@2")
    pool.registry.update_route("tried", lambda route: routes.rolled_back(route, author(pool)))
    pool.until(lambda: not pool.instances("tried@2"), what="a rejected canary goes")
    pool.registry.publish_version(stable, "test", (), None, 50)
    pool.ready("tried@3")
    pool.demand(stable.ref, queued=0, running=0)
    pool.until(lambda: not pool.instances("tried@1") and not pool.instances("tried@3"), what="all at zero")
