"""Templates: loaded processes that ready instances are forked from. Torch's thread pools across forks."""

from __future__ import annotations

import pytest

from samovar import wire
from support.instance_driver import FUNCTIONS, Instance, Zygote

pytestmark = pytest.mark.process

WATCHDOG_S = 20.0


@pytest.fixture
def template(zygote: Zygote) -> Instance:
    template = zygote.fork()
    ready = template.specialise(FUNCTIONS / "linear", role="template", num_threads=2)
    assert isinstance(ready, wire.Ready), template.log_text()
    assert ready.num_os_threads == 1 and ready.templatable
    return template


def product(instance: Instance) -> float:
    caller = instance.connect()
    caller.invoke({"rows": 768})
    result: wire.Result = caller.expect(wire.Result, WATCHDOG_S)
    return float(result.body)


def test_a_blank_runs_on_two_threads_although_the_zygote_was_warmed(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "linear", num_threads=2)
    assert instance.connect().call({"rows": 1, "mode": "threads"}) == 2
    assert product(instance) > 0
    assert instance.process.num_threads() > 2, "torch really started its pool"


def test_a_fork_of_a_warmed_template_runs_on_two_threads(zygote: Zygote, template: Instance) -> None:
    alone = product(zygote.start(FUNCTIONS / "linear"))
    for num_threads in (2, 1, 2):
        fork = zygote.fork(parent=template.control(), num_threads=num_threads)
        welcome = fork.connect().welcome
        assert (welcome.state, welcome.ref, welcome.concurrency) == ("ready", "linear@1", 1)
        assert fork.connect().call({"rows": 1, "mode": "threads"}) == num_threads
        assert product(fork) == pytest.approx(alone, rel=1e-4)


def test_forks_share_the_weights_and_are_apart_otherwise(zygote: Zygote, template: Instance) -> None:
    forks = [zygote.fork(parent=template.control()) for _ in range(3)]
    for fork in forks:
        assert fork.connect().call({"rows": 1, "mode": "big"}) == 24_000_000
    for fork in forks:
        memory = fork.process.memory_full_info()
        assert memory.rss > 96_000_000 and memory.uss < 40_000_000, memory
    forks[0].control().send(wire.Drain(1))
    exited = template.control().expect(wire.Exited)
    assert (exited.pid, exited.exit_code) == (forks[0].pid, 0)
    assert product(forks[1]) == product(forks[2])


def test_forks_draw_random_numbers_as_a_fresh_load_would(zygote: Zygote, template: Instance) -> None:
    """`linear` seeds torch in its load: every instance starts from that seed, forked or not."""
    fresh = zygote.start(FUNCTIONS / "linear").connect().call({"rows": 1, "mode": "random"})
    forked = zygote.fork(parent=template.control()).connect().call({"rows": 1, "mode": "random"})
    assert forked == fresh


def test_forks_outlive_their_template(zygote: Zygote, template: Instance) -> None:
    fork = zygote.fork(parent=template.control())
    caller = fork.connect()
    template.control().send(wire.Drain(1))
    assert zygote.exit_code(template) == 0
    assert caller.call({"rows": 1, "mode": "threads"}) == 1


def test_a_load_that_leaves_a_thread_is_not_templated(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "leaves_thread")
    assert instance.ready is not None and not instance.ready.templatable
    template = zygote.fork()
    failed = template.specialise(FUNCTIONS / "leaves_thread", role="template")
    assert isinstance(failed, wire.BootFailed)
    assert failed.phase == "template" and "1 threads" in failed.detail
    assert zygote.exit_code(template) == 1


def test_a_template_takes_no_calls(template: Instance) -> None:
    caller = template.connect()
    assert caller.welcome.concurrency == 0
    caller.invoke({"rows": 1})
    assert caller.expect(wire.Goodbye).reason == "protocol"
    assert template.is_alive()
