"""What the gateway refuses to make a version of, whatever the client says."""

from typing import Any

import msgspec
import pytest

from samovar.errors import DeployRefused
from samovar.policies import MAX_VALUE_BYTES, Cache, Cached, Fallback
from samovar.spec import BatchSpec, BlobRef, FileRef, Manifest, Resources, Scaling
from samovar_gateway.admin.manifests import blobs_of, check_manifest, warnings_of, warnings_of_place
from samovar_storage.records import DeviceStatus, NodeStatus

SHA = "a" * 64
OTHER = "b" * 64


def manifest(**changes: Any) -> Manifest:
    good = Manifest(
        name="embed",
        version=0,
        entry="app:Embed",
        kind="class",
        handler="sync",
        code=BlobRef(sha256=SHA, size_bytes=10),
        weights=[FileRef(path="model/model.safetensors", sha256=OTHER, size_bytes=5)],
        requirements=["tabulate>=0.9"],
        batch=BatchSpec(),
    )
    return msgspec.structs.replace(good, **changes)


def weight(path: str, **changes: Any) -> list[FileRef]:
    return [msgspec.structs.replace(FileRef(path=path, sha256=OTHER, size_bytes=5), **changes)]


def test_a_good_manifest_passes() -> None:
    check_manifest("embed", manifest())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"version": 1}, "send version 0"),
        ({"name": "other"}, "the manifest is for 'other'"),
        ({"format": 2}, "manifest format 2"),
        ({"entry": "app"}, "not module:attribute"),
        ({"entry": "app:Embed\n"}, "not module:attribute"),
        ({"hedge_after": "soon"}, "write a percentile such as 'p95'"),
        ({"entry": "app:f; import os"}, "not module:attribute"),
        ({"entry": "../app:f"}, "not module:attribute"),
        ({"code": BlobRef(sha256="A" * 64, size_bytes=1)}, "not a SHA-256"),
        ({"code": BlobRef(sha256=SHA, size_bytes=0)}, "code archive has 0 bytes"),
        ({"code": BlobRef(sha256=SHA, size_bytes=2**40)}, "code archive has"),
        ({"batch": BatchSpec(max_size=0)}, "max_size >= 1"),
        ({"batch": BatchSpec(max_wait_ms=-1)}, "max_wait_ms >= 0"),
        ({"batch": BatchSpec(max_cost=0)}, "max_cost > 0"),
        ({"handler": "generator"}, "cannot be batched"),
        ({"weights": weight("../x.safetensors")}, "must be relative"),
        ({"weights": weight("/etc/passwd")}, "must be relative"),
        ({"weights": weight("a//b")}, "must be relative"),
        ({"weights": weight("")}, "must be relative"),
        ({"weights": weight("a\\b")}, "must be relative"),
        ({"weights": weight("x", sha256="zz")}, "not a SHA-256"),
        ({"weights": weight("x", size_bytes=-1)}, "negative size"),
        ({"weights": weight("x") + weight("x")}, "listed twice"),
        ({"weights": weight("pytorch_model.bin")}, "unpickling runs whatever code"),
        ({"weights": weight("deep/M.PT")}, "unpickling"),
        ({"requirements": ["--index-url http://evil"]}, "options are not allowed"),
        ({"requirements": ["a\nb"]}, "not a requirement"),
        ({"requirements": [" "]}, "not a requirement"),
        ({"fallback": Fallback(function="embed")}, "cannot stand in for itself"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DeployRefused, match=sentence):
        check_manifest("embed", manifest(**changes))


def test_what_may_not_be_meant_is_a_warning() -> None:
    to_other = manifest(fallback=Fallback(function="other"))
    assert warnings_of(to_other, ["other"]) == warnings_of(manifest(), []) == []
    assert "no function 'other' yet" in warnings_of(to_other, ["embed"])[0]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"handler": "generator", "cache": Cache(ttl_s=1)}, "its cache or cached fallback has no effect"),
        ({"handler": "generator", "fallback": Fallback(cached=Cached())}, "its cache or cached fallback has no effect"),
        ({"handler": "async_generator", "hedge_after": "p95"}, "no effect on a generator"),
        ({"hedge_after": "p95", "retry_on_crash": False}, "no effect with retry_on_crash=False"),
        ({"hedge_after": "p95", "scaling": Scaling(max_instances=1)}, "no effect with one instance"),
    ],
)
def test_what_has_no_effect_is_a_warning(changes: dict[str, Any], sentence: str) -> None:
    assert [sentence in warning for warning in warnings_of(manifest(**changes), [])] == [True]
    assert warnings_of(manifest(hedge_after="p95", cache=Cache(ttl_s=1)), []) == []


def node(num_gpus: int) -> NodeStatus:
    status = NodeStatus(
        node="a",
        blanks=0,
        blank_target=0,
        instances=0,
        memory_budget_bytes=1,
        memory_used_bytes=0,
        devices=[],
        at_s=0.0,
    )
    device = DeviceStatus(device="cuda:0", name="any", memory_bytes=1, free_bytes=1)
    return msgspec.structs.replace(status, devices=[device] * num_gpus)


@pytest.mark.parametrize(
    ("num_gpus", "nodes", "sentence"),
    [
        (0, [0], None),
        (1, [0, 1], None),
        (1, [], None),  # nobody was heard of yet: nothing is known
        (1, [0, 0], "needs 1 GPU, and of the nodes none has any"),
        (4, [0, 2], "needs 4 GPUs, and of the nodes the largest has 2"),
    ],
)
def test_what_no_node_has_is_told_when_it_is_deployed(num_gpus: int, nodes: list[int], sentence: str | None) -> None:
    wanted = manifest(resources=Resources(gpus=num_gpus))
    found = warnings_of_place(wanted, [node(count) for count in nodes])
    assert len(found) == (sentence is not None)
    assert sentence is None or sentence in found[0]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({1, 2}, "must be JSON"),
        (float("nan"), "must be JSON"),
        (b"tea", "must be JSON"),
        ("x" * MAX_VALUE_BYTES, "at most"),
    ],
)
def test_a_fallback_value_is_a_small_piece_of_json(value: Any, sentence: str) -> None:
    with pytest.raises(DeployRefused, match=sentence):
        Fallback(value=value)


@pytest.mark.parametrize("name", ["", "Embed", "-a", "a-", "a" * 64, "a/b", "a.b", "é"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(DeployRefused, match="function name"):
        check_manifest(name, manifest(name=name))


def test_pickle_passes_when_it_is_allowed() -> None:
    check_manifest("embed", manifest(allow_pickle=True, weights=weight("pytorch_model.bin")))


def test_a_blob_used_twice_is_needed_once() -> None:
    twice = weight("a", sha256=SHA, size_bytes=10) + weight("b", sha256=OTHER)
    assert [blob.sha256 for blob in blobs_of(manifest(weights=twice))] == [SHA, OTHER]
