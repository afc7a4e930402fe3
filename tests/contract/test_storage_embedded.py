"""The embedded servers: private files, loopback only, ports, and what a kill leaves behind."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import httpx
import psutil
import pytest

from samovar.errors import BadCredential, StoreUnavailable
from samovar.settings import Secret
from samovar_storage.embedded import EmbeddedSeaweed, EmbeddedValkey, folder
from samovar_storage.live import connect_sync
from samovar_storage.objects import ObjectStore
from samovar_storage.settings import StoreSettings
from support.processes import running, stop
from support.waiting import wait_until


def store_of(server: EmbeddedSeaweed, bucket: str = "kept") -> ObjectStore:
    return ObjectStore.from_settings(
        StoreSettings(
            s3_endpoint=server.endpoint,
            s3_bucket=bucket,
            s3_access_key=Secret(server.access_key),
            s3_secret_key=Secret(server.secret_key),
        )
    )


def test_what_holds_a_secret_is_private(services_dir: Path, valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed) -> None:
    for name in ("secrets.json", "valkey/valkey.conf", "seaweedfs/s3.json"):
        assert stat.S_IMODE((services_dir / name).stat().st_mode) == 0o600
    for secret in (valkey.redis_url.split(":")[2].split("@")[0], seaweed.secret_key):
        assert secret not in " ".join(valkey.command() + seaweed.command())
        assert secret not in " ".join([*valkey.environment().values(), *seaweed.environment().values()])


def test_nothing_listens_beyond_loopback(valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed) -> None:
    ours = {"valkey-server", "weed"}
    listening = [
        connection.laddr
        for process in psutil.Process().children()  # and none of a platform that other tests share
        if process.name() in ours
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {address.ip for address in listening} == {"127.0.0.1"}
    # SeaweedFS: S3, filer, master and volume server with their gRPC ports, and no Iceberg or Lance
    assert len({address.port for address in listening}) == 1 + 8


def test_without_the_password_nothing_is_answered(valkey: EmbeddedValkey, tmp_path: Path) -> None:
    stranger = EmbeddedValkey(tmp_path)
    stranger.port = valkey.port
    with pytest.raises(BadCredential):
        stranger.is_ready()


def test_the_ports_behind_s3_ask_for_a_signature(seaweed: EmbeddedSeaweed) -> None:
    store = store_of(seaweed, "signed")
    store.ensure_bucket()
    store.put("object", b"data")
    filer = f"http://{folder.HOST}:{seaweed._ports['filer']}/buckets/signed/object"
    assert httpx.get(filer).status_code == 401
    assert httpx.put(filer, content=b"forged").status_code == 401
    assert store.get("object")[0] == b"data"
    store.close()


def test_another_data_folders_s3_is_not_ours(seaweed: EmbeddedSeaweed, tmp_path: Path) -> None:
    stranger = EmbeddedSeaweed(tmp_path)
    stranger._ports["s3"] = seaweed.port
    with pytest.raises(BadCredential):
        stranger.is_ready()


def test_killed_servers_come_back_with_everything_on_the_same_ports(tmp_path: Path) -> None:
    valkey, seaweed = EmbeddedValkey(tmp_path), EmbeddedSeaweed(tmp_path)
    data = {f"key-{index}": b"%d" % index * 1000 for index in range(50)}
    with (
        running(valkey.command(), tmp_path / "valkey.log", valkey.environment()) as cache,
        running(seaweed.command(), tmp_path / "weed.log", seaweed.environment()) as weed,
    ):
        valkey.wait_ready(20)
        seaweed.wait_ready(60)
        with connect_sync(valkey.redis_url) as client:
            client.set("kept", "yes")
            client.wait(0, 0)
            # everysec: the append-only file has it after a second; the kernel has it before, and outlives the process
        store = store_of(seaweed)
        store.ensure_bucket()
        for key, value in data.items():
            store.put(key, value)
        store.close()
        for process in (cache, weed):
            process.kill()
            process.wait(60)
    again_valkey, again_seaweed = EmbeddedValkey(tmp_path), EmbeddedSeaweed(tmp_path)
    assert (again_valkey.redis_url, again_seaweed.endpoint) == (valkey.redis_url, seaweed.endpoint)
    with (
        running(again_valkey.command(), tmp_path / "valkey.log", again_valkey.environment()),
        running(again_seaweed.command(), tmp_path / "weed.log", again_seaweed.environment()) as weed,
    ):
        again_valkey.wait_ready(20)
        again_seaweed.wait_ready(30)
        with connect_sync(again_valkey.redis_url) as client:
            assert client.get("kept") == b"yes"
        store = store_of(again_seaweed)
        # S3 answers before the volume that was killed is back behind it
        wait_until(lambda: _is_readable(store, "key-0"), what="the volume is back")
        assert {key: store.get(key)[0] for key in data} == data
        store.put("after", b"still writable")
        store.close()
        stop(weed, again_seaweed.stop_grace_s)
        assert not again_seaweed.is_ready()


def test_a_port_taken_by_someone_else_is_left_to_them(tmp_path: Path) -> None:
    first = EmbeddedValkey(tmp_path).port
    assert EmbeddedValkey(tmp_path).port == first
    with socket.socket() as other:
        other.bind((folder.HOST, first))
        other.listen()
        assert not folder.is_free(first)
        assert EmbeddedValkey(tmp_path).port != first


def test_a_server_that_never_answers_is_said_in_time(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="Valkey did not answer within 0 s"):
        EmbeddedValkey(tmp_path).wait_ready(0.05)
    with pytest.raises(StoreUnavailable, match="SeaweedFS did not answer within 0 s"):
        EmbeddedSeaweed(tmp_path).wait_ready(0.05)


def _is_readable(store: ObjectStore, key: str) -> bool:
    try:
        store.get(key)
    except StoreUnavailable:
        return False
    return True
