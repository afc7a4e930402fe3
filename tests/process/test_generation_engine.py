"""The engine against `generate`: the same tokens for every request in any mix, and nobody harmed by a neighbour."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import ContinuousBatchingConfig, GenerationConfig

from samovar.errors import DeadlineExceeded, RequestError
from samovar.tasks.generation import CONTEXT_EXCEEDED
from samovar_instance.engines.generation.blocks import BlockTable
from samovar_instance.engines.generation.contract import GenerationEngine, Sampler
from samovar_instance.engines.generation.engine import Engine, Options
from samovar_instance.engines.generation.ladder import engine_for
from samovar_instance.engines.generation.model import Runner
from samovar_instance.engines.generation.scheduler import Limits, Run, Segment
from samovar_instance.engines.generation.stacked import StackedRunner
from samovar_instance.engines.generation.weights import TiledGated
from support import engines
from support.engines import Heard, expected, finish, greedy, run_all, sequence
from support.tiny_models import GENERATORS, SLIDING

END = frozenset([2])
Request = tuple[tuple[int, ...], int]


def requests(num: int, longest: int, seed: int = 0) -> list[Request]:
    """Prompts of mixed lengths, some of which begin alike, and how many tokens each wants."""
    chance = random.Random(seed)
    shared = [chance.randrange(3, 320) for _ in range(longest)]
    asked = []
    for number in range(num):
        own = [chance.randrange(3, 320) for _ in range(chance.randrange(1, longest))]
        begin = shared[: chance.randrange(longest)] if number % 3 == 0 else []
        asked.append((tuple(begin + own), 2 + chance.randrange(24)))
    return asked


def engine_of(kind: str, **options: Any) -> Engine:
    cache_bytes = options.pop("cache_bytes", 8_000_000)
    limits = Limits(**options.pop("limits", {}))
    return Engine(engines.load(kind), greedy, Options(cache_bytes=cache_bytes, limits=limits, **options))


def stacked(model: Any, sampler: Sampler, options: Options) -> Engine:
    """The engine over the model's own cache, whether or not its layers could attend over pages."""
    runner = StackedRunner(model)
    return Engine(model, sampler, runner.fitted(options), runner=runner)


def check(kind: str, engine: GenerationEngine, asked: list[Request]) -> None:
    """Run all at once; each has the tokens of `generate`, and ended for the right reason."""
    sequences = [sequence(prompt, num, stop_ids=END) for prompt, num in asked]
    run_all(engine, sequences)
    for each in sequences:
        assert isinstance(each.listener, Heard)
        assert each.listener.tokens == each.generated == expected(kind, tuple(each.prompt), each.max_tokens)
        assert each.listener.reason == ("stop" if each.generated[-1] in END else "length")


def assert_empty(engine: Engine) -> None:
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_held_blocks, stats.num_used_tokens) == (0, 0, 0, 0)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_only_rows_whose_logits_count_go_through_the_last_products(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    down = TiledGated._down

    def counted(self: TiledGated, rows: torch.Tensor) -> torch.Tensor:
        seen.append(len(rows))
        return down(self, rows)

    monkeypatch.setattr(TiledGated, "_down", counted)
    engine = engine_of(kind, max_tiled_bytes=1 << 24)
    seen.clear()
    check(kind, engine, [(tuple(range(3, 33)), 2)])
    # GPT-2 has no gated layers; Llama here has two: a prompt of 30 tokens, then one token
    assert seen == {"llama": [30, 1, 1, 1], "gpt2": []}[kind]


def test_all_rows_go_through_the_last_products_if_something_after_them_mixes_rows() -> None:
    model = engines.load("llama")
    runner = Runner(model, max_tiled_bytes=1 << 24)
    norm, tokens = model.model.norm, torch.arange(3, 9)
    segments = [Segment(Run(sequence([], 1), tokens.tolist(), BlockTable([0, 1])), 0, 6, 1)]
    runner.allocate(8, 4)
    plain = runner.forward(segments)
    model.model.norm = nn.Sequential(norm, _Mean())
    runner.allocate(8, 4)
    mixed = runner.forward(segments)
    assert not torch.allclose(plain, mixed)
    with torch.inference_mode():
        torch.testing.assert_close(mixed[0], model(tokens[None], use_cache=False).logits[0, -1])


class _Mean(nn.Module):
    """Adds to each row the mean of all."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + rows.mean(1, keepdim=True)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_64_requests_in_any_mix_get_the_tokens_of_generate(kind: str) -> None:
    asked = requests(64, 60)
    roomy = engine_of(kind)
    check(kind, roomy, asked)
    assert roomy.stats().num_preemptions == 0 and roomy.stats().num_cached_tokens > 0
    assert_empty(roomy)
    plain = engine_of(kind, shares_prefixes=False, block_tokens=5, limits={"max_running": 7, "max_step_tokens": 9})
    check(kind, plain, asked)
    assert plain.stats().num_cached_tokens == 0
    assert_empty(plain)
    cache_bytes = (240 if kind == "gpt2" else 120) * 1024  # of 240 tokens
    tight = engine_of(kind, cache_bytes=cache_bytes, limits={"growth_tokens": 0})
    check(kind, tight, asked)
    assert tight.stats().num_preemptions > 0
    assert_empty(tight)


@pytest.mark.parametrize("kind", sorted({*GENERATORS, *SLIDING} - {"llama", "qwen3", "gpt2"}))
def test_other_architectures_get_the_tokens_of_generate(kind: str) -> None:
    check(kind, engine_of(kind, block_tokens=8, limits={"max_step_tokens": 24}), requests(10, 50, seed=1))


def test_requests_that_join_while_others_run_get_the_tokens_of_generate() -> None:
    engine, asked = engine_of("llama"), requests(20, 60, seed=2)
    sequences = [sequence(prompt, num, stop_ids=END) for prompt, num in asked]
    for each in sequences:
        engine.add(each)
        engine.step()
        engine.step()
    finish(engine)
    assert [each.generated for each in sequences] == [expected("llama", *request) for request in asked]


def test_generate_and_continuous_batching_of_transformers_agree() -> None:
    asked = requests(6, 30, seed=3)
    model = engines.load("llama")
    config = GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=2, pad_token_id=0)
    batching = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=128, page_size=32)
    outs = model.generate_batch(
        [list(prompt) for prompt, _ in asked],
        generation_config=config,
        continuous_batching_config=batching,
        progress_bar=False,
    )
    theirs = [out.generated_tokens for out in outs.values()]
    engine = engine_of("llama")
    sequences = [sequence(prompt, 8, stop_ids=END) for prompt, _ in asked]
    run_all(engine, sequences)
    assert [each.generated for each in sequences] == theirs


def test_a_prefix_is_computed_once_even_if_all_come_at_once() -> None:
    shared = tuple(range(3, 203))
    engine = engine_of("llama", limits={"max_step_tokens": 64})
    sequences = [sequence((*shared, 10 + number), 4) for number in range(12)]
    run_all(engine, sequences)
    assert [each.num_cached for each in sequences] == [0] + [200] * 11  # of 201 tokens, in blocks of 4
    for each in sequences:
        assert each.generated == expected("llama", tuple(each.prompt), 4)


def test_a_long_prompt_does_not_stall_the_others() -> None:
    engine = engine_of("llama")
    short = [sequence([5, 6, number + 3], 60) for number in range(4)]
    for each in short:
        engine.add(each)
    engine.step()
    long = sequence([3 + number % 300 for number in range(1000)], 2)
    engine.add(long)
    while not long.generated:
        before = [len(each.generated) for each in short]
        engine.step()
        assert [len(each.generated) for each in short] == [min(60, number + 1) for number in before]
    assert 1000 / max(len(each.generated) for each in short) < 64  # it came in pieces


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "param", "reason"),
    [
        ([], 4, "prompt", None),
        ([5, 320], 4, "prompt", None),
        ([-1], 4, "prompt", None),
        ([5], 0, "max_tokens", None),
        ([5] * 2048, 1, "prompt", CONTEXT_EXCEEDED),
        ([5] * 2000, 49, "max_tokens", CONTEXT_EXCEEDED),
    ],
)
@pytest.mark.parametrize("make", [engine_for, stacked])
def test_what_can_never_run_is_refused(
    make: Callable[..., GenerationEngine], prompt: list[int], max_tokens: int, param: str, reason: str | None
) -> None:
    engine = make(_llama(), greedy, Options(cache_bytes=8_000_000))
    neighbour = sequence([5, 6, 7], 4, stop_ids=END)
    engine.add(neighbour)
    with pytest.raises(RequestError) as caught:
        engine.add(sequence(prompt, max_tokens))
    assert (caught.value.extra["param"], caught.value.extra.get("reason")) == (param, reason)
    finish(engine)
    assert neighbour.generated == expected("llama", (5, 6, 7), 4)


def test_the_cache_bounds_the_context() -> None:
    engine = engine_of("llama", cache_bytes=64 * 1024)  # 512 bytes a token
    assert engine.max_context_tokens == 128
    whole = sequence([5] * 100, 28)
    with pytest.raises(RequestError, match="do not fit a context of 128"):
        engine.add(sequence([5] * 100, 29))
    run_all(engine, [whole])
    assert len(whole.generated) == 28


@pytest.mark.parametrize("make", [engine_for, stacked])
def test_cancelled_late_and_failing_sequences_end_alone(make: Callable[..., Engine]) -> None:
    engine = make(_llama(), greedy, Options(cache_bytes=8_000_000))
    asked = [((5, 6, number), 12) for number in range(3, 9)]
    cancelled, late, deaf, stopped, unlucky, fine = (sequence(*request) for request in asked)
    late.deadline_s = 0.0
    deaf.listener = Heard(stop_after=2, raises=ValueError("deaf"))
    stopped.listener = Heard(stop_after=3)
    unlucky.sampling = ArithmeticError("no such token")
    for each in (cancelled, late, deaf, stopped, unlucky, fine):
        engine.add(each)
    engine.step()
    assert len(cancelled.generated) == 1
    engine.cancel(cancelled)
    engine.cancel(cancelled)
    engine.step()
    assert len(cancelled.generated) == 1
    finish(engine)
    engine.cancel(fine)
    ends = [each.listener.ends[0] for each in (cancelled, late, deaf, stopped, unlucky, fine)]  # type: ignore[attr-defined]
    assert [reason for reason, _ in ends] == ["cancelled", "failed", "failed", "stop", "failed", "length"]
    assert [type(error) for _, error in ends] == [
        type(None),
        DeadlineExceeded,
        ValueError,
        type(None),
        ArithmeticError,
        type(None),
    ]
    assert fine.generated == expected("llama", *asked[5])
    assert_empty(engine)


def test_a_sequence_that_breaks_the_forward_harms_no_other() -> None:
    model = engines.load("llama")

    def break_at_319(module: Any, arguments: Any) -> None:
        if (arguments[0] == 319).any():
            raise FloatingPointError("319")

    engine = Engine(model, greedy, Options(cache_bytes=8_000_000))
    model.get_input_embeddings().register_forward_pre_hook(break_at_319)
    asked = [((5, 6, 7), 6), ((8, 319), 6), ((9, 10), 6)]
    sequences = [sequence(*request) for request in asked]
    run_all(engine, sequences)
    assert [each.listener.reason for each in sequences] == ["length", "failed", "length"]  # type: ignore[attr-defined]
    assert [sequences[0].generated, sequences[2].generated] == [expected("llama", *asked[n]) for n in (0, 2)]
    assert_empty(engine)


def test_what_is_not_a_number_stays_with_its_sequence() -> None:
    model = engines.load("llama")
    engine = Engine(model, _refuse_nan, Options(cache_bytes=8_000_000))
    with torch.no_grad():
        embeddings = model.get_input_embeddings()
        embeddings.weight = torch.nn.Parameter(embeddings.weight.clone())
        embeddings.weight[319] = float("nan")
    poisoned = sequence([319] * 40, 6)
    beside = sequence([5, 6, 7], 6)
    run_all(engine, [poisoned, beside])
    assert poisoned.listener.reason == "failed"  # type: ignore[attr-defined]
    after = [sequence(prompt, 6) for prompt in ([8, 9], [10], [5, 6, 7])]
    run_all(engine, after)
    for each in (beside, *after):
        assert each.generated == expected("llama", tuple(each.prompt), 6)


def _refuse_nan(logits: Any, states: Any) -> Any:
    is_fine = logits.isfinite().all(-1).tolist()
    return [
        token if fine else FloatingPointError("no numbers")
        for token, fine in zip(greedy(logits, states), is_fine, strict=True)
    ]


def _llama() -> Any:
    return engines.load("llama")
