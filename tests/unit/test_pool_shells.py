"""The small rules inside the pool manager's shells: environments, layers, learning, lines of logs, versions."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar import layers
from samovar.errors import ConfigError
from samovar.lifecycle import State
from samovar.spec import BlobRef, FileRef, Manifest, Resources, Route, Scaling
from samovar_pool import logs, preload, signals
from samovar_pool.backends import procfs
from samovar_pool.backends.rundir import Note, RunDir
from samovar_pool.backends.zygote import clean_environment
from samovar_pool.devices import NoDevices, SimulatedDevices, find_devices, sys_address
from samovar_pool.model import InstanceView, Snapshot
from samovar_pool.settings import PoolSettings, simulated_gpus
from samovar_pool.versions import BASE_NEED_BYTES, Catalogue
from samovar_storage.records import FunctionRecord


def test_a_zygote_gets_no_credential_and_no_setting_of_ours() -> None:
    environ = {"PATH": "/bin", "SAMOVAR_CONFIG": "x", "AWS_SECRET_ACCESS_KEY": "s", "HOME": "/root", "CUDA_HOME": "/c"}
    cleaned = clean_environment(environ, ["/layer"])
    assert cleaned.keys() == {
        "PATH", "LANG", "HOME", "HF_HUB_OFFLINE", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "PYTHONUNBUFFERED",
        "CUDA_HOME", "PYTHONPATH",
    }  # fmt: skip
    assert cleaned["HOME"] == "/nonexistent" and cleaned["PYTHONPATH"] == "/layer"


def test_layers_are_addressed_by_what_is_required() -> None:
    assert layers.layer_key(["b", "a "]) == layers.layer_key(["a", "b"])
    assert layers.layer_key(["a"]) != layers.layer_key(["a==1"])
    assert layers.layer_key(["a"], "3.11") != layers.layer_key(["a"], "3.12")


@pytest.mark.parametrize(
    ("additions", "expected"),
    [({"teapot": "1"}, []), ({"torch": "2.0"}, []), ({"torch": "1.0"}, ["torch"]), ({}, [])],
)
def test_only_another_version_of_something_imported_conflicts(additions: dict[str, str], expected: list[str]) -> None:
    assert layers.conflicts(additions, {"torch": "2.0", "numpy": "2.1"}) == expected


def test_imported_distributions_follow_requirements() -> None:
    found = layers.imported_distributions(["samovar"])
    assert "msgspec" in found and "uvloop" in found
    assert "pytest" not in found, "extras are not imported"


def test_only_modules_of_transformers_are_learned() -> None:
    modules = [
        "transformers.models.bert",
        "app",
        "os.path",
        "transformers",
        "transformers.x; import os",
        "transformersx.y",
    ]
    assert preload.learnable(modules) == ["transformers.models.bert"]


def test_teaching_waits_for_quiet() -> None:
    def snapshot(*instances: InstanceView) -> Snapshot:
        return Snapshot(100.0, {}, list(instances))

    assert preload.is_quiet(
        snapshot(InstanceView("b", State.BLANK), InstanceView("r", State.READY, "f@1", ready_at_s=1.0))
    )
    assert not preload.is_quiet(snapshot(InstanceView("l", State.LOADING, "f@1")))
    assert not preload.is_quiet(snapshot(InstanceView("r", State.READY, "f@1", ready_at_s=99.0)))


@given(st.lists(st.binary(max_size=40)), st.booleans())
def test_lines_are_shipped_once_and_whole(chunks: list[bytes], is_last: bool) -> None:
    data = b"".join(chunk.replace(b"\n", b"").replace(b"\r", b"") + b"\n" for chunk in chunks) + b"rest"
    lines, used = logs.split_lines(data, is_last)
    assert data[:used].decode(errors="replace").splitlines() == lines
    assert used == (len(data) if is_last else len(data) - 4)


def test_an_endless_line_is_cut_instead_of_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 100_000)
    source = logs.Source("i", "f@1", "stderr", path)
    lines, offset = logs.read_new(source, 0.0)
    assert offset == logs.MAX_BATCH_BYTES and len(lines[0].line) == logs.MAX_LINE_BYTES
    source.offset = 200_000
    assert logs.read_new(source, 0.0) == ([], 100_000), "a file that was cut is followed from its end"
    assert logs.tail(tmp_path / "absent") == []


def test_notes_survive_and_broken_ones_go(tmp_path: Path) -> None:
    run = RunDir(tmp_path, "unix")
    note = Note(instance_id="i-1", kind="instance", pid=1, token="t", devices=("cuda:0", "cuda:1"))
    run.write_note(note)
    (tmp_path / "run" / "broken.json").write_text("{")
    assert run.notes() == [note] and not (tmp_path / "run" / "broken.json").exists()
    assert (tmp_path / "run" / "i-1.json").stat().st_mode & 0o777 == 0o600
    run.forget("i-1")
    assert run.notes() == []
    with pytest.raises(ConfigError, match="too long"):
        RunDir(tmp_path / ("x" * 100), "unix")


def test_devices_are_simulated_on_request_and_none_are_needed(caplog: pytest.LogCaptureFixture) -> None:
    devices = find_devices(*simulated_gpus(PoolSettings(simulate_gpus="4x80")))
    assert isinstance(devices, SimulatedDevices)
    assert [fact.simulated for fact in devices.read()] == [True] * 4
    assert devices.read()[3].device == "cuda:3" and devices.read()[0].total_bytes == 80 << 30
    assert NoDevices().read() == [] and simulated_gpus(PoolSettings()) == (0, 0)
    assert sys_address("00000000:3B:00.0") == "0000:3b:00.0"
    with caplog.at_level(logging.INFO):
        assert find_devices(0, 0).read() is not None


@pytest.mark.parametrize("values", [{"simulate_gpus": "4 of 80"}, {"min_blanks": 9, "max_blanks": 8}])
def test_bad_settings_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        PoolSettings(**values)  # type: ignore[arg-type]


def record(name: str, shares: dict[str, int], **more: object) -> FunctionRecord:
    code = BlobRef(sha256="0" * 64, size_bytes=1)
    facts = {"name": name, "entry": "app:f", "kind": "function", "handler": "sync", "code": code, **more}
    manifests = {version: msgspec.convert({**facts, "version": int(version)}, Manifest) for version in shares}
    return FunctionRecord(name=name, route=Route(name=name, shares=shares, latest=1), manifests=manifests)


def test_catalogue_keeps_versions_the_route_has_left_without_their_floor() -> None:
    catalogue = Catalogue()
    catalogue.update("f", record("f", {"1": 100}, scaling=Scaling(min_instances=2, scale_down_window_s=7)))
    assert catalogue.floors == {"f@1"}
    catalogue.update("f", record("f", {"2": 100}, resources=Resources(gpus=1)))
    old = catalogue.versions["f@1"]
    assert (old.routed, old.scaling.min_instances, old.scaling.scale_down_window_s) == (False, 0, 7)
    assert catalogue.floors == set() and catalogue.uses_devices and not catalogue.is_deleted("f@1")
    catalogue.replace_all({})
    assert catalogue.is_deleted("f@1") and not catalogue.uses_devices
    catalogue.forget("f@1")
    assert set(catalogue.versions) == {"f@2"}


def test_a_change_tells_which_versions_became_routed() -> None:
    catalogue = Catalogue()
    assert [v.ref for v in catalogue.update("f", record("f", {"1": 100}))] == ["f@1"]
    assert catalogue.update("f", record("f", {"1": 100})) == []
    assert [v.ref for v in catalogue.update("f", record("f", {"1": 50, "2": 50}, requirements=["tea"]))] == ["f@2"]
    assert catalogue.with_requirements == {"f@1", "f@2"}
    catalogue.layer_found("f@1")
    assert catalogue.with_requirements == {"f@2"}
    assert catalogue.update("f", None) == [] and catalogue.with_requirements == set()


@pytest.mark.parametrize(
    ("now", "is_urgent"),
    [({"f@1": 16.0}, False), ({"f@1": 12.0}, False), ({"f@1": 21.0}, True), ({}, True), ({"f@1": 16, "g@1": 1}, True)],
)
def test_only_news_of_demand_wakes_before_the_tick(now: dict[str, float], is_urgent: bool) -> None:
    assert signals.has_grown({"f@1": 16.0}, now) == is_urgent


def test_the_first_instance_brings_its_weights_further_ones_share_them() -> None:
    catalogue = Catalogue()
    catalogue.update("f", record("f", {"1": 100}, weights=[FileRef(path="w", sha256="0" * 64, size_bytes=1000)]))
    version = catalogue.versions["f@1"]
    assert version.host_need_bytes(5, is_first=True) == 1005
    assert version.host_need_bytes(5, is_first=False) == 5
    assert version.host_need_bytes(0, is_first=False) == BASE_NEED_BYTES


def test_children_that_are_not_known_themselves_count_for_their_parent() -> None:
    program = "import sys; block = bytearray(b'.') * 30_000_000; print('up', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"up\n"
        me = procfs.Known(os.getpid(), 0, 0.0, has_children=True)
        assert child.pid in procfs.children(os.getpid())
        alone = procfs.measure([me, procfs.Known(child.pid, 0, 0.0)])
        together = procfs.measure([me])[me.pid]
        assert alone[child.pid].memory.share > 30_000_000
        assert together.memory.share - alone[me.pid].memory.share > 25_000_000
        assert together.resident_bytes - alone[me.pid].resident_bytes > 25_000_000
        assert child.stdin is not None
        child.stdin.close()
