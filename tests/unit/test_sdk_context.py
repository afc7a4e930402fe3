"""The context of a call: how handlers ask for it, what tests call them with, and how what is said is bounded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samovar as sv
from samovar import wire
from samovar.authoring import definition_of
from samovar.errors import Cancelled, DeadlineExceeded, DeployRefused
from samovar.schema import input_schema
from samovar_instance.calls import Call, Kind
from samovar_instance.contexts import MAX_LINES_PER_S, LineQuota, context_of, cut
from samovar_instance.invoker import Invoker
from samovar_instance.mailbox import Mailbox


@dataclass
class Item:
    text: str


def last(text: str, ctx: sv.Context) -> Any: ...
def first(context: sv.Context, text: str, n: int = 3) -> Any: ...
def middle(text: str, c: sv.Context, n: int = 3) -> Any: ...
def optional(text: str, ctx: sv.Context | None = None) -> Any: ...
def only(ctx: sv.Context) -> Any: ...
def body(item: Item, ctx: sv.Context) -> Any: ...
async def coroutine(text: str, ctx: sv.Context) -> Any: ...
def generator(text: str, ctx: sv.Context) -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("handler", "at", "fields"),
    [
        (last, 1, {"text"}),
        (first, 0, {"text", "n"}),
        (middle, 1, {"text", "n"}),
        (optional, 1, {"text"}),
        (only, 0, set()),
        (body, 1, {"text"}),
        (coroutine, 1, {"text"}),
        (generator, 1, {"text"}),
    ],
)
def test_a_context_is_no_part_of_what_clients_send(handler: Callable[..., Any], at: int, fields: set[str]) -> None:
    definition = definition_of(sv.function(handler))
    assert definition.signature.context_at == at
    assert input_schema(definition)["properties"].keys() == fields


def test_each_parameter_gets_what_is_its() -> None:
    @sv.function
    def told(text: str, ctx: sv.Context, n: int = 3) -> list[Any]:
        return [text, ctx.job_id, n]

    invoker = Invoker(definition_of(told), told)
    assert invoker.takes_context
    assert invoker.answer(b'{"text": "tea"}', sv.Context(job_id="j")) == b'["tea","j",3]'
    assert invoker.answer(b'{"text": "tea", "n": 4}') == b'["tea","",4]', "what is no call has a blank one"


@pytest.mark.parametrize("hint", ["list[sv.Context]", "list[sv.Context] | None"])
def test_a_batch_has_a_context_for_each_item(hint: str) -> None:
    def embed(ctxs: list[sv.Context], text: list[str]) -> list[str]:
        return [text + context.job_id for context, text in zip(ctxs, text, strict=True)]

    embed.__annotations__["ctxs"] = hint
    invoker = Invoker(definition_of(sv.function(batch=sv.Batch())(embed)), embed)
    contexts = [sv.Context(job_id=name) for name in "ab"]
    assert invoker.decode(b'{"text": "x"}') == "x"
    assert invoker.outputs(["x", "y"], lambda _: None, contexts) == ["xa", "yb"]
    assert invoker.outputs(["x", "y"], lambda _: None) == ["x", "y"]


def two(text: str, a: sv.Context, b: sv.Context) -> Any: ...
def untyped(text: str, ctx) -> Any: ...  # type: ignore[no-untyped-def]
def listed(text: str, ctx: list[sv.Context]) -> Any: ...
def single(text: list[str], ctx: sv.Context) -> Any: ...
def nested(text: str, ctx: dict[str, sv.Context]) -> Any: ...
def crowd(text: list[str], n: list[int], ctx: list[sv.Context]) -> Any: ...


@pytest.mark.parametrize(
    ("handler", "batch", "message"),
    [
        (two, None, "has one context, this one asks for a and b"),
        (untyped, None, "'ctx' needs a type hint, such as sv.Context"),
        (listed, None, r"write ctx: sv\.Context"),
        (single, sv.Batch(), r"context of each item: write ctx: list\[sv\.Context\]"),
        (crowd, sv.Batch(), r"one list of items, beside which only list\[sv\.Context\]"),
    ],
)
def test_a_wrong_context_is_refused_with_its_remedy(handler: Any, batch: sv.Batch | None, message: str) -> None:
    with pytest.raises(DeployRefused, match=message) as refused:
        definition_of(sv.function(batch=batch)(handler))
    assert refused.value.extra["line"] > 0


def test_a_context_inside_something_else_cannot_be_read_from_json() -> None:
    with pytest.raises(TypeError, match="Context cannot be read from JSON"):
        input_schema(definition_of(sv.function(nested)))


def test_a_handler_can_be_called_in_a_test_of_its_own() -> None:
    ctx = sv.Context()
    assert (ctx.job_id, ctx.attempt, ctx.token, ctx.request_id) == ("", 1, 0, "")
    assert math.isinf(ctx.remaining_s) and not ctx.cancelled
    ctx.progress(0.5, "half")
    ctx.raise_if_cancelled()
    ctx.cancel()
    assert ctx.cancelled
    with pytest.raises(Cancelled):
        ctx.raise_if_cancelled()


def test_a_deadline_that_passed_is_seen_without_being_told() -> None:
    ctx = sv.Context(deadline=time.monotonic() - 1)
    assert ctx.cancelled and ctx.remaining_s == 0
    with pytest.raises(DeadlineExceeded):
        ctx.raise_if_cancelled()
    assert 0 < sv.Context(deadline=time.monotonic() + 5).remaining_s <= 5


def test_what_is_logged_is_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    sv.Context().log("one\ntwo")
    assert capsys.readouterr().out == "one\ntwo\n"


@pytest.mark.parametrize("wrong", [float("nan"), "0.5?", None])
def test_progress_is_a_number(wrong: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        sv.Context().progress(wrong)


# ---- on an instance ------------------------------------------------------------------------------------------------


def call_of(job: wire.JobTag | None) -> tuple[Mailbox, Call]:
    return Mailbox(), Call(cast(Any, None), wire.Invoke(1, b"", 1000.0, job=job, request_id="r"), time.monotonic())


def test_progress_rings_once_until_it_is_taken_and_the_newest_counts() -> None:
    mailbox, call = call_of(wire.JobTag("j", 1, 1))
    context = context_of(mailbox, call)
    assert context is context_of(mailbox, call), "one for each call"
    for fraction in (-1.0, 0.2, 7.0):
        context.progress(fraction, "x" * 5000)
    assert [kind for kind, _, _ in mailbox.collect()] == [Kind.PROGRESS]
    assert context.take() == wire.Progress(1, 1.0, "x" * 1024)
    assert context.take() is None
    context.progress(0.3)
    assert len(mailbox.collect()) == 1 and context.take() == wire.Progress(1, 0.3)
    context.close()
    context.progress(0.4)
    context.log("late")
    assert not mailbox.collect()


def test_nobody_listens_to_an_invocation() -> None:
    mailbox, call = call_of(None)
    context = context_of(mailbox, call)
    context.progress(0.5)
    context.log("tea")
    assert not mailbox.collect() and context.request_id == "r"
    call.is_cancelled = True
    assert context.cancelled


@given(st.lists(st.floats(0, 3), max_size=600))
def test_of_each_second_so_many_lines_pass_and_the_others_are_counted(gaps_s: list[float]) -> None:
    quota, now_s, passed = LineQuota(), 0.0, []
    for gap_s in gaps_s:
        now_s += gap_s / 50
        if quota.take(now_s):
            passed.append(int(now_s))
    assert all(passed.count(second) <= MAX_LINES_PER_S for second in set(passed))
    assert len(passed) + quota.num_dropped == len(gaps_s)
    assert bool(quota.excuse()) is (len(passed) < len(gaps_s)) and quota.excuse() == ""


@given(st.text(st.characters(), max_size=50), st.integers(0, 40))
def test_a_cut_is_valid_text_of_at_most_so_many_bytes(text: str, max_bytes: int) -> None:
    kept = cut(text, max_bytes)
    assert len(kept.encode()) <= max_bytes
    assert max_bytes < len(text.encode(errors="backslashreplace")) or kept.encode() == text.encode(
        errors="backslashreplace"
    )


def test_half_a_character_is_written_out() -> None:
    assert cut("\ud800", 10) == "\\ud800"
