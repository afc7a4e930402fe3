"""Drafts on real models: the same answers, whoever drafts, however wrong, whoever else is served."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence as Row
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from samovar_instance.engines.generation.contract import Sequence
from samovar_instance.engines.generation.draft import DraftModel
from samovar_instance.engines.generation.engine import Engine, Options
from samovar_instance.engines.generation.profit import Candidate, Profit
from samovar_instance.engines.generation.sampling import TokenSampler
from samovar_instance.engines.generation.sampling_state import SamplingState
from samovar_instance.engines.generation.scheduler import Limits, Run
from samovar_instance.engines.generation.speculation import PromptLookup, Proposer
from support import engines
from support.engines import Heard, expected, finish, run_all, sequence

pytestmark = pytest.mark.process

END = frozenset([2])
CACHE_BYTES = 8_000_000


class Always(Profit):
    """Takes every draft there is: what is right does not depend on what pays."""

    def counts(self, num_sequences: int, candidates: Row[Candidate]) -> list[int]:
        return [candidate.max_drafts for candidate in candidates]


class Guesses:
    """Drafts that are right at times: the truth, with mistakes."""

    def __init__(self, truth: dict[tuple[int, ...], list[int]], share_right: float) -> None:
        self._truth = truth
        self._share_right = share_right
        self._chance = random.Random(4)

    def offer(self, run: Run, max_drafts: int) -> int:
        return max_drafts

    def propose(self, wanted: Row[tuple[Run, int]]) -> list[list[int]]:
        return [self._some(run.sequence, count) for run, count in wanted]

    def forget(self, run: Run) -> None:
        pass

    def _some(self, of: Sequence, count: int) -> list[int]:
        begin = len(of.generated)
        right = self._truth[tuple(of.prompt)][begin : begin + count]
        return [token if self._chance.random() < self._share_right else 5 for token in right]


def engine_of(
    proposer: Proposer | None, profit: Profit | None = None, *, cache_bytes: int = CACHE_BYTES, **limits: int
) -> Engine:
    options = Options(cache_bytes=cache_bytes, limits=Limits(**limits), max_drafts=6)
    return Engine(engines.load("llama"), TokenSampler(), options, proposer, profit or Always())


def draft_model(kind: str, cache_bytes: int = CACHE_BYTES) -> DraftModel:
    model = engines.load(kind)
    return DraftModel(model, num_vocabulary=model.get_input_embeddings().num_embeddings, cache_bytes=cache_bytes)


def prompts(num: int) -> list[tuple[int, ...]]:
    """Prompts of mixed lengths, half of which repeat themselves."""
    chance = random.Random(2)
    made = []
    for number in range(num):
        row = [chance.randrange(3, 320) for _ in range(chance.randrange(4, 40))]
        made.append(tuple(row * 3 if number % 2 else row))
    return made


def truth(num: int, max_tokens: int) -> dict[tuple[int, ...], list[int]]:
    return {prompt: expected("llama", prompt, max_tokens) for prompt in prompts(num)}


def greedy(prompt: Row[int], max_tokens: int, **more: Any) -> Sequence:
    return sequence(prompt, max_tokens, sampling=SamplingState(temperature=0.0), stop_ids=END, **more)


@pytest.mark.parametrize("share_right", [0.0, 0.6, 1.0], ids=["wrong drafts", "mixed drafts", "right drafts"])
def test_greedy_answers_are_those_of_generate(share_right: float) -> None:
    known = truth(16, 30)
    engine = engine_of(Guesses(known, share_right))
    sequences = [greedy(prompt, 30) for prompt in known]
    run_all(engine, sequences)
    assert [each.generated for each in sequences] == list(known.values())
    stats = engine.stats()
    assert stats.num_drafts > 0 and stats.num_held_blocks == 0
    assert (stats.num_right_drafts > 0) == (share_right > 0)


def test_right_drafts_save_steps() -> None:
    known = truth(2, 30)
    prompt = next(iter(known))
    engine = engine_of(Guesses(known, 1.0))
    engine.add(greedy(prompt, 30))
    num_steps = 0
    while engine.has_work:
        engine.step()
        num_steps += 1
    assert num_steps <= 2 + -(-len(known[prompt]) // 7)


@pytest.mark.parametrize("kind", ["llama", "qwen2"], ids=["itself", "another one"])
def test_a_draft_model_changes_nothing_but_the_number_of_steps(kind: str) -> None:
    known = truth(12, 30)
    engine = engine_of(draft_model(kind))
    sequences = [greedy(prompt, 30) for prompt in known]
    run_all(engine, sequences)
    assert [each.generated for each in sequences] == list(known.values())
    stats = engine.stats()
    if kind == "llama":
        assert stats.num_right_drafts > 0.9 * stats.num_drafts, "it agrees with itself"
    else:
        assert stats.num_right_drafts < 0.2 * stats.num_drafts


def test_lookup_with_the_engines_own_judgement_changes_nothing() -> None:
    known = truth(24, 40)
    engine = engine_of(PromptLookup(), Profit())
    sequences = [greedy(prompt, 40) for prompt in known]
    run_all(engine, sequences)
    assert [each.generated for each in sequences] == list(known.values())


def test_with_few_blocks_drafts_take_nobodys_place() -> None:
    known = truth(10, 30)
    engine = engine_of(Guesses(known, 0.6), cache_bytes=250_000, max_running=8)
    sequences = [greedy(prompt, 30) for prompt in known]
    run_all(engine, sequences)
    assert [each.generated for each in sequences] == list(known.values())
    assert engine.stats().num_held_blocks == 0


def test_a_small_cache_of_the_draft_model_only_means_fewer_drafts() -> None:
    known = truth(10, 20)
    engine = engine_of(draft_model("llama", cache_bytes=120_000))
    sequences = [greedy(prompt, 20) for prompt in known]
    run_all(engine, sequences)
    assert [each.generated for each in sequences] == list(known.values())


SAMPLINGS: dict[str, dict[str, Any]] = {
    "drawn": {"temperature": 0.9, "seed": 7},
    "cut": {"temperature": 1.2, "top_p": 0.8, "top_k": 20, "min_p": 0.01, "seed": 8},
    "penalties": {"temperature": 0.0, "presence_penalty": 1.5, "frequency_penalty": 0.7},
    "biases": {"temperature": 0.7, "biases": {9: 4.0}, "seed": 3},
    "logprobs": {"temperature": 0.8, "logprobs": 3, "seed": 5},
}


@pytest.mark.parametrize("proposer", [PromptLookup, lambda: draft_model("llama"), lambda: draft_model("qwen2")])
def test_drawn_answers_are_the_same_token_by_token(proposer: Any) -> None:
    def answers(engine: Engine) -> list[list[int]]:
        sequences = [
            sequence(prompt, 25, sampling=SamplingState(**options))
            for prompt in prompts(4)
            for options in SAMPLINGS.values()
        ]
        run_all(engine, sequences)
        assert [each.sampling.position for each in sequences] == [25] * len(sequences)
        return [each.generated for each in sequences]

    assert answers(engine_of(proposer())) == answers(engine_of(None))


def test_a_stop_among_drafts_ends_there() -> None:
    known = truth(4, 30)
    prompt, tokens = next((prompt, tokens) for prompt, tokens in known.items() if len(tokens) > 10)
    engine = engine_of(Guesses(known, 1.0))
    heard = Heard(stop_after=4)
    engine.add(greedy(prompt, 30, listener=heard))
    finish(engine)
    assert (heard.tokens, heard.reason) == (tokens[:4], "stop")


def test_a_sequence_with_a_grammar_has_no_drafts() -> None:
    class Free:
        is_finished = False

        def mask(self) -> bytes:
            return b"\xff" * 64

        def consume(self, token_id: int) -> None:
            pass

        def copy(self) -> Free:
            raise AssertionError("nobody looks ahead")

    known = truth(4, 20)
    prompt = next(iter(known))
    engine = engine_of(Guesses(known, 1.0))
    under = sequence(prompt, 20, sampling=SamplingState(temperature=0.0, grammar=Free()), stop_ids=END)
    run_all(engine, [under])
    assert under.generated == known[prompt]
    assert engine.stats().num_drafts == 0


VOCABULARY = 8


def tiny(noise: float = 0.0) -> LlamaForCausalLM:
    """A model of eight tokens. noise: added to its weights, so that it nearly agrees with itself."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.5,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights += noise * torch.randn_like(weights)
    return model


@torch.inference_mode()
def pairs(model: LlamaForCausalLM, prompt: list[int], options: dict[str, Any]) -> dict[tuple[int, int], float]:
    """The chance of every second and third token, by the model's own logits."""
    sampler, state = TokenSampler(), SamplingState(**options)

    def following(tokens: list[int]) -> list[float]:
        return list(sampler.process(model(torch.tensor([tokens])).logits[0, -1:].float(), [state])[0].tolist())

    chances: dict[tuple[int, int], float] = {}
    for first, of_first in enumerate(following(prompt)):
        for second, of_second in enumerate(following([*prompt, first])):
            for third, of_third in enumerate(following([*prompt, first, second])):
                chance = of_first * of_second * of_third
                chances[second, third] = chances.get((second, third), 0.0) + chance
    return chances


def chi_square(observed: Counter[tuple[int, int]], chances: dict[tuple[int, int], float], num: int) -> float:
    """How far off the counts are, as a standard normal number (Wilson and Hilferty); cells of few are one cell."""
    if any(chances[cell] == 0 for cell in observed):
        return math.inf
    large = {cell: chance * num for cell, chance in chances.items() if chance * num >= 5}
    terms = [(observed[cell] - count) ** 2 / count for cell, count in large.items()]
    rest = num - sum(large.values())
    if rest >= 5:
        seen = num - sum(observed[cell] for cell in large)
        terms.append((seen - rest) ** 2 / rest)
    freedom = len(terms) - 1
    return float(((sum(terms) / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / (2 / (9 * freedom)) ** 0.5)


@pytest.mark.parametrize(
    "options", [{"temperature": 1.0}, {"temperature": 0.8, "top_p": 0.9}], ids=["all tokens", "cut by top_p"]
)
def test_drawn_tokens_have_the_models_distribution(options: dict[str, Any]) -> None:
    num, prompt = 3000, [1, 5, 3]
    drafting = DraftModel(tiny(noise=0.2), num_vocabulary=VOCABULARY, cache_bytes=1_000_000)
    engine = Engine(tiny(), TokenSampler(), Options(cache_bytes=1_000_000), drafting, Always())
    sequences = [sequence(prompt, 3, sampling=SamplingState(seed=seed, **options)) for seed in range(num)]
    for first in range(0, num, 60):  # a step with prompts has no drafts
        run_all(engine, sequences[first : first + 60])
    stats = engine.stats()
    assert stats.num_drafts > num / 2
    assert 0.1 < stats.num_right_drafts / stats.num_drafts < 0.9, "some drafts are right, some are not"
    observed = Counter((each.generated[1], each.generated[2]) for each in sequences)
    assert abs(chi_square(observed, pairs(tiny(), prompt, options), num)) < 3.3
    assert chi_square(observed, pairs(tiny(noise=0.2), prompt, options), num) > 10, "the draft model's is another one"
