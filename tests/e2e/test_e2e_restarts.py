"""A platform that is stopped, killed and started again: state survives, and nothing is left behind."""

import json
import signal
from pathlib import Path

import psutil
import pytest
import redis as redis_sync

from support.journeys import Caller
from support.platform import Platform, end, environment, start, wait_ready
from support.processes import processes_mentioning
from support.stores import Stores
from support.waiting import wait_until

pytestmark = pytest.mark.e2e


def assert_nothing_left(processes: list[psutil.Process], data_dir: Path) -> None:
    """No process that was ours runs, and none that names the folder."""
    wait_until(lambda: not [process for process in processes if _runs(process)], what="all of ours to be gone")
    wait_until(lambda: not processes_mentioning(str(data_dir)), what="nobody names the folder")


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def flush(platform: Platform) -> None:
    """Empty Redis, as if its disk had been lost."""
    settings = json.loads((platform.data_dir / "settings.json").read_bytes())
    with redis_sync.Redis.from_url(settings["redis_url"]) as client:
        client.flushall()


def test_state_survives_stops_a_lost_redis_and_a_killed_supervisor(short_path: Path) -> None:
    """One folder through its lives, because each start costs seconds."""
    data_dir = short_path / "data"
    platform = wait_ready(start(data_dir))
    try:
        with Caller.of(platform) as caller:
            caller.deploy("echo_sum")
            assert caller.answer("echo-sum", {"values": [1, 2]}) == 3
        key, ours = platform.admin_key, platform.tree()
        assert len(ours) >= 6, "valkey, weed, gateway, pool, zygote and an instance"
        flush(platform)
        assert platform.stop(signal.SIGINT) == 0
        assert_nothing_left(ours, data_dir)

        platform = wait_ready(start(data_dir))
        assert platform.admin_key == key
        with Caller.of(platform) as caller:
            assert caller.answer("echo-sum", {"values": [2, 2]}) == 4
        ours = platform.tree()
        platform.stop(signal.SIGKILL)
        assert [process for process in ours if _runs(process)], "the children outlive a killed supervisor"

        platform = wait_ready(start(data_dir))
        with Caller.of(platform) as caller:
            assert caller.answer("echo-sum", {"values": [3, 3]}) == 6
        ours += platform.tree()
        platform.process.send_signal(signal.SIGTERM)
        assert platform.stop(signal.SIGINT) == 0
        assert_nothing_left(ours, data_dir)
    finally:
        end(platform)


def test_a_stop_while_coming_up_leaves_nothing_behind(short_path: Path) -> None:
    platform = start(short_path / "data", "--simulate-gpus", "2x80", environ=environment())
    try:
        assert "GPUs are simulated (2x80)" in platform.wait_for("progress")["text"]
        wait_until(lambda: len(platform.tree()) >= 2, what="the first children")
        ours = platform.tree()
        assert platform.stop(signal.SIGTERM) == 0
        assert_nothing_left(ours, short_path / "data")
    finally:
        end(platform)


def test_a_platform_on_stores_of_ones_own(short_path: Path, stores: Stores) -> None:
    """No embedded store is started; the bucket is made; stopping leaves the stores running."""
    environ = environment(
        SAMOVAR_REDIS_URL=stores.redis_url,
        SAMOVAR_S3_ACCESS_KEY=stores.s3_access_key,
        SAMOVAR_S3_SECRET_KEY=stores.s3_secret_key,
    )
    flags = ("--s3-endpoint", stores.s3_endpoint, "--s3-bucket", stores.s3_bucket)
    platform = start(short_path / "data", *flags, environ=environ)
    try:
        with Caller.of(wait_ready(platform)) as caller:
            caller.deploy("echo_sum")
            assert caller.answer("echo-sum", {"values": [4, 4]}) == 8
        names = {process.name() for process in psutil.Process(platform.process.pid).children()}
        assert not [name for name in names if "valkey" in name or "weed" in name]
        assert platform.stop() == 0
        with redis_sync.Redis.from_url(stores.redis_url) as client:
            assert client.hexists("sv:functions", "echo-sum")
    finally:
        end(platform)
