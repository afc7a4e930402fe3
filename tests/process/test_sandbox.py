"""What a function gets that tries to get out. Each attack works with the sandbox off: these tests can fail."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest

from samovar.spec import Resources
from samovar_instance.zygote import EXIT_GAP
from support.arena import GREETING, SECRET, Arena, Who, arena, attack, greeter
from support.instance_driver import Caller, Instance

pytestmark = pytest.mark.process

NUM_FORKS = 60
BIG_BYTES = 700_000_000
STRICT = ("execute", "forks", "user_namespace")


@dataclass(frozen=True)
class Scene:
    """An attacker, a sibling of another version, and what there is to attack."""

    arena: Arena
    attacker: Instance
    caller: Caller
    victim: Instance
    targets: dict[str, Any]


def scene_of(who: Who, mode: str) -> Iterator[Scene]:
    with arena(who, mode) as here:
        data, name = here.data, f"samovar-test-{here.folder.name}"
        paths = {"inside": str(data / "run" / "redis.sock"), "outside": str(here.folder / "redis.sock")}
        tcp = greeter(socket.AF_INET, ("127.0.0.1", 0))
        inside, outside = (greeter(socket.AF_UNIX, path) for path in paths.values())
        with tcp as listener, inside, outside, greeter(socket.AF_UNIX, "\0" + name):
            attacker, victim = here.start(), here.start()
            targets = {
                "secret": data / "secret.json",
                "open": data / "open.json",
                "weights": data / "cache" / "weights.bin",
                "home": Path.home() if os.geteuid() == here.owner else "/root",
                "port": listener.getsockname()[1],
                **paths,
                "abstract": name,
                "victim": here.pids(victim),
                "parent": f"{here.zygote.process.pid},1",
            }
            yield Scene(here, attacker, attacker.connect(), victim, targets)


@pytest.fixture(scope="module", params=get_args(Who))
def confined(request: pytest.FixtureRequest) -> Iterator[Scene]:
    yield from scene_of(request.param, "best-effort")


@pytest.fixture(scope="module", params=get_args(Who))
def free(request: pytest.FixtureRequest) -> Iterator[Scene]:
    yield from scene_of(request.param, "off")


ATTACKS = [
    ("read", "secret"),
    ("read", "open"),
    ("list_folder", "home"),
    ("overwrite", "weights"),
    ("tcp", "port"),
    ("unix", "inside"),
    ("unix", "outside"),
    ("abstract", "abstract"),
    ("kill", "victim"),
    ("trace", "victim"),
    ("memory", "victim"),
    ("environment", "victim"),
    ("environment", "parent"),
    ("execute", "/bin/true"),
    ("forks", str(NUM_FORKS)),
    ("io_uring", "4"),
    ("user_namespace", ""),
]


@pytest.mark.parametrize(("deed", "target"), ATTACKS)
def test_an_attack_fails(confined: Scene, deed: str, target: str) -> None:
    got = attack(confined.caller, deed, confined.targets.get(target, target))
    assert got.startswith("refused: "), got
    assert SECRET not in got and GREETING.decode() not in got
    assert attack(confined.caller, "scratch", "still here") == "still here", "the function's other calls go on"
    assert attack(confined.victim.connect(), "scratch", "so am I") == "so am I"


@pytest.mark.parametrize(("deed", "target"), ATTACKS)
def test_the_same_attack_works_with_the_sandbox_off(free: Scene, deed: str, target: str) -> None:
    if free.arena.who == "bare" and deed == "user_namespace":
        pytest.skip("that is refused there anyway")
    if free.arena.owner != 0:
        if (deed, target) == ("list_folder", "home") and not os.access(free.targets["home"], os.R_OK | os.X_OK):
            pytest.skip("this user has no home")
        if deed in ("trace", "memory") and yama():
            pytest.skip("this machine lets nobody trace but parents")
    got = attack(free.caller, deed, free.targets.get(target, target))
    assert not got.startswith("refused: "), got


def yama() -> bool:
    path = Path("/proc/sys/kernel/yama/ptrace_scope")
    return path.exists() and path.read_text().strip() != "0"


@pytest.mark.parametrize("who", get_args(Who))
def test_forks_of_a_template_leave_each_other_alone(who: Who) -> None:
    with arena(who, "best-effort") as here:
        template = here.start(role="template")
        first, second = (here.zygote.fork(parent=template) for _ in range(2))
        assert {"apart", "forks", "seccomp", "landlock"} <= set(first.connect().welcome.sandbox)
        caller = first.connect()
        for deed, target in (("kill", second), ("trace", second), ("memory", second), ("kill", template)):
            assert attack(caller, deed, here.pids(target)).startswith("refused: "), deed
        for deed, argument in (("forks", "3"), ("execute", "/bin/true"), ("io_uring", "4"), ("read", "/root")):
            assert attack(caller, deed, argument).startswith("refused: "), deed
        template.kill()
        assert attack(second.connect(), "scratch", "fine") == "fine", "it outlives its template"


@pytest.mark.parametrize("who", get_args(Who))
def test_subprocesses_are_allowed_where_they_are_asked_for(who: Who) -> None:
    with arena(who, "best-effort") as here:
        caller = here.start(Resources(allow_subprocess=True)).connect()
        assert attack(caller, "execute", "/bin/true") == "exit code 0"
        assert attack(caller, "forks", "20") == "20 forks"
        for deed, target in (("user_namespace", ""), ("unix", here.data), ("io_uring", "4"), ("read", "/root/x")):
            assert attack(caller, deed, target).startswith("refused: "), deed
        if here.owner == 0:
            bomb = attack(caller, "forks", "2000")
            assert "Resource temporarily unavailable" in bomb, bomb
            assert attack(caller, "execute", "/bin/true") == "exit code 0", "its other calls go on"


@pytest.mark.parametrize("who", get_args(Who))
def test_memory_has_an_end(who: Who) -> None:
    with arena(who, "best-effort") as here:
        caller, other = here.start(Resources(memory_gib=0.25)).connect(), here.start().connect()
        assert attack(caller, "fill", BIG_BYTES) == "refused: MemoryError: "
        assert attack(caller, "fill", 1000) == "1000 bytes"
        assert attack(other, "fill", BIG_BYTES) == f"{BIG_BYTES} bytes", "without a limit there is room for it"


@pytest.mark.parametrize("who", get_args(Who))
def test_a_function_with_the_network_reaches_ports_and_nothing_else(who: Who) -> None:
    tcp = greeter(socket.AF_INET, ("127.0.0.1", 0))
    with arena(who, "best-effort", "--network") as here, tcp as listener:
        path = str(here.folder / "redis.sock")
        with greeter(socket.AF_UNIX, path):
            caller = here.start(Resources(network=True)).connect()
            assert attack(caller, "tcp", listener.getsockname()[1]) == GREETING.decode()
            for deed, target in (("unix", path), ("datagram", path), ("read", here.data / "secret.json")):
                assert attack(caller, deed, target).startswith("refused: "), deed


def test_a_required_layer_that_is_missing_ends_the_zygote(tmp_path: Path) -> None:
    options = ["--sandbox", "required", "--hide", "/proc/self/fd"]  # nothing can be mounted over that
    command = [sys.executable, "-m", "samovar_instance.zygote", "--socket", str(tmp_path / "z.sock"), *options]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == EXIT_GAP
    assert "sandbox = required, but the layer mount_namespace cannot be had" in done.stderr
