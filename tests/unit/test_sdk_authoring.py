"""What authors write: options, signatures, and what is refused."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pytest

import samovar as sv
from samovar.authoring import default_name, definition_of
from samovar.errors import DeployRefused

# what a type checker would refuse is typed all the same
untyped: Any = sv


@dataclass
class Item:
    text: str
    weight: float = 1.0


class Embedding(TypedDict):
    embedding: list[float]


class Shape(msgspec.Struct, tag=True):
    sides: int


def test_a_function_keeps_working_and_says_how_it_is_called() -> None:
    @sv.function
    def count_words(text: str, least: int = 1) -> int:
        return len([word for word in text.split() if len(word) >= least])

    definition = definition_of(count_words)
    assert count_words("tea is ready", 3) == 2
    assert (definition.name, definition.kind, definition.handler) == ("count-words", "function", "sync")
    assert definition.signature.fields == ("text", "least")
    assert definition.output_type is int
    assert definition.file == __file__


def test_a_class_carries_options_from_the_decorator_and_from_its_body() -> None:
    @sv.function(name="embed", batch=sv.Batch(max_size=4), requirements=["rapidfuzz>=3"], retry_on_crash=False)
    class Embed:
        limits = sv.Limits(timeout_s=3)

        def __call__(self, text: list[str]) -> list[Embedding | Exception]:
            return [{"embedding": []} for _ in text]

        def check(self) -> None: ...

    definition = definition_of(Embed)
    assert definition.batch == sv.Batch(max_size=4)
    assert definition.limits.timeout_s == 3
    assert definition.requirements == ("rapidfuzz>=3",)
    assert definition.has_check
    assert not definition.retry_on_crash
    assert definition.output_type is Embedding, "exceptions that stand for failed items are no part of the answer"


def test_a_subclass_is_not_deployable_by_inheritance() -> None:
    @sv.function
    class Base:
        def __call__(self, text: str) -> str:
            return text

    class Child(Base): ...

    with pytest.raises(DeployRefused, match="not decorated"):
        definition_of(Child)


def sync(a: int) -> int:
    return a


async def coroutine(a: int) -> int:
    return a


def generator(a: int) -> Iterator[int]:
    yield a


async def async_generator(a: int) -> AsyncIterator[int]:
    yield a


@pytest.mark.parametrize(
    ("handler", "kind"),
    [(sync, "sync"), (coroutine, "async"), (generator, "generator"), (async_generator, "async_generator")],
)
def test_the_kind_is_seen_through_decorators(handler: Callable[..., Any], kind: str) -> None:
    @functools.wraps(handler)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return handler(*args, **kwargs)

    definition = definition_of(sv.function(wrapped))
    assert definition.handler == kind
    assert definition.output_type is int


def whole_dataclass(item: Item) -> None: ...
def whole_dict(body: dict[str, Any]) -> None: ...
def whole_typed_dict(body: Embedding) -> None: ...
def whole_struct(body: Shape) -> None: ...
def whole_optional(body: Item | None) -> None: ...
def one_field(numbers: list[float]) -> None: ...
def one_default(text: str = "tea") -> None: ...
def object_beside_another(item: Item, n: int) -> None: ...
def nothing() -> None: ...


@pytest.mark.parametrize(
    ("handler", "style"),
    [
        (whole_dataclass, "body"),
        (whole_dict, "body"),
        (whole_typed_dict, "body"),
        (whole_struct, "body"),
        (whole_optional, "body"),
        (one_field, "fields"),
        (one_default, "fields"),
        (object_beside_another, "fields"),
        (nothing, "fields"),
    ],
)
def test_one_object_is_the_body_and_everything_else_are_its_fields(handler: Callable[..., Any], style: str) -> None:
    assert definition_of(sv.function(handler)).input_style == style


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sv.Batch(max_size=0), "max_size"),
        (lambda: sv.Batch(max_wait_ms=-1), "max_wait_ms"),
        (lambda: sv.Batch(cost=len), "belong together"),
        (lambda: sv.Batch(cost=len, max_cost=0), "max_cost"),
        (lambda: sv.Scaling(min_instances=2, max_instances=1), "min_instances"),
        (lambda: untyped.function(name=7), "name= takes a str"),
        (lambda: untyped.function(resources=sv.Limits()), "resources= takes sv.Resources"),
        (lambda: sv.function(limits=untyped.Limits(max_queue=1.5)), "Limits: Expected `int`"),
        (lambda: untyped.Limits(timeout_s="2"), "timeout_s is a number"),
        (lambda: sv.Limits(timeout_s=float("inf")), "timeout_s is a number"),
        (lambda: untyped.Limits(timeout_s=True), "timeout_s is a number"),
        (lambda: untyped.Limits(rate=20), "not a rate"),
        (lambda: sv.Limits(rate="20/s\n"), "not a rate"),
        (lambda: sv.Limits(rate="0/s"), "not a rate"),
        (lambda: sv.Limits(rate="9999999/s"), "out of range"),
        (lambda: sv.Limits(rate="0.0001/h"), "out of range"),
        (lambda: sv.Limits(burst=5), "needs its rate"),
        (lambda: untyped.Limits(rate="5/s", burst="9"), "a burst is 1 to"),
        (lambda: sv.Limits(rate_per_key="5/s", burst_per_key=10**9), "a burst is 1 to"),
        (lambda: untyped.Scaling(min_instances="1"), "min_instances"),
        (lambda: untyped.Resources(memory_gib="2"), "are numbers"),
        (lambda: untyped.Cached(max_stale_s="1h"), "max_stale_s is a number"),
        (lambda: sv.Cached(max_stale_s=float("inf")), "max_stale_s is a number"),
        (lambda: untyped.Cached(key="$.text"), "key is a list of JSON paths"),
        (lambda: sv.Cached(key=["text"]), "not a path into JSON"),
        (lambda: untyped.Cache(ttl_s=None), "ttl_s is a number"),
        (lambda: sv.function(cache=untyped.Cache(ttl_s=5, shared="yes")), "Cache: Expected `bool`"),
        (lambda: untyped.Speculation("prompt_lookup"), '"prompt-lookup" or "draft-model"'),
        (lambda: sv.Speculation("draft-model"), 'belongs to "draft-model"'),
        (lambda: sv.Speculation("prompt-lookup", folder="small"), 'belongs to "draft-model"'),
        (lambda: sv.Speculation("draft-model", folder="../small"), "within the weights"),
        (lambda: sv.Speculation("draft-model", folder="/small"), "within the weights"),
        (lambda: untyped.Speculation("draft-model", folder=3), "within the weights"),
        (lambda: sv.Speculation("draft-model", folder="small", match_tokens=(4,)), 'belongs to "prompt-lookup"'),
        (lambda: sv.Speculation("prompt-lookup", match_tokens=()), "match_tokens"),
        (lambda: sv.Speculation("prompt-lookup", match_tokens=(3, 5)), "largest first"),
        (lambda: sv.Speculation("prompt-lookup", match_tokens=(33,)), "1 to 32"),
        (lambda: untyped.Speculation("prompt-lookup", match_tokens=3), "match_tokens"),
        (lambda: sv.Speculation("prompt-lookup", max_drafts=0), "max_drafts"),
        (lambda: untyped.Speculation("prompt-lookup", max_drafts=2.5), "max_drafts"),
        (lambda: sv.Speculation("prompt-lookup", min_gain=0.5), "min_gain"),
        (lambda: sv.Speculation("prompt-lookup", max_loss=0), "max_loss"),
        (lambda: sv.Speculation("prompt-lookup", max_loss=float("nan")), "max_loss"),
        (lambda: untyped.function(speculation="prompt-lookup"), "speculation= takes sv.Speculation"),
        (lambda: sv.Fallback(), "give cached, version"),
        (lambda: untyped.Fallback(cached=True), "cached takes sv.Cached"),
        (lambda: untyped.Fallback(version="prev"), 'version is "previous"'),
        (lambda: untyped.Fallback(version=True), 'version is "previous"'),
        (lambda: untyped.Fallback(function=3), "cannot be a function's name"),
        (lambda: sv.Fallback(function="small\n"), "cannot be a function's name"),
        (lambda: untyped.Breaker(error_rate="half"), "error_rate and slow_rate are numbers"),
        (lambda: sv.Breaker(slow_call_s=float("nan")), "slow_call_s is a number"),
        (lambda: sv.Breaker(open_s=100.0), "open_s <= max_open_s"),
        (lambda: untyped.Log(redact="$.a"), "redact is a list of JSON paths"),
        (lambda: sv.function(log=untyped.Log(payload="all")), "Log: Invalid enum value 'all'"),
        (lambda: sv.function(hedge_after="p0"), "write a percentile"),
        (lambda: sv.function(hedge_after="0.0ms"), "write a percentile"),
        (lambda: untyped.function(hedge_after=50), "hedge_after= takes a str"),
        (lambda: untyped.function(requirements="torch"), "list of strings"),
        (lambda: sv.function(requirements=["--index-url=http://x"]), "not a pip requirement"),
        (lambda: untyped.function(colour="red"), "no option 'colour'"),
    ],
)
def test_wrong_options_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(DeployRefused, match=message):
        made = make()
        made(sync)


class Answers:
    def load(self, weights: Path, device: str) -> None: ...

    def __call__(self, text: str) -> str:
        return text


class Drafts(Answers):
    takes_speculation = True


def test_drafts_are_part_of_how_models_are_run() -> None:
    drafts = sv.Speculation("prompt-lookup", match_tokens=(4, 2), max_drafts=8)
    definition = definition_of(sv.function(task="text-generation", speculation=drafts)(type("Chat", (Drafts,), {})))
    assert definition.acceleration.speculation == drafts
    assert msgspec.json.decode(msgspec.json.encode(drafts), type=sv.Speculation) == drafts


@pytest.mark.parametrize(
    ("target", "task", "drafts", "message"),
    [
        (Drafts, "embeddings", sv.Speculation("prompt-lookup"), "this one is 'embeddings'"),
        (Drafts, None, sv.Speculation("prompt-lookup"), 'is for task="text-generation"$'),
        (Answers, "text-generation", sv.Speculation("prompt-lookup"), "no other one drafts"),
        (Drafts, "text-generation", sv.Speculation("draft-model", folder="small"), "a folder within the weights"),
    ],
)
def test_drafts_are_for_who_makes_use_of_them(
    target: type, task: str | None, drafts: sv.Speculation, message: str
) -> None:
    with pytest.raises(DeployRefused, match=message):
        definition_of(sv.function(task=task, speculation=drafts)(type("Chat", (target,), {})))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("MiniLM", "mini-lm"), ("my_model", "my-model"), ("EchoSum", "echo-sum"), ("embed", "embed"), ("_x_", "x")],
)
def test_default_names(name: str, expected: str) -> None:
    assert default_name(name) == expected
