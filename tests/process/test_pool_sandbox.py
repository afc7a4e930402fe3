"""The sandbox as the pool manager makes it: cgroups, records, environments with the network, and what it refuses."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from samovar import wire
from samovar.errors import ConfigError
from samovar.lifecycle import State
from samovar.spec import Resources
from samovar_pool.backends.sandbox import Sandboxing
from samovar_pool.backends.zygote import clean_environment
from samovar_storage import keys
from samovar_storage.records import InstanceRecord, loads
from support.arena import GREETING, NOBODY, attack, become_nobody, greeter
from support.instance_driver import Caller
from support.listening import listening
from support.pool import Pool, alive
from support.stores import Stores

pytestmark = pytest.mark.process

FILL_BYTES = 900_000_000
LIMIT = Resources(memory_gib=0.25)
CallerOf = Callable[[InstanceRecord], Caller]


def ready(pool: Pool, ref: str) -> InstanceRecord:
    """Have an instance of the version and wait for it; its cgroup included, where there is one."""
    pool.demand(ref)
    pool.until(lambda: pool.in_state("ready", ref), what=f"{ref} ready")
    if has_cgroups():
        pool.until(lambda: "cgroup_memory" in pool.in_state("ready", ref)[0].sandbox, what="its cgroup")
    return pool.in_state("ready", ref)[0]


def has_cgroups() -> bool:
    return os.geteuid() == 0 and any("memory" in line for line in Path("/proc/self/cgroup").read_text().splitlines())


@pytest.fixture
def caller_of() -> Iterator[Callable[[InstanceRecord], Caller]]:
    """Connects as a gateway would; all is closed after the test."""
    with ExitStack() as stack:

        def connect(record: InstanceRecord) -> Caller:
            caller = Caller(record.address, record.token)
            stack.callback(caller.close)
            return caller

        yield connect


def test_the_record_says_what_is_on(pool: Pool, caller_of: CallerOf) -> None:
    record = ready(pool, pool.deploy("attacker").ref)
    assert {"environment", "mount_namespace", "pid_namespace", "landlock", "seccomp", "scratch"} <= set(record.sandbox)
    if has_cgroups():
        assert {"cgroup_memory", "cgroup_pids", "cgroup_cpu", "uid"} <= set(record.sandbox)
    pool.until(lambda: (node := pool.node()) and "mount_namespace" in node.sandbox, what="the node's status")
    caller = caller_of(record)
    uid, inside_pid, num_seen = map(int, attack(caller, "who").split())
    assert psutil.Process(record.pid).uids().real == uid != os.geteuid() or os.geteuid() != 0
    assert inside_pid != record.pid and num_seen < 50, "it sees its siblings at most"
    assert attack(caller, "read", pool.data_dir / "settings.json").startswith("refused: ")
    assert attack(caller, "list_folder", pool.data_dir / "run").startswith("refused: ")
    assert attack(caller, "overwrite", pool.data_dir / "cache").startswith("refused: ")
    assert attack(caller, "scratch", "note") == "note"


def _last_word(news: Any, instance: InstanceRecord) -> str:
    """Return why the instance is gone, as far as it was published by now."""
    message = news.get_message(timeout=0.1)
    if message is None or message["type"] != "message":
        return ""
    record = loads(message["data"], InstanceRecord)
    return record.ended if (record.instance_id, record.state) == (instance.instance_id, State.GONE) else ""


def test_memory_beyond_the_limit_ends_one_instance_and_says_so(pool: Pool, caller_of: CallerOf) -> None:
    if not has_cgroups():
        pytest.skip("no cgroups may be made here; RLIMIT_DATA alone does not count shared memory")
    greedy, other = pool.deploy("attacker", name="greedy", resources=LIMIT).ref, pool.deploy("echo_sum").ref
    first, bystander = ready(pool, greedy), ready(pool, other)
    caller, witness = caller_of(first), caller_of(bystander)
    with listening(pool.redis, keys.CHANNEL_INSTANCES) as news:
        caller.invoke({"deed": "fill_shared", "target": str(FILL_BYTES)})
        with pytest.raises((EOFError, ConnectionResetError)):
            caller.expect(wire.Result)
        ended = pool.until(lambda: _last_word(news, first), what="its last word, for those who called it")
    assert "more memory than it may" in ended
    pool.until(lambda: not alive(first.pid), what="its end")
    pool.until(
        lambda: any("more memory than it may" in line.line for line in pool.logs("greedy")),
        what="a line in the function's log",
    )
    pool.until(
        lambda: any(d.action == "lost" and "more memory than it may" in d.rule for d in pool.decisions("greedy")),
        what="a decision, for who asks why",
    )
    assert witness.call({"values": [1, 2]}) == 3
    assert attack(caller_of(ready(pool, greedy)), "fill", 10) == "10 bytes", "there is another"


def test_memory_beyond_the_limit_while_loading_is_the_boot_error(pool: Pool) -> None:
    if not has_cgroups():
        pytest.skip("no cgroups may be made here")
    source = f"""
import mmap
import time

import samovar as sv

@sv.function(name="glutton", resources=sv.Resources(memory_gib=0.25))
class Glutton:
    def load(self, weights, device):
        time.sleep(3)  # by then it is in its cgroup
        area = mmap.mmap(-1, {FILL_BYTES})
        for start in range(0, len(area), mmap.PAGESIZE):
            area[start] = 1

    def __call__(self, text: str) -> str:
        return text
"""
    ref = pool.write("glutton", source).ref
    pool.demand(ref)
    failure = pool.until(lambda: pool.boot_failure(ref), what="the boot error")
    assert "more memory than it may" in failure.detail


def test_a_fork_bomb_is_bounded_and_nothing_of_it_stays(pool: Pool, caller_of: CallerOf) -> None:
    ref = pool.deploy("attacker", name="bomber", resources=Resources(allow_subprocess=True)).ref
    record = ready(pool, ref)
    caller = caller_of(record)
    if has_cgroups():
        bomb = attack(caller, "forks", 2000)
        assert "Resource temporarily unavailable" in bomb and int(bomb.split()[0]) < 256, bomb
    inside = int(attack(caller, "leave_running", 600))
    left = [child for child in psutil.Process(record.pid).children() if child.status() != psutil.STATUS_ZOMBIE]
    assert len(left) == 1 and inside
    if has_cgroups():
        os.kill(record.pid, 9)
        pool.until(lambda: not left[0].is_running(), what="the end of what it left running")


def test_functions_that_call_out_come_from_an_environment_of_their_own(pool: Pool, caller_of: CallerOf) -> None:
    with greeter(socket.AF_INET, ("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        online, offline = (
            pool.deploy("attacker", name=name, resources=Resources(network=name == "online")).ref
            for name in ("online", "offline")
        )
        there, away = ready(pool, online), ready(pool, offline)
        assert attack(caller_of(there), "tcp", port) == GREETING.decode()
        assert "network_namespace" not in there.sandbox and "network_namespace" in away.sandbox
        assert attack(caller_of(away), "tcp", port).startswith("refused: ")
        assert attack(caller_of(there), "read", pool.data_dir / "settings.json").startswith("refused: ")


async def test_a_required_sandbox_without_gaps_may_start(tmp_path: Path) -> None:
    if not has_cgroups():
        pytest.skip("no cgroups may be made here")
    for name in ("cache", "layers", "instances"):
        (tmp_path / name).mkdir()
    sandboxing = Sandboxing.of("required", tmp_path, [], 1 << 30)
    await sandboxing.check(clean_environment(os.environ, []))
    assert sandboxing.cgroups is not None
    sandboxing.cgroups.close()


def test_a_required_sandbox_with_gaps_refuses_to_start(stores: Stores, short_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody without it")
    data_dir = short_path / "data"
    data_dir.mkdir()
    config = stores.write_settings_file(short_path / "settings.json", data_dir, sandbox="required")
    for path in (short_path, data_dir, config):
        os.chown(path, NOBODY, NOBODY)
    done = subprocess.run(
        [sys.executable, "-m", "samovar_pool", "--config", str(config)],
        preexec_fn=become_nobody,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )
    assert done.returncode == ConfigError.exit_code, done.stderr
    assert "sandbox = required, but this machine lacks: " in done.stderr
    assert "cgroup" in done.stderr and "uid" not in done.stderr.partition("lacks: ")[2]
