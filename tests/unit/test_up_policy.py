"""The supervisor's decisions."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.errors import ConfigError, DiskFull
from samovar_up import lock
from samovar_up.leftovers import strays
from samovar_up.policy import (
    LONGEST_SOCKET_NAME,
    STOP_ORDER,
    check_disk,
    check_socket_path,
    kind_of,
    next_failures,
    restart_delay_s,
)
from samovar_up.procfs import Process, descendants, parse_stat, read_process


@pytest.mark.parametrize(("failures", "delay_s"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 30), (500, 30)])
def test_restarts_back_off_to_half_a_minute(failures: int, delay_s: float) -> None:
    assert restart_delay_s(failures) == delay_s


@given(st.integers(1, 10_000))
def test_back_off_never_shrinks_nor_passes_its_cap(failures: int) -> None:
    assert 1 <= restart_delay_s(failures) <= restart_delay_s(failures + 1) <= 30


def test_a_steady_minute_forgives() -> None:
    assert next_failures(5, uptime_s=59.0) == 6
    assert next_failures(5, uptime_s=60.0) == 1


def test_too_little_disk_is_one_sentence() -> None:
    check_disk("/data", free_bytes=100, needed_bytes=100)
    with pytest.raises(DiskFull, match=r"/data has 1 MiB free and at least 512 MiB are needed"):
        check_disk("/data", free_bytes=2**20, needed_bytes=512 * 2**20)


def test_a_path_too_long_for_sockets_is_refused_to_the_byte() -> None:
    longest = 107 - len("/" + LONGEST_SOCKET_NAME)
    check_socket_path("/" + "d" * (longest - 1))
    with pytest.raises(ConfigError, match="1 bytes too long for Unix sockets"):
        check_socket_path("/" + "d" * longest)
    with pytest.raises(ConfigError, match="too long"):
        check_socket_path("/" + "ü" * (longest // 2 + 1))


def test_stat_of_a_process_with_an_odd_name() -> None:
    line = "42 (a) b (c)) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99887 1 2"
    assert parse_stat(line) == (7, 99887, "S")


def test_we_find_ourselves() -> None:
    here = read_process(os.getpid())
    assert here is not None and here.ppid == os.getppid() and here.argv


def _process(pid: int, ppid: int, *argv: str, state: str = "S") -> Process:
    return Process(pid=pid, ppid=ppid, start_ticks=pid, state=state, argv=argv)


def test_descendants_are_found_through_the_generations() -> None:
    processes = [_process(1, 0), _process(10, 1), _process(11, 10), _process(12, 11), _process(20, 1)]
    assert {process.pid for process in descendants(10, processes)} == {11, 12}


def test_strays_are_our_descendants_and_our_instances_and_nobody_else() -> None:
    processes = [
        _process(1, 0, "init"),
        _process(10, 1, "up"),
        _process(11, 10, "gateway"),
        _process(12, 10, "dead", state="Z"),
        _process(30, 1, "python", "-m", "samovar_instance.zygote", "/data/run/zygote.sock"),
        _process(31, 1, "python", "-m", "samovar_instance.zygote", "/other/run/zygote.sock"),
        _process(32, 1, "tail", "-f", "/data/run/zygote.sock"),
    ]
    assert {process.pid for process in strays(10, Path("/data"), processes)} == {11, 30}


def test_the_lock_names_its_holder(tmp_path: Path) -> None:
    with lock.hold(tmp_path) as held:
        held.sign(lock.Holder(pid=4711, since_s=0.0, url="http://127.0.0.1:8700"))
        with pytest.raises(ConfigError) as refused, lock.hold(tmp_path):
            pass
    assert "pid 4711 since 1970-01-01 00:00:00 UTC at http://127.0.0.1:8700" in refused.value.detail
    with lock.hold(tmp_path):
        pass


@pytest.mark.parametrize(("name", "kind"), [("gateway", "gateway"), ("gateway-12", "gateway"), ("pool", "pool")])
def test_every_gateway_is_stopped_when_gateways_are(name: str, kind: str) -> None:
    assert kind_of(name) == kind and kind in STOP_ORDER
