"""`samovar up` when something is wrong: one clear sentence and an exit code, never a traceback, nothing left behind."""

import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from samovar_storage.embedded import EmbeddedSeaweed, EmbeddedValkey
from samovar_up import lock
from support.platform import environment, up_command
from support.processes import processes_mentioning

pytestmark = pytest.mark.process


def refused(command: list[str], **environ: str) -> tuple[int, str]:
    """Run to the end; return the exit code and the sentence, having checked that there is only a sentence."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment(**environ), check=False)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    error = json.loads(done.stdout.splitlines()[-1])
    assert error["event"] == "error" and error["exit_code"] == done.returncode
    assert "\n" not in error["detail"]
    return done.returncode, error["detail"]


def test_a_taken_port(short_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, sentence = refused(up_command(short_path / "data", "--port", str(port)))
    assert (code, sentence) == (10, f"port {port} on 127.0.0.1 is taken: choose another with --port")


def test_a_held_folder_says_who_holds_it(short_path: Path) -> None:
    data_dir = short_path / "data"
    data_dir.mkdir()
    with lock.hold(data_dir) as held:
        held.sign(lock.Holder(pid=os.getpid(), since_s=time.time(), url="http://127.0.0.1:8700"))
        code, sentence = refused(up_command(data_dir))
    assert code == 10
    assert f"pid {os.getpid()} since {time.gmtime().tm_year}" in sentence and "http://127.0.0.1:8700" in sentence


def test_a_folder_that_cannot_be_written(short_path: Path) -> None:
    file = short_path / "file"
    file.touch()
    code, sentence = refused(up_command(file / "data"))
    assert code == 10 and "cannot write to the data folder" in sentence


def test_a_path_too_long_for_sockets(short_path: Path) -> None:
    code, sentence = refused(up_command(short_path / ("d" * 100)))
    assert code == 10 and "too long for Unix sockets" in sentence
    assert not list(short_path.iterdir())


def test_a_disk_with_too_little_room(short_path: Path) -> None:
    code, sentence = refused(up_command(short_path / "data", "--min-free-disk-bytes", str(2**62)))
    assert code == 10 and "MiB free" in sentence


def test_a_full_disk(short_path: Path) -> None:
    """On a file system of 64 KiB that is full to the last byte, where this machine lets us mount one."""
    disk = short_path / "disk"
    disk.mkdir()
    data_dir = disk / "data"
    command = " ".join(up_command(data_dir, "--min-free-disk-bytes", "0"))
    fill = f"mount -t tmpfs -o size=64k none {disk} && (cat /dev/zero > {disk}/zeros 2>/dev/null; exec {command})"
    unshare = [shutil.which("unshare") or "unshare", "--map-root-user", "--mount"]
    probe = subprocess.run([*unshare, "sh", "-c", f"mount -t tmpfs none {disk}"], capture_output=True, check=False)
    if probe.returncode != 0:
        code, sentence = refused(up_command(data_dir, "--min-free-disk-bytes", str(2**62)))
    else:
        code, sentence = refused([*unshare, "sh", "-c", fill])
    assert code == 10 and "disk" in sentence


def test_a_wrong_redis_password(short_path: Path, valkey: EmbeddedValkey) -> None:
    url = f"redis://:wrong@127.0.0.1:{valkey.port}/0"
    code, sentence = refused(up_command(short_path / "data"), SAMOVAR_REDIS_URL=url)
    assert code == 10 and f"Redis at 127.0.0.1:{valkey.port}" in sentence and "wrong" not in sentence.split(":")[0]


def test_an_unreachable_redis(short_path: Path) -> None:
    code, sentence = refused(up_command(short_path / "data", "--redis-url", "redis://127.0.0.1:1/0"))
    assert code == 8 and "Redis at 127.0.0.1:1" in sentence


def test_a_wrong_s3_credential(short_path: Path, seaweed: EmbeddedSeaweed) -> None:
    code, sentence = refused(
        up_command(short_path / "data", "--s3-endpoint", seaweed.endpoint),
        SAMOVAR_S3_ACCESS_KEY=seaweed.access_key,
        SAMOVAR_S3_SECRET_KEY="not the secret",
    )
    assert code == 10 and "bucket" in sentence


def test_an_unreachable_s3(short_path: Path) -> None:
    code, sentence = refused(
        up_command(short_path / "data", "--s3-endpoint", "http://127.0.0.1:1"),
        SAMOVAR_S3_ACCESS_KEY="a",
        SAMOVAR_S3_SECRET_KEY="b",
    )
    assert code == 8 and "127.0.0.1:1" in sentence


@pytest.mark.parametrize(
    ("flags", "environ", "named"),
    [
        (("--port", "70000"), {}, "--port"),
        ((), {"SAMOVAR_PROT": "1"}, "SAMOVAR_PROT"),
        (("--simulate-gpus", "many"), {}, "simulate_gpus"),
        ((), {"SAMOVAR_MIN_BLANKS": "-1"}, "SAMOVAR_MIN_BLANKS"),
        (("--config", "/nowhere/settings.json"), {}, "/nowhere/settings.json"),
        ((), {"SAMOVAR_ADMIN_KEY": "not a key"}, "admin_key"),
    ],
)
def test_a_bad_setting_is_named(short_path: Path, flags: tuple[str, ...], environ: dict[str, str], named: str) -> None:
    code, sentence = refused(up_command(short_path / "data", *flags), **environ)
    assert code == 10 and named in sentence
    assert not processes_mentioning(str(short_path))
