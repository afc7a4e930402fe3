"""Boots that fail, in every way, beside boots that work; logs of user code; layers; templates."""

from __future__ import annotations

from pathlib import Path

import pytest

from samovar_storage.blobs import blob_key
from support.pool import Pool, alive, call, make_wheel, quick_scaling

pytestmark = pytest.mark.process


def test_failing_boots_back_off_tell_the_real_error_and_leave_others_alone(pool: Pool) -> None:
    raises, dies = pool.deploy("raises_in_load").ref, pool.deploy("dies_in_load").ref
    missing = pool.deploy("echo_sum", weights={"w.bin": b"weights"}, name="no-weights")
    pool.store.delete(blob_key(missing.weights[0].sha256))
    good = pool.deploy("echo_sum", scaling=quick_scaling()).ref
    for ref in (raises, dies, missing.ref, good):
        pool.demand(ref)
    pool.ready(good)
    failure = pool.until(lambda: pool.boot_failure(raises))
    assert (failure.code, failure.status, failure.phase) == ("load_failed", 500, "load")
    assert "RuntimeError: the kettle is empty" in failure.detail and "app.py:" in failure.detail
    assert any("the kettle is empty" in line for line in failure.log_tail)
    failure = pool.until(lambda: pool.boot_failure(dies))
    assert "exit code 7" in failure.detail and "about to die" in failure.log_tail
    failure = pool.until(lambda: pool.boot_failure(missing.ref))
    assert (failure.code, failure.status) == ("weights_missing", 503) and "w.bin" in failure.detail
    failure = pool.until(lambda: (f := pool.boot_failure(raises)) and f.num_failures >= 3 and f, what="it tries again")
    assert failure.retry_at_s - failure.failed_at_s == pytest.approx(2 ** (failure.num_failures - 1), abs=0.5)
    assert "boot_failed" in [decision.action for decision in pool.decisions("raises-in-load")]
    pool.until(lambda: "about to die" in [line.line for line in pool.logs("dies-in-load")])


def test_logs_of_user_code_are_shipped_with_their_instance(pool: Pool) -> None:
    ref = pool.deploy("prints", scaling=quick_scaling()).ref
    pool.demand(ref)
    (record,) = pool.ready(ref)
    lines = pool.until(lambda: len(lines := pool.logs("prints")) >= 2 and lines, what="lines")[:2]
    other, line = sorted(lines, key=lambda line: line.stream)  # each stream is in order, two are read apart
    assert (line.stream, other.stream, other.line) == ("stdout", "stderr", "and complained")
    assert (line.line, line.ref, line.instance) == ("loaded on cpu", ref, record.instance_id)
    pool.demand(ref, 0)
    pool.until(lambda: not (pool.data_dir / "instances" / record.instance_id).exists(), what="its folder is removed")


def test_a_template_is_made_off_the_path_and_further_instances_are_its_forks(pool: Pool) -> None:
    ref = pool.deploy("prints", name="templated", scaling=quick_scaling(max_instances=3)).ref
    pool.demand(ref)
    (first,) = pool.ready(ref)
    assert not first.from_template
    pool.demand(ref, 0)
    pool.until(lambda: (s := pool.status(ref)) and s.templates == 1 and s.ready == 0, what="a template")
    assert pool.instances(ref) == [], "a template is not published"
    pool.demand(ref, 3)
    forked = pool.ready(ref, 3)
    assert all(record.from_template for record in forked)
    pool.kill()
    pool.start(wait_ready=False)
    pool.until(lambda: "adopted" in pool.log() and (s := pool.status(ref)) and s.templates == 1, what="adopted too")
    pool.registry.delete_function("templated")
    pool.until(lambda: not any(alive(record.pid) for record in forked), what="all leave with the function")
    pool.until(lambda: all(note.kind != "template" for note in pool.notes()), what="so does the template")


LEARNS = """
import samovar as sv
from transformers import hf_argparser


@sv.function(name="learns")
def f(x: str) -> str:
    return hf_argparser.__name__
"""


def source(name: str, module: str) -> str:
    decorated = f"@sv.function(name={name!r})\ndef f(x: str) -> str:\n    return {module}.X\n"
    return f"import samovar as sv\nimport {module}\n\n\n{decorated}"


def test_requirements_become_a_layer_and_a_conflict_gets_a_zygote_of_its_own(pool: Pool, tmp_path: Path) -> None:
    """The second wheel pretends to be another version of what every zygote imports."""
    teapot = make_wheel(tmp_path, "teapot_lib", "1.0", "X = 'brown'\n")
    other = make_wheel(tmp_path, "safetensors", "99.0", "X = '99'\n__version__ = '99.0'\n")
    layered = pool.write_unchecked("layered", source("layered", "teapot_lib"), [f"teapot-lib @ file://{teapot}"]).ref
    own = pool.write_unchecked("own", source("own", "safetensors"), [f"safetensors @ file://{other}"]).ref
    broken = pool.write_unchecked("broken", source("broken", "nothing"), ["nothing @ file:///nowhere.whl"]).ref
    for ref in (layered, own, broken):
        pool.demand(ref)
    (record,) = pool.ready(layered, timeout_s=60)
    assert call(record, b'{"x": ""}') == b'"brown"'
    failure = pool.until(lambda: pool.boot_failure(broken))
    assert failure.code == "load_failed" and "requirements" in failure.detail and failure.log_tail
    (record,) = pool.ready(own, timeout_s=60)
    assert call(record, b'{"x": ""}') == b'"99"'
    assert len([note for note in pool.notes() if note.kind == "zygote"]) == 2


def test_modules_of_transformers_are_learned_and_blanks_renewed(pool: Pool) -> None:
    before = {record.instance_id for record in pool.until(lambda: pool.in_state("blank"))}
    ref = pool.write_unchecked("learns", LEARNS, []).ref
    pool.demand(ref)
    (record,) = pool.ready(ref)
    assert call(record, b'{"x": ""}') == b'"transformers.hf_argparser"'
    learned = pool.data_dir / "learned-modules.json"
    pool.until(lambda: learned.exists() and "transformers.hf_argparser" in learned.read_text(), what="it is learned")
    pool.until(lambda: not before & {r.instance_id for r in pool.in_state("blank")}, what="older blanks are renewed")
