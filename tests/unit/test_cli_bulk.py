"""A run over a file: how it is cut, what it remembers, what it has written, and how far it says it is."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from samovar.cli.bulk_progress import Meter, Pace, tally
from samovar.cli.bulk_results import Outcome, Results
from samovar.cli.bulk_state import Inputs, Sent, Uploaded, batch_size_of, new_head, open_ledger
from samovar.errors import Conflict, InvalidInput

_values = st.lists(st.none() | st.integers() | st.text() | st.dictionaries(st.text(), st.integers()), min_size=1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(_values, st.integers(1, 5) | st.none(), st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\n  \n"]), st.booleans())
def test_every_line_is_in_one_batch_in_order(
    tmp_path: Path, values: list[object], size: int | None, end: bytes, is_ended: bool
) -> None:
    file = tmp_path / "inputs.jsonl"
    file.write_bytes(end.join(json.dumps(value).encode() for value in values) + (end if is_ended else b""))
    inputs = Inputs(file, size)
    read = [json.loads(line) for batch in inputs.batches for line in inputs.read(batch)]
    assert read == values
    assert inputs.num_lines == len(values)
    assert all(size is None or len(batch.lines) <= size for batch in inputs.batches)
    text = file.read_bytes().split(b"\n")
    numbers = [number for batch in inputs.batches for number in batch.lines]
    assert [json.loads(text[number - 1]) for number in numbers] == values, "numbers are those of the file's lines"


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (b"", "has no line"),
        (b" \n\n", "has no line"),
        (b'{"a": 1}\n{"a":\n', "not JSON"),
        (b"{}\n\xff\n", "not JSON"),
        (b"\n\xef\xbb\xbf{}\n", "byte order mark"),
    ],
)
def test_a_file_that_is_no_list_of_inputs_is_refused_before_anything_is_sent(
    tmp_path: Path, content: bytes, detail: str
) -> None:
    file = tmp_path / "inputs.jsonl"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=detail) as refused:
        Inputs(file, 10)
    assert refused.value.extra.get("line", 2) == 2
    with pytest.raises(InvalidInput, match="cannot read"):
        Inputs(tmp_path / "nothing", 10)


def begun(tmp_path: Path, *values: object, batch_size: int = 2, **terms: object) -> tuple[Inputs, Path]:
    file, state = tmp_path / "inputs.jsonl", tmp_path / "out.state"
    file.write_text("".join(json.dumps(value) + "\n" for value in values))
    return Inputs(file, batch_size), state


def test_a_ledger_goes_on_under_the_same_name_with_what_was_noted(tmp_path: Path) -> None:
    inputs, state = begun(tmp_path, 1, 2, 3)
    assert batch_size_of(state) is None
    first = open_ledger(state, new_head("embed", inputs, 2, {"retries": 1}, None))
    first.note(Sent(batch=0, group="g", num_jobs=2))
    first.note(Uploaded(upload="u"))
    first.close()
    assert batch_size_of(state) == 2
    again = open_ledger(state, new_head("embed", inputs, 2, {"retries": 1}, None))
    assert again.head.run == first.head.run
    assert (again.sent, again.upload) == ({0: Sent(batch=0, group="g", num_jobs=2)}, "u")
    again.close()


def test_two_runs_do_not_write_at_once(tmp_path: Path) -> None:
    inputs, state = begun(tmp_path, 1)
    first = open_ledger(state, new_head("embed", inputs, 2, {}, None))
    with pytest.raises(Conflict, match="another run is at work"):
        open_ledger(state, new_head("embed", inputs, 2, {}, None))
    first.close()
    open_ledger(state, new_head("embed", inputs, 2, {}, None)).close()


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_note_that_was_cut_off_was_never_made(tmp_path: Path, cut: int) -> None:
    inputs, state = begun(tmp_path, 1, 2, 3)
    head = new_head("embed", inputs, 2, {}, None)
    ledger = open_ledger(state, head)
    ledger.note(Sent(batch=0, group="a", num_jobs=2))
    whole = state.stat().st_size
    ledger.note(Sent(batch=1, group="b", num_jobs=1))
    ledger.close()
    content = state.read_bytes()
    state.write_bytes(content[: max(whole, len(content) - cut)])
    again = open_ledger(state, new_head("embed", inputs, 2, {}, None))
    assert again.sent.keys() == {0}
    again.note(Sent(batch=1, group="c", num_jobs=1))
    again.close()
    last = open_ledger(state, head)
    assert last.sent[1].group == "c"
    last.close()


def test_a_ledger_that_cannot_be_written_is_no_bug_of_ours(tmp_path: Path) -> None:
    inputs, _ = begun(tmp_path, 1)
    with pytest.raises(InvalidInput, match="cannot write"):
        open_ledger(tmp_path / "nowhere" / "out.state", new_head("embed", inputs, 2, {}, None))


def test_a_head_that_was_cut_off_begins_anew(tmp_path: Path) -> None:
    inputs, state = begun(tmp_path, 1)
    state.write_bytes(b'{"run": "half')
    ledger = open_ledger(state, head := new_head("embed", inputs, 2, {}, None))
    assert ledger.head == head
    ledger.close()


def test_a_ledger_of_something_else_is_refused(tmp_path: Path) -> None:
    inputs, state = begun(tmp_path, 1, 2)
    open_ledger(state, new_head("embed", inputs, 2, {}, None)).close()
    other, _ = begun(tmp_path, 1, 3)
    for head, what in (
        (new_head("embed", other, 2, {}, None), "the file's content"),
        (new_head("other", inputs, 2, {}, None), "function"),
        (new_head("embed", inputs, 2, {"retries": 9}, {"function": "join"}), "the options, reduce"),
    ):
        with pytest.raises(InvalidInput, match=f"differs in {what}: --restart"):
            open_ledger(state, head)
    state.write_bytes(b"tea\n")
    with pytest.raises(InvalidInput, match="is damaged"):
        open_ledger(state, new_head("embed", inputs, 2, {}, None))
    state.write_bytes(b'{"tea": 1}\n')
    with pytest.raises(InvalidInput, match="is no state of ours"):
        open_ledger(state, new_head("embed", inputs, 2, {}, None))


def written(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_results_are_written_once_and_end_up_in_order(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    results = Results(path)
    results.add([Outcome(line=3, job="c", result=None), Outcome(line=4, job="d", error={"code": "x"})])
    results.close()
    with path.open("ab") as file:
        file.write(b'{"line":1,"job":"a","resu')  # killed while it wrote
    again = Results(path)
    assert (again.lines, dict(again.counts)) == ({3, 4}, {"finished": 1, "failed": 1})
    again.add([Outcome(line=3, job="c", result=7), Outcome(line=1, job="a", result={"error": 1})])
    again.finish()
    assert [line["line"] for line in written(path)] == [1, 3, 4]
    assert written(path)[1] == {"line": 3, "job": "c", "result": None}
    last = Results(path)
    last.close()
    assert last.counts == {"finished": 2, "failed": 1}
    path.write_text('{"sum": 3}\n')
    with pytest.raises(InvalidInput, match="not a result of ours"):
        Results(path)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    pace = Pace()
    assert pace.rate(0.0, 0) == 0.0
    assert pace.rate(10.0, 100) == 10.0
    for at_s in range(20, 101, 10):
        pace.rate(at_s, 100)
    assert pace.rate(110.0, 400) == pytest.approx(15.0, abs=6)


def test_counts_are_said_shortly() -> None:
    counts = {"queued": 8736, "started": 64, "failed": 0, "finished": 1200}
    assert tally(counts, 210.4, 8800) == "64 running, 8,736 queued, 210/s, 42s left"
    assert tally({}, 0.0, 5) == ""


def test_without_a_terminal_a_line_is_said_now_and_then() -> None:
    out, now = io.StringIO(), iter([0.0, 1.0, 5.1, 6.0])
    with Meter(Console(file=out, width=200), "embed", 10, True, now=lambda: 100.0 + next(now)) as meter:
        for num_done in (0, 1, 2, 10):
            meter.show(num_done, {"queued": 10 - num_done}, "an instance is starting" if num_done < 2 else "")
    lines = out.getvalue().splitlines()
    assert lines[0].endswith("10 queued: an instance is starting")
    assert [line.split(",")[0] for line in lines] == [
        "embed: 0 of 10 (0%)",
        "embed: 2 of 10 (20%)",
        "embed: 10 of 10 (100%)",
    ]


def test_on_a_terminal_a_bar_is_drawn() -> None:
    out = io.StringIO()
    with Meter(Console(file=out, width=80, force_terminal=True), "embed", 10, True) as meter:
        meter.show(10, {"failed": 2})
    assert "10/10" in out.getvalue()
    assert "2 failed" in out.getvalue()
    silent = io.StringIO()
    with Meter(Console(file=silent), "embed", 10, False) as meter:
        meter.show(3, {})
    assert silent.getvalue() == ""
