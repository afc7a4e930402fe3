"""Templates: loaded processes that ready instances are forked from. Torch's thread pools across forks."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from samovar import wire
from samovar_instance import rehearsal
from support.instance_driver import FUNCTIONS, Instance, Zygote
from support.tiny_models import tiny_model
from support.waiting import wait_until

pytestmark = pytest.mark.process

WATCHDOG_S = 60.0
NUM_FILES_OF_A_BLANK = 11  # stdio, the event loop's selector and sockets, its listener, one connection, a pipe


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


def parked_child(template: Instance) -> psutil.Process:
    """Wait until the template has a child that has rehearsed and waits; return it."""

    def find() -> psutil.Process | None:
        children = template.process.children()
        return next((child for child in children if is_parked(child.pid)), None)

    child: psutil.Process = wait_until(find, WATCHDOG_S)
    return child


def is_parked(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "samovar-parked"
    except OSError:
        return False


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True  # reaped between the two looks


def test_a_blank_runs_on_two_threads_although_the_zygote_was_warmed(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "linear", num_threads=2)
    assert instance.connect().call({"rows": 1, "mode": "threads"}) == 2
    assert product(instance) > 0
    assert instance.process.num_threads() > 2, "torch really started its pool"


def test_a_fork_of_a_warmed_template_runs_on_two_threads(zygote: Zygote, template: Instance) -> None:
    alone = product(zygote.start(FUNCTIONS / "linear"))
    for num_threads in (2, 1, 2):
        fork = zygote.fork(parent=template, num_threads=num_threads)
        welcome = fork.connect().welcome
        assert (welcome.state, welcome.ref, welcome.concurrency) == ("ready", "linear@1", 1)
        assert fork.connect().call({"rows": 1, "mode": "threads"}) == num_threads
        assert product(fork) == pytest.approx(alone, rel=1e-4)


def test_forks_share_the_weights_and_are_apart_otherwise(zygote: Zygote, template: Instance) -> None:
    forks = [zygote.fork(parent=template) for _ in range(3)]
    for fork in forks:
        assert fork.connect().call({"rows": 1, "mode": "big"}) == 24_000_000
    for fork in forks:
        memory = fork.process.memory_full_info()
        assert memory.rss > 96_000_000 and memory.uss < 40_000_000, memory
    forks[0].control().send(wire.Drain(1))
    exited = template.control().expect(wire.Exited)
    assert (exited.pid, exited.exit_code) == (forks[0].inside_pid, 0)
    assert product(forks[1]) == product(forks[2])


def test_forks_draw_random_numbers_as_a_fresh_load_would(zygote: Zygote, template: Instance) -> None:
    """`linear` seeds torch in its load: every instance starts from that seed, forked or not."""
    fresh = zygote.start(FUNCTIONS / "linear").connect().call({"rows": 1, "mode": "random"})
    forked = zygote.fork(parent=template).connect().call({"rows": 1, "mode": "random"})
    assert forked == fresh


def test_a_fork_that_was_ahead_draws_them_too_although_it_has_rehearsed(zygote: Zygote, template: Instance) -> None:
    fresh = zygote.start(FUNCTIONS / "linear").connect().call({"rows": 1, "mode": "random"})
    parked = parked_child(template)
    fork = zygote.fork(parent=template)
    assert fork.pid == parked.pid
    assert fork.connect().call({"rows": 1, "mode": "random"}) == fresh


def test_forks_of_an_unseeded_load_draw_numbers_of_their_own(zygote: Zygote) -> None:
    template = zygote.fork()
    assert isinstance(template.specialise(FUNCTIONS / "draws", role="template"), wire.Ready), template.log_text()
    drawn = []
    for _ in range(3):
        parked = parked_child(template)
        fork = zygote.fork(parent=template)
        assert fork.pid == parked.pid
        drawn.append(fork.connect().call({"generator": "torch"}))
        drawn.append(fork.connect().call({"generator": "python"}))
    assert len(set(drawn)) == 6, drawn


def test_a_template_keeps_one_fork_ahead(zygote: Zygote, template: Instance) -> None:
    for num_threads in (2, 1):
        parked = parked_child(template)
        assert parked.num_threads() == 1
        fork = zygote.fork(parent=template, num_threads=num_threads)
        assert fork.pid == parked.pid, "it was forked before it was asked for"
        welcome = fork.connect().welcome
        assert not is_parked(fork.pid)
        assert (welcome.state, welcome.ref, welcome.concurrency) == ("ready", "linear@1", 1)
        assert fork.connect().call({"rows": 1, "mode": "threads"}) == num_threads
        assert product(fork) > 0
    assert os.getsid(fork.pid) == fork.pid


def test_a_blank_that_has_rehearsed_may_become_a_template(zygote: Zygote) -> None:
    blank = zygote.fork()
    before_bytes = blank.process.memory_full_info().uss
    blank.control()
    wait_until(lambda: blank.process.memory_full_info().uss > before_bytes + rehearsal.HEAP_BYTES, WATCHDOG_S)
    wait_until(lambda: blank.process.num_threads() == 1, WATCHDOG_S)
    wait_until(
        lambda: blank.process.num_fds() <= NUM_FILES_OF_A_BLANK,
        WATCHDOG_S,
        "only those of its event loop and control server, one connection",
    )
    ready = blank.specialise(FUNCTIONS / "linear", role="template")
    assert isinstance(ready, wire.Ready) and ready.templatable, blank.log_text()
    parked_child(blank)
    assert product(zygote.fork(parent=blank, num_threads=2)) > 0


def test_what_a_rehearsal_prints_and_an_adopted_fork_prints_go_to_different_logs(zygote: Zygote) -> None:
    template = zygote.fork()
    assert isinstance(template.specialise(FUNCTIONS / "draws", role="template"), wire.Ready), template.log_text()
    parked_child(template)
    assert template.log_text().count("draws from torch") == 2, "the warm-up and the rehearsal"
    fork = zygote.fork(parent=template)
    fork.connect().call({"generator": "python"})
    assert fork.log_text() == "draws from python\n"


def test_a_burst_is_forked_on_demand(zygote: Zygote, template: Instance) -> None:
    parked = parked_child(template)
    forks = [zygote.fork(parent=template, num_threads=2) for _ in range(4)]
    assert len({fork.pid for fork in forks}) == 4
    assert [fork.pid == parked.pid for fork in forks] == [True, False, False, False]
    answers = [product(fork) for fork in forks]
    assert answers == pytest.approx([answers[0]] * 4, rel=1e-4)
    assert parked_child(template).pid not in {fork.pid for fork in forks}


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, "drain"])
def test_a_parked_fork_ends_with_its_template(zygote: Zygote, template: Instance, end: signal.Signals | str) -> None:
    fork = zygote.fork(parent=template)  # has a copy of nothing that would keep the parked one
    parked = parked_child(template)
    if isinstance(end, signal.Signals):
        os.kill(template.pid, end)
    else:
        template.control().send(wire.Drain(1))
    wait_until(lambda: is_gone(parked), WATCHDOG_S)
    assert product(fork) > 0


def test_a_parked_fork_that_was_killed_is_never_heard_of(zygote: Zygote, template: Instance) -> None:
    parked = parked_child(template)
    parked.kill()
    wait_until(lambda: not parked.is_running(), WATCHDOG_S)  # reaped by the template
    fork = zygote.fork(parent=template)
    assert fork.pid != parked.pid
    assert product(fork) > 0
    fork.control().send(wire.Drain(1))
    exited = template.control().expect(wire.Exited)
    assert (exited.pid, exited.exit_code) == (fork.inside_pid, 0)
    assert parked_child(template)


def test_the_end_of_a_fork_that_was_ahead_is_told(zygote: Zygote, template: Instance) -> None:
    parked = parked_child(template)
    fork = zygote.fork(parent=template)
    assert fork.pid == parked.pid
    fork.kill()
    exited = template.control().expect(wire.Exited)
    assert (exited.pid, exited.exit_code) == (fork.inside_pid, -signal.SIGKILL)


def test_forks_outlive_their_template(zygote: Zygote, template: Instance) -> None:
    fork = zygote.fork(parent=template)
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


@pytest.mark.parametrize(
    ("name", "body", "answer"), [("async_echo", {"text": "b"}, "b"), ("async_batched", {"x": 4}, 8)]
)
@pytest.mark.parametrize("is_ahead", [True, False])
def test_coroutines_run_on_a_loop_of_the_fork_own(
    zygote: Zygote, name: str, body: Any, answer: Any, is_ahead: bool
) -> None:
    instance = zygote.start(FUNCTIONS / name)
    assert instance.ready is not None and instance.ready.templatable
    template = zygote.fork()
    assert isinstance(template.specialise(FUNCTIONS / name, role="template"), wire.Ready), template.log_text()
    if is_ahead:
        parked_child(template)
    forks = [zygote.fork(parent=template) for _ in range(2)]
    callers = [fork.connect() for fork in forks]
    assert [caller.call(body) for caller in callers] == [answer, answer]


def test_a_fork_generates_what_a_loaded_instance_does(zygote: Zygote) -> None:
    asked = {"prompt": "the cat sat on", "max_tokens": 12, "temperature": 0}
    weights = tiny_model("llama")
    alone = zygote.start(FUNCTIONS / "chats", weights=weights)
    assert alone.ready is not None and alone.ready.templatable
    template = zygote.fork()
    ready = template.specialise(FUNCTIONS / "chats", weights=weights, role="template")
    assert isinstance(ready, wire.Ready), template.log_text()
    forks = [zygote.fork(parent=template) for _ in range(2)]
    wanted = said(alone, asked)
    assert wanted and [said(fork, asked) for fork in forks] == [wanted, wanted]


def said(instance: Instance, asked: Any) -> str:
    """Return the text that an instance generates."""
    caller = instance.connect()
    caller.invoke(asked)
    lines = caller.expect(wire.Result, WATCHDOG_S).body.splitlines()
    return "".join(json.loads(line).get("text", "") for line in lines)


@pytest.mark.parametrize(
    ("name", "why_not", "is_seen_without"),
    [
        ("leaves_task", "left a task running: Event.wait", True),
        ("bound_to_loop", "fails on a second event loop: RuntimeError", False),
    ],
)
def test_what_stays_with_its_event_loop_is_not_templated(
    zygote: Zygote, name: str, why_not: str, is_seen_without: bool
) -> None:
    instance = zygote.start(FUNCTIONS / name)
    assert instance.ready is not None and instance.ready.templatable is not is_seen_without
    assert instance.connect().call({"text": "b"}) == "b", "it serves all the same"
    template = zygote.fork()
    failed = template.specialise(FUNCTIONS / name, role="template")
    assert isinstance(failed, wire.BootFailed)
    assert failed.phase == "template" and why_not in failed.detail
    assert zygote.exit_code(template) == 1


def test_a_template_takes_no_calls(template: Instance) -> None:
    caller = template.connect()
    assert caller.welcome.concurrency == 0
    caller.invoke({"rows": 1})
    assert caller.expect(wire.Goodbye).reason == "protocol"
    assert template.is_alive()
