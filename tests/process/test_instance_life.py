"""The life of real instance processes: fork, specialise, ready, drain, and the ways it goes wrong."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import psutil
import pytest

from samovar import wire
from samovar_instance import rehearsal
from samovar_instance.server import EXIT_DRAIN_TIMEOUT
from support.instance_driver import FUNCTIONS, TOKEN, Caller, Zygote, manifest_of
from support.waiting import wait_until

pytestmark = pytest.mark.process


def weights(folder: Path, told: str) -> Path:
    (folder / "told.txt").write_text(told)
    return folder


def test_a_blank_becomes_an_instance_and_drains(zygote: Zygote, tmp_path: Path) -> None:
    instance = zygote.fork()
    assert instance.control().welcome.state == "blank"
    ready = instance.specialise(FUNCTIONS / "full_life", weights=weights(tmp_path, "!"))
    assert isinstance(ready, wire.Ready)
    assert set(ready.boot_ms) == {"import", "load", "check", "warmup"}
    assert ready.num_os_threads == 1 and ready.templatable
    caller = instance.connect()
    assert (caller.welcome.state, caller.welcome.ref) == ("ready", "full-life@1")
    assert caller.call({"text": "tea"}) == "tea!"
    instance.control().send(wire.Drain(5))
    assert caller.expect(wire.Goodbye).reason == "drain"
    assert zygote.exit_code(instance) == 0
    assert instance.log_text().split("\n")[:4] == [f"loaded {tmp_path} cpu", "called warm", "called tea", "unloaded"]


def test_a_call_that_waits_is_the_warm_up(zygote: Zygote, tmp_path: Path) -> None:
    instance = zygote.start(FUNCTIONS / "full_life", weights=weights(tmp_path, "!"), is_awaited=True)
    assert instance.ready is not None and instance.ready.boot_ms["warmup"] < 1
    assert instance.connect().call({"text": "tea"}) == "tea!"
    assert instance.log_text().splitlines() == [f"loaded {tmp_path} cpu", "called tea"]
    failed = zygote.fork().specialise(FUNCTIONS / "full_life", weights=weights(tmp_path, "unwell"), is_awaited=True)
    assert isinstance(failed, wire.BootFailed) and failed.phase == "check", "it is checked all the same"


def test_a_blank_that_is_left_alone_rehearses(zygote: Zygote, tmp_path: Path) -> None:
    blank = zygote.fork()
    before_bytes = blank.process.memory_full_info().uss
    blank.control()
    wait_until(lambda: blank.process.memory_full_info().uss > before_bytes + rehearsal.HEAP_BYTES)
    assert len(os.listdir(f"/proc/{blank.pid}/task")) == 1, "it may still become a template"
    assert isinstance(blank.specialise(FUNCTIONS / "full_life", weights=weights(tmp_path, "!")), wire.Ready)
    assert blank.connect().call({"text": "tea"}) == "tea!"
    assert "samovar" not in blank.log_text(), "nothing of it is in the function's log"


def test_what_is_sent_right_behind_specialise_is_served(zygote: Zygote) -> None:
    instance = zygote.fork()
    manager, gateway = instance.control(), instance.connect()
    manifest = msgspec.json.encode(manifest_of(FUNCTIONS / "echo_sum"))
    specialise = wire.Specialise(manifest, str(FUNCTIONS / "echo_sum"), "", [], "cpu", 1)
    manager.send(specialise, wire.Invoke(1, b'{"values": [1, 2]}', 10_000.0))
    number = gateway.invoke({"values": [3]})
    manager.expect(wire.Ready)
    assert manager.expect(wire.Result).body == b"3.0"
    end = gateway.next()
    assert end.id == number and isinstance(end, wire.Result | wire.Busy), "busy if it was read while still blank"


def test_many_blanks_live_side_by_side(zygote: Zygote) -> None:
    blanks = [zygote.fork() for _ in range(5)]
    assert [blank.control().welcome.state for blank in blanks] == ["blank"] * 5
    for blank in blanks:
        blank.control().send(wire.Drain(1))
    assert [zygote.exit_code(blank) for blank in blanks] == [0] * 5


def test_a_blank_gives_invocations_back(zygote: Zygote) -> None:
    blank = zygote.fork()
    caller = blank.connect()
    number = caller.invoke({"text": "too early"})
    assert caller.expect(wire.Busy).id == number
    blank.kill()


@pytest.mark.parametrize(
    ("folder", "told", "phase", "type_name", "detail", "where"),
    [
        ("raises_in_load", "", "load", "RuntimeError", "the kettle is empty", ("app.py", 9)),
        ("broken_import", "", "import", "ModuleNotFoundError", "not_installed_anywhere", ("app.py", 10)),
        ("full_life", "unwell", "check", "RuntimeError", "the samovar leaks", ("app.py", 14)),
        ("full_life", "cold", "warmup", "ValueError", "it stays cold", ("app.py", 19)),
    ],
)
def test_a_failed_boot_says_where(
    zygote: Zygote, tmp_path: Path, folder: str, told: str, phase: str, type_name: str, detail: str, where: object
) -> None:
    instance = zygote.fork()
    failed = instance.specialise(FUNCTIONS / folder, weights=weights(tmp_path, told))
    assert isinstance(failed, wire.BootFailed)
    assert (failed.phase, failed.type_name, (failed.file, failed.line)) == (phase, type_name, where)
    assert detail in failed.detail
    assert zygote.exit_code(instance) == 1
    assert "Traceback" in instance.log_text() and detail in instance.log_text()
    assert "samovar_instance" not in instance.log_text(), "our own frames are noise"


def test_a_module_name_that_python_has_taken_is_refused(zygote: Zygote) -> None:
    instance = zygote.fork()
    failed = instance.specialise(FUNCTIONS / "echo_sum", entry="json:loads")
    assert isinstance(failed, wire.BootFailed)
    assert "rename the file" in failed.detail


def test_layers_come_before_site_packages_and_the_first_wins(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    for number in (1, 2):
        layer = tmp_path / f"layer{number}"
        layer.mkdir()
        (layer / "told.py").write_text(f"VALUE = {number}")
    (tmp_path / "code" / "app.py").write_text(
        "import samovar as sv\n\n\n@sv.function(name='layered')\ndef layered(text: str) -> int:\n"
        "    import told\n\n    return told.VALUE\n"
    )
    instance = zygote.start(tmp_path / "code", layers=[tmp_path / "layer1", tmp_path / "layer2"])
    assert instance.connect().call({"text": ""}) == 1


def test_sigterm_drains_although_the_handler_is_busy(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves")
    caller = instance.connect()
    running = caller.invoke({"deed": "sleep", "amount": 2.0}, notify_start=True)
    waiting = caller.invoke({"deed": "nothing"})
    assert caller.expect(wire.Started).id == running
    os.kill(instance.pid, signal.SIGTERM)
    assert caller.expect(wire.Goodbye).reason == "drain"
    assert caller.expect(wire.Busy) == wire.Busy(waiting, 1, draining=True)
    late = caller.invoke({"deed": "nothing"})
    assert caller.expect(wire.Busy).id == late
    assert caller.expect(wire.Result).id == running
    assert zygote.exit_code(instance) == 0


def test_drain_if_idle_leaves_a_busy_instance_alone(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves")
    caller = instance.connect()
    caller.invoke({"deed": "sleep", "amount": 1.5}, notify_start=True)
    caller.expect(wire.Started)
    instance.control().send(wire.Drain(5, if_idle=True))
    assert instance.control().expect(wire.Stats).in_flight == 1
    caller.expect(wire.Result)
    instance.control().send(wire.Drain(5, if_idle=True))
    assert zygote.exit_code(instance) == 0


def test_a_drain_that_takes_too_long_ends_anyway(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves")
    caller = instance.connect()
    caller.invoke({"deed": "sleep", "amount": 30}, notify_start=True)
    caller.expect(wire.Started)
    instance.control().send(wire.Drain(0.2))
    assert zygote.exit_code(instance) == EXIT_DRAIN_TIMEOUT


def test_no_credentials_in_environment_files_or_arguments(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves")
    environ = Path(f"/proc/{instance.pid}/environ").read_bytes().decode().lower()
    inside = instance.connect().call({"deed": "environ"})
    for secret in ("token", "secret", "redis", "s3", "samovar_", "aws", TOKEN):
        assert secret not in environ
        assert not [name for name in inside if secret in name.lower() and name != "TOKENIZERS_PARALLELISM"]
    opened = {os.readlink(f"/proc/{instance.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{instance.pid}/fd")}
    files = {name for name in opened if name.startswith("/")}
    assert files == {"/dev/null", str(instance.log)}, "its log and nothing else"
    assert TOKEN not in " ".join(psutil.Process(instance.pid).cmdline())


def test_an_instance_is_confined(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves", memory_bytes=256 * 1024 * 1024)
    assert instance.ready is not None
    assert {"no_new_privs", "rlimits", "descriptors", "memory", "scratch"} <= set(instance.ready.sandbox)
    assert os.getsid(instance.pid) == instance.pid, "a session of its own"
    status = Path(f"/proc/{instance.pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    caller = instance.connect()
    assert caller.call({"deed": "memory", "amount": 50e6}) == 50_000_000
    failure = caller.fail({"deed": "memory", "amount": 500e6})
    assert (failure.code, failure.extra["reason"]) == ("function_raised", "out_of_memory")
    assert caller.call({"deed": "nothing"}) == "done", "and it goes on"


def test_stdout_and_stderr_reach_the_log_line_by_line(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves")
    instance.connect().call({"deed": "print"})
    lines = instance.log_text().splitlines()
    assert lines == ["said on stdout", "said on stderr", "said natively"]


def test_the_zygote_outlives_its_manager_and_tells_the_next_one(tmp_path: Path) -> None:
    with Zygote(tmp_path, without=("torch", "transformers", "tokenizers", "safetensors")) as zygote:
        assert "not preloaded: torch" in (tmp_path / "zygote.log").read_text(), "and none of them is needed"
        instance = zygote.start(FUNCTIONS / "echo_sum")
        zygote.control.close()
        assert instance.connect().call({"values": [1, 2]}) == 3, "instances do not notice"
        instance.kill()
        wait_until(lambda: not instance.is_alive())
        zygote.control = Caller(f"unix:{zygote.socket_path}", "", "manager")
        assert zygote.exit_code(instance) == -signal.SIGKILL
        zygote.control.send(wire.Preload(["colorsys", "not_there"]))
        preloaded = zygote.control.expect(wire.Preloaded)
        assert preloaded.modules == ["colorsys"] and list(preloaded.failed) == ["not_there"]
        assert zygote.process.poll() is None
        assert len(os.listdir(f"/proc/{zygote.process.pid}/task")) == 1, "one thread, for ever"
