"""The text side on a tiny model, in this process: what requests come to, and what they are refused for."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import llguidance.hf
import msgspec
import pytest
import torch

import samovar as sv
from samovar.acceleration.options import Acceleration
from samovar.acceleration.session import Session, opened
from samovar.errors import DeployRefused, FunctionRaised, RequestError
from samovar.tasks.generation import CONTEXT_EXCEEDED, GenerationInput, GenerationOutput, Usage
from samovar_instance.engines.generation.contract import GenerationEngine
from samovar_instance.engines.text_generation import PrefixSharing, TextGenerator
from support.tiny_models import CONTEXT_TOKENS, tiny_model, tiny_tokenizer
from support.waiting import wait_until_async

ANSWER = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "cups": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3}},
    "required": ["ok", "cups"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER}}
POUR = {
    "type": "function",
    "function": {
        "name": "pour",
        "parameters": {
            "type": "object",
            "properties": {"ml": {"enum": [100, 200]}},
            "required": ["ml"],
            "additionalProperties": False,
        },
    },
}
HELLO = [{"role": "user", "content": "hello"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}


class Tiny(TextGenerator):
    cache_gib = 0.01
    block_tokens = 8
    tool_format = "hermes"


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    torch.set_num_threads(1)
    generator = Tiny()
    generator.load(tiny_model("llama"), "cpu")
    return generator


def stream(generator: TextGenerator, **fields: Any) -> AsyncIterator[GenerationOutput]:
    return generator(msgspec.convert(fields, GenerationInput), sv.Context())


async def pieces_of(generator: TextGenerator, **fields: Any) -> list[GenerationOutput]:
    return [piece async for piece in stream(generator, **fields)]


class Told:
    """An answer, its pieces put together by choice."""

    def __init__(self, pieces: list[GenerationOutput]) -> None:
        self.pieces = pieces
        indexes = sorted({piece.index for piece in pieces})
        assert indexes == [*range(len(indexes))]
        self.texts = ["".join(piece.text for piece in pieces if piece.index == index) for index in indexes]
        self.finishes = [
            [piece.finish_reason for piece in pieces if piece.index == index and piece.finish_reason]
            for index in indexes
        ]
        assert all(len(finish) == 1 for finish in self.finishes), "each choice ends once"
        assert all(piece.usage is None for piece in pieces[:-1])
        usage = pieces[-1].usage
        assert usage is not None
        self.usage: Usage = usage

    @property
    def text(self) -> str:
        assert len(self.texts) == 1
        return self.texts[0]

    @property
    def finish(self) -> str | None:
        return self.finishes[0][0]

    @property
    def logprobs(self) -> list[Any]:
        return [told for piece in sorted(self.pieces, key=lambda piece: piece.index) for told in piece.logprobs]


async def ask(generator: TextGenerator, **fields: Any) -> Told:
    return Told(await pieces_of(generator, **fields))


async def refused(generator: TextGenerator, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        await pieces_of(generator, **fields)
    return raised.value


def generated(prompt: list[int], count: int) -> list[int]:
    """Return what transformers' own greedy `generate` makes of a prompt."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"))
    ids = torch.tensor([prompt])
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    row: list[int] = made[0, len(prompt) :].tolist()
    return row


async def test_greedy_text_is_that_of_generate(tiny: Tiny) -> None:
    prompt = tiny_tokenizer().encode("the cat and the dog")
    told = await ask(tiny, prompt="the cat and the dog", logprobs=0, **GREEDY)
    assert [each.token_id for each in told.logprobs] == generated(prompt, 24)
    text = tiny_tokenizer().decode(generated(prompt, 24), skip_special_tokens=True)
    assert told.text == text.removesuffix("\ufffd") or told.text == text
    assert (told.finish, told.usage.prompt_tokens, told.usage.completion_tokens) == ("length", len(prompt), 24)


async def test_a_prompt_of_ids_is_the_text_it_stands_for(tiny: Tiny) -> None:
    by_text = await ask(tiny, prompt="the cat", **GREEDY)
    by_ids = await ask(tiny, prompt=tiny_tokenizer().encode("the cat"), **GREEDY)
    assert by_text.text == by_ids.text


async def test_a_prompt_of_one_token_and_of_all_the_context_but_one(tiny: Tiny) -> None:
    assert (await ask(tiny, prompt=[70], **GREEDY)).usage.prompt_tokens == 1
    told = await ask(tiny, prompt=[70] * (CONTEXT_TOKENS - 1), temperature=0)
    assert (told.usage.completion_tokens, told.finish) in ((1, "length"), (1, "stop"))


async def test_echo_puts_the_prompt_in_front(tiny: Tiny) -> None:
    plain = await ask(tiny, prompt="the cat", **GREEDY)
    for prompt in ("the cat", tiny_tokenizer().encode("the cat")):
        assert (await ask(tiny, prompt=prompt, echo=True, **GREEDY)).text == "the cat" + plain.text


async def test_stops_cut_across_tokens_and_end_the_sequence(tiny: Tiny) -> None:
    whole = (await ask(tiny, prompt="the cat", **GREEDY)).text
    stop = whole[4:7]
    told = await ask(tiny, prompt="the cat", stop=["never", stop], logprobs=0, **GREEDY)
    assert told.text == whole[: whole.index(stop)]
    assert told.finish == "stop" and told.usage.completion_tokens < 24
    assert all(each.offset < len(told.text) for each in told.logprobs)


async def test_end_tokens_end_the_text(tiny: Tiny) -> None:
    end = str(tiny_tokenizer().eos_token_id)
    told = await ask(tiny, prompt="the", temperature=0, logit_bias={end: 100}, logprobs=0)
    assert (told.text, told.finish, told.usage.completion_tokens, told.logprobs) == ("", "stop", 1, [])
    told = await ask(tiny, prompt="the", logit_bias={end: 100}, **GREEDY | {"max_tokens": 3})
    assert (told.text, told.finish) == ("", "length"), "ignore_eos"


async def test_choices_have_their_own_chance_and_a_seed_repeats_them(tiny: Tiny) -> None:
    wanted: dict[str, Any] = {"prompt": "the cat", "n": 3, "seed": 7, "max_tokens": 12, "ignore_eos": True}
    alone = await ask(tiny, **wanted)
    assert len(set(alone.texts)) == 3
    among = await asyncio.gather(
        ask(tiny, **wanted), *(ask(tiny, prompt=f"dog {n}", max_tokens=20 + n, seed=n) for n in range(6))
    )
    assert among[0].texts == alone.texts
    assert (await ask(tiny, **wanted | {"seed": 8})).texts != alone.texts
    unseeded = wanted | {"seed": None}
    assert (await ask(tiny, **unseeded)).texts != (await ask(tiny, **unseeded)).texts
    assert alone.usage.completion_tokens == 36


async def test_logprobs_tell_token_bytes_and_places(tiny: Tiny) -> None:
    told = await ask(tiny, prompt="the cat", logprobs=3, **GREEDY)
    assert len(told.logprobs) == 24
    assert all(len(each.top) == 3 and each.top[0].token_id == each.token_id for each in told.logprobs)
    assert all(each.logprob <= 0 for each in told.logprobs)
    joined = b"".join(bytes(each.bytes) for each in told.logprobs if not each.token.startswith("<|"))
    assert joined.decode(errors="replace").removesuffix("\ufffd") == told.text.removesuffix("\ufffd")
    offsets = [each.offset for each in told.logprobs]
    assert offsets == sorted(offsets) and offsets[0] == 0


async def test_every_answer_under_a_schema_validates(tiny: Tiny) -> None:
    validator = jsonschema_rs.validator_for(ANSWER)
    told = await ask(tiny, messages=HELLO, n=8, seed=1, response_format=FORMAT, temperature=1.5, max_tokens=600)
    for text, finish in zip(told.texts, told.finishes, strict=True):
        assert finish == ["stop"]
        validator.validate(json.loads(text))
    greedy = await ask(tiny, messages=HELLO, temperature=0, max_tokens=600, response_format=FORMAT, ignore_eos=True)
    validator.validate(json.loads(greedy.text))


async def test_a_schema_with_stop_or_max_tokens_is_cut_where_they_say(tiny: Tiny) -> None:
    wanted: dict[str, Any] = {"messages": HELLO, "seed": 3, "response_format": FORMAT}
    whole = (await ask(tiny, **wanted, max_tokens=600)).text
    cut = await ask(tiny, **wanted, max_tokens=4)
    assert whole.startswith(cut.text) and cut.finish == "length"
    stopped = await ask(tiny, **wanted, max_tokens=600, stop=['"cups'])
    assert stopped.text == whole[: whole.index('"cups')] and stopped.finish == "stop"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "pour"}}])
async def test_forced_tools_are_called(tiny: Tiny, choice: Any) -> None:
    told = await ask(
        tiny, messages=HELLO, tools=[POUR], tool_choice=choice, parallel_tool_calls=False, n=3, max_tokens=900
    )
    calls = [call for piece in told.pieces for call in piece.tool_calls]
    assert len(calls) == 3 and len({call.id for call in calls}) == 3
    assert all(json.loads(call.function.arguments)["ml"] in (100, 200) for call in calls)
    assert told.finishes == [["tool_calls"]] * 3 and told.texts == [""] * 3


async def test_tools_that_may_be_called_need_not_be(tiny: Tiny) -> None:
    told = await ask(tiny, messages=HELLO, tools=[POUR], **GREEDY)
    assert told.finish == "length" and told.text
    without = await ask(tiny, messages=HELLO, **GREEDY)
    none = await ask(tiny, messages=HELLO, tools=[POUR], tool_choice="none", **GREEDY)
    assert none.text == without.text != told.text


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("prompt", {"prompt": ""}),
    ("prompt", {"prompt": []}),
    ("prompt", {"prompt": [1, 320]}),
    ("prompt", {"prompt": [-1]}),
    ("messages", {}),
    ("messages", {"messages": []}),
    ("messages", {"messages": [{"role": "user"}]}),
    ("messages", {"messages": HELLO * 10_001}),
    ("max_tokens", {"prompt": "a", "max_tokens": -1}),
    ("temperature", {"prompt": "a", "temperature": 2.5}),
    ("stop", {"prompt": "a", "stop": ["x"] * 2000}),
    ("logit_bias", {"prompt": "a", "logit_bias": {"320": 1}}),
    ("logit_bias", {"prompt": "a", "logit_bias": {"one": 1}}),
    ("logit_bias", {"prompt": "a", "logit_bias": {"9" * 5000: 1}}),
    ("echo", {"prompt": "a", "echo": True, "logprobs": 1}),
    ("tools", {"prompt": "a", "tools": [POUR]}),
    ("response_format", {"messages": HELLO, "tools": [POUR], "response_format": FORMAT}),
    ("response_format", {"messages": HELLO, "response_format": {"type": "json_schema"}}),
    (
        "response_format",
        {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
    ),
    (
        "tools",
        {
            "messages": HELLO,
            "tools": [{"function": {"name": "f", "parameters": {"not": {}}}}],
            "tool_choice": "required",
        },
    ),
]


@pytest.mark.parametrize(("param", "fields"), REFUSED)
async def test_what_is_wrong_is_refused_by_name(tiny: Tiny, param: str, fields: dict[str, Any]) -> None:
    error = await refused(tiny, **fields)
    assert error.extra["param"] == param and param in error.detail
    assert not tiny._loop.engine.has_work, "before any work"


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [70] * CONTEXT_TOKENS},
        {"prompt": [70] * (CONTEXT_TOKENS + 1)},
        {"prompt": "x" * 10_000_000},
        {"messages": [{"role": "user", "content": "x" * 10_000_000}]},
        {"messages": [{"role": "user", "content": "the cat " * 1100}]},
        {"messages": [{"role": "user", "content": ""}] * CONTEXT_TOKENS},
        {"prompt": "the cat", "max_tokens": CONTEXT_TOKENS},
    ],
)
async def test_what_does_not_fit_says_how_much_it_is(tiny: Tiny, fields: dict[str, Any]) -> None:
    error = await refused(tiny, **fields)
    assert error.extra["reason"] == CONTEXT_EXCEEDED
    assert str(CONTEXT_TOKENS) in error.detail and "tokens" in error.detail


async def test_max_context_is_the_authors_own_limit() -> None:
    class Short(Tiny):
        max_context = 50

    generator = Short()
    generator.load(tiny_model("llama"), "cpu")
    error = await refused(generator, prompt=[70] * 50)
    assert error.extra["reason"] == CONTEXT_EXCEEDED and "50" in error.detail
    assert (await ask(generator, prompt=[70] * 40, temperature=0, ignore_eos=True)).usage.completion_tokens == 10


async def of_key(generator: TextGenerator, tenant: str) -> Usage:
    """Return the usage of one prompt, the same each time, of one API key."""
    request = msgspec.convert(GREEDY | {"prompt": [*range(60, 124)]}, GenerationInput)
    return Told([piece async for piece in generator(request, sv.Context(tenant=tenant))]).usage


@pytest.mark.parametrize(("sharing", "other_sees", "own_sees"), [("key", 0, 56), ("function", 56, 56), ("off", 0, 0)])
async def test_what_keys_find_of_each_others_prompts(sharing: PrefixSharing, other_sees: int, own_sees: int) -> None:
    class Shares(Tiny):
        prefix_sharing = sharing

    generator = Shares()
    generator.load(tiny_model("llama"), "cpu")
    assert (await of_key(generator, "one")).cached_tokens == 0
    assert (await of_key(generator, "another")).cached_tokens == other_sees
    assert (await of_key(generator, "one")).cached_tokens == own_sees


async def test_keys_that_ask_at_the_same_time_do_not_wait_for_each_others_prompts(tiny: Tiny) -> None:
    """Who waits for a block that another one computes would learn by it, too."""
    told = await asyncio.gather(*(of_key(tiny, tenant) for tenant in ("p", "q", "p")))
    assert sorted(usage.cached_tokens for usage in told) == [0, 0, 56]


def test_a_sharing_that_there_is_not_is_refused() -> None:
    class Odd(Tiny):
        prefix_sharing = "everyone"  # type: ignore[assignment]

    with pytest.raises(DeployRefused, match="prefix_sharing"):
        Odd().load(tiny_model("llama"), "cpu")


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("cache_gib", 1e-7, "cache_gib 1e-07 holds 8 tokens of this model: give 0.001 or more"),
        ("max_context", 3, "max_context 3 is too little for prompt and answer: give 16 or more"),
    ],
)
def test_an_option_that_leaves_no_room_is_refused_by_its_name(option: str, value: float, says: str) -> None:
    with pytest.raises(DeployRefused, match=says):
        type("Narrow", (Tiny,), {option: value})().load(tiny_model("llama"), "cpu")
    enough = {"cache_gib": 0.001, "max_context": 16}[option]
    type("Enough", (Tiny,), {option: enough})().load(tiny_model("llama"), "cpu")


def test_a_model_that_no_token_fits_is_refused(tmp_path: Path) -> None:
    shutil.copytree(tiny_model("llama"), tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 0}))
    with pytest.raises(DeployRefused, match="max_position_embeddings 0"):
        Tiny().load(tmp_path / "model", "cpu")


@pytest.mark.parametrize("drafts", [sv.Speculation("prompt-lookup"), sv.Speculation("draft-model", folder="small")])
async def test_with_drafts_the_same_is_said(tiny: Tiny, tmp_path: Path, drafts: sv.Speculation) -> None:
    shutil.copytree(tiny_model("llama"), tmp_path / "model")
    shutil.copytree(tiny_model("llama"), tmp_path / "model" / "small")
    generator = Tiny()
    with opened(Session(Acceleration(speculation=drafts))):
        generator.load(tmp_path / "model", "cpu")
    for fields in (GREEDY | {"max_tokens": 80}, {"seed": 3, "top_p": 0.9, "max_tokens": 60, "logprobs": 1, "n": 2}):
        wanted = await ask(tiny, prompt="the cat the cat the cat the", **fields)
        told = await ask(generator, prompt="the cat the cat the cat the", **fields)
        assert (told.texts, told.finishes) == (wanted.texts, wanted.finishes)
        assert told.usage.completion_tokens == wanted.usage.completion_tokens
        assert [each.token_id for each in told.logprobs] == [each.token_id for each in wanted.logprobs]


async def test_a_long_prompt_is_read_beside_the_others(tiny: Tiny) -> None:
    """Beyond what is read at once it goes to a thread, and comes to the same tokens."""
    text = "<|im_start|>" * 1900
    assert len(text) > 20_000
    assert (await ask(tiny, prompt=text, max_tokens=1)).usage.prompt_tokens == 1900


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": ""}] * 400},
        {"messages": HELLO, "tools": [POUR | {"function": {"name": "pour", "description": "tea " * 5000}}]},
        {"messages": HELLO, "response_format": FORMAT},
    ],
)
async def test_what_takes_long_to_read_is_read_beside_the_others(tiny: Tiny, fields: dict[str, Any]) -> None:
    """Many short messages are a long text, too, and so are tools; a grammar is made beside them as well."""
    planning = asyncio.ensure_future(tiny._planner.plan(msgspec.convert(fields, GenerationInput)))
    await asyncio.sleep(0)
    assert not planning.done(), "it was read at one go"
    await asyncio.gather(planning, return_exceptions=True)


async def test_a_loaded_model_has_read_its_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's step waits for the first request that is constrained."""
    generator, read, num_reads = Tiny(), llguidance.hf.from_tokenizer, 0

    def counted(*given: Any) -> Any:
        nonlocal num_reads
        num_reads += 1
        return read(*given)

    monkeypatch.setattr(llguidance.hf, "from_tokenizer", counted)
    generator.load(tiny_model("llama"), "cpu")
    assert num_reads == 1
    told = await ask(generator, messages=HELLO, response_format=FORMAT, max_tokens=60, seed=1)
    assert told.usage.completion_tokens > 0 and num_reads == 1


async def test_what_nobody_reads_is_merged(tiny: Tiny) -> None:
    whole = await ask(tiny, prompt="the cat", **GREEDY)
    pieces = stream(tiny, prompt="the cat", **GREEDY)
    first = await anext(pieces)
    await wait_until_async(lambda: not tiny._loop.engine.has_work)
    rest = [piece async for piece in pieces]
    assert len(rest) == 1
    assert first.text + rest[0].text == whole.text and rest[0].finish_reason == "length"


async def test_leaving_ends_the_sequence_at_the_next_step(tiny: Tiny) -> None:
    pieces = stream(tiny, prompt="the cat", max_tokens=1000, ignore_eos=True, n=3)
    await anext(pieces)
    assert tiny._loop.engine.has_work
    await pieces.aclose()  # type: ignore[attr-defined]
    tiny._loop.engine.step()
    assert not tiny._loop.engine.has_work


@pytest.mark.parametrize(
    "declared", [Acceleration(compile="inductor"), Acceleration(engine="onnx"), Acceleration(attention="eager")]
)
def test_what_the_engine_cannot_use_is_refused_at_load(declared: Acceleration) -> None:
    with opened(Session(declared)), pytest.raises(DeployRefused, match="takes precision"):
        Tiny().load(tiny_model("llama"), "cpu")


def test_what_a_precision_changes_shows_in_the_chances_of_tokens(tiny: Tiny) -> None:
    rounded = Tiny()
    with opened(Session(Acceleration(precision="bf16"))):
        rounded.load(tiny_model("llama"), "cpu")
    plain, ours = tiny.precision_probe(), rounded.precision_probe()
    assert len(plain) == len(ours) == len(tiny_tokenizer()) and sum(plain) == pytest.approx(1.0, abs=1e-3)
    assert 0 < max(abs(a - b) for a, b in zip(plain, ours, strict=True)) < 0.2


async def test_a_precision_is_used() -> None:
    generator = Shows()
    with opened(Session(Acceleration(precision="bf16"))):
        generator.load(tiny_model("llama"), "cpu")
    assert generator.model.lm_head.weight.dtype == torch.bfloat16
    assert (await ask(generator, prompt="the cat", **GREEDY)).usage.completion_tokens == 24


class Breaks(Tiny):
    """Its engines' steps fail for as long as `is_broken`."""

    is_broken = False

    def make_engine(self, model: Any, draft: Any) -> GenerationEngine:
        engine: Any = super().make_engine(model, draft)
        step = engine.step

        def breaking() -> None:
            if self.is_broken:
                raise OSError("the kettle blew up")
            step()

        engine.step = breaking
        return engine  # type: ignore[no-any-return]


async def test_a_step_that_fails_fails_who_waits_and_the_next_call_is_served() -> None:
    generator = Breaks()
    generator.load(tiny_model("llama"), "cpu")
    wanted = await ask(generator, prompt="the cat", **GREEDY)
    waiting = [
        asyncio.ensure_future(pieces_of(generator, prompt=f"{n}", max_tokens=500, ignore_eos=True)) for n in range(3)
    ]
    await wait_until_async(lambda: generator._loop.engine.has_work)
    generator.is_broken = True
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(outcome, OSError) for outcome in outcomes)
    with pytest.raises(OSError, match="kettle"):
        generator.check()
    generator.is_broken = False
    assert (await ask(generator, prompt="the cat", **GREEDY)).text == wanted.text
    generator.check()


class Shows(Tiny):
    """Keeps its model where a test can spoil it."""

    def make_engine(self, model: Any, draft: Any) -> GenerationEngine:
        self.model = model
        return super().make_engine(model, draft)


async def test_a_model_that_gives_no_numbers_is_unwell() -> None:
    generator = Shows()
    generator.load(tiny_model("llama"), "cpu")
    generator.check()
    generator.model.lm_head.weight.data[5, 0] = torch.nan
    with pytest.raises(FunctionRaised, match="not numbers"):
        generator.check()
    with pytest.raises(FunctionRaised, match="not numbers"):
        await pieces_of(generator, prompt="the cat")
    assert not generator._loop.engine.has_work
