"""Choosing tokens: each knob against a plain computation of the same distribution, and chance that comes out again."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samovar.errors import FunctionRaised, RequestError
from samovar_instance.engines.generation.contract import Token
from samovar_instance.engines.generation.sampling import NUCLEUS_TRY, TokenSampler
from samovar_instance.engines.generation.sampling_state import SamplingState, seed_of_choice, uniform

sampler = TokenSampler()
VOCABULARY = 24


def logits_of(seed: int, rows: int = 1, width: int = VOCABULARY) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 2, (rows, width)).astype(np.float32))


def expected(row: np.ndarray[Any, Any], state: SamplingState) -> np.ndarray[Any, Any]:
    """Return the distribution by the definitions of the knobs, in float64, one token at a time."""
    row = row.astype(np.float64)
    for token, bias in state.biases.items():
        row[token] += bias
    for token, count in state.counts.items():
        row[token] -= state.presence_penalty + state.frequency_penalty * count
    if state.is_greedy:
        return np.asarray(np.eye(len(row))[row.argmax()])
    probs = np.exp((row - row.max()) / state.temperature)
    order = np.argsort(-probs)
    if state.top_k:
        probs[order[state.top_k :]] = 0
    probs /= probs.sum()
    kept = 0.0
    for token in order:
        if state.top_p < 1 and kept >= state.top_p:
            probs[token] = 0
        kept += probs[token]
    probs[probs < state.min_p * probs.max()] = 0
    return np.asarray(probs / probs.sum())


def tokens(logits: torch.Tensor, states: list[SamplingState]) -> list[int]:
    chosen = sampler(logits, states)
    return [token.id if isinstance(token, Token) else -1 for token in chosen]


STATES = {
    "plain": SamplingState(),
    "cold": SamplingState(temperature=0.4),
    "hot": SamplingState(temperature=1.9),
    "top_k": SamplingState(top_k=3),
    "top_k of more than there are": SamplingState(top_k=1000),
    "top_p": SamplingState(top_p=0.6),
    "a tiny top_p": SamplingState(top_p=1e-9),
    "the tiniest top_p": SamplingState(top_p=5e-324),
    "min_p": SamplingState(min_p=0.2),
    "all cuts": SamplingState(temperature=1.3, top_k=9, top_p=0.8, min_p=0.05),
    "bias": SamplingState(biases={3: 4.0, 5: -100.0}),
    "greedy": SamplingState(temperature=0.0),
    "greedy with bias": SamplingState(temperature=0.0, biases={7: 100.0}),
}


@pytest.mark.parametrize("name", STATES)
def test_the_distribution_of_each_knob(name: str) -> None:
    for seed in range(20):
        logits = logits_of(seed)
        wanted = expected(logits[0].numpy().copy(), STATES[name])
        got = sampler.process(logits, [STATES[name]])[0].numpy()
        np.testing.assert_allclose(got, wanted, atol=1e-6)


@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(0, 2),
    top_k=st.integers(0, 30) | st.just(1_000_000),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 0.999999),
)
def test_any_knobs_leave_a_distribution(seed: int, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    state = SamplingState(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = logits_of(seed)
    best = int(logits.argmax())
    probs = sampler.process(logits, [state])[0]
    assert bool(probs.isfinite().all()) and float(probs.sum()) == pytest.approx(1, abs=1e-5)
    assert float(probs[best]) == float(probs.max()) > 0, "the likeliest token stays"


def test_rows_are_processed_each_by_its_own_knobs() -> None:
    states = list(STATES.values())
    logits = logits_of(1, len(states))
    wanted = np.stack([expected(row.numpy().copy(), state) for row, state in zip(logits, states, strict=True)])
    np.testing.assert_allclose(sampler.process(logits, states).numpy(), wanted, atol=1e-6)


@pytest.mark.parametrize("name", ["plain", "cold", "all cuts", "bias"])
def test_tokens_are_drawn_from_that_distribution(name: str) -> None:
    """Chi-square over 20,000 draws, each at its own seed; the bound is passed by chance once in a million."""
    draws = 20_000
    row = logits_of(5)
    wanted = expected(row[0].numpy().copy(), STATES[name])
    states = [SamplingState(**knobs(STATES[name]), seed=seed) for seed in range(draws)]
    counts = np.bincount(tokens(row.repeat(draws, 1), states), minlength=VOCABULARY)
    assert not counts[wanted == 0].any()
    likely = wanted * draws >= 5
    rest = counts[~likely].sum(), wanted[~likely].sum() * draws
    chi = ((counts[likely] - wanted[likely] * draws) ** 2 / (wanted[likely] * draws)).sum()
    chi += (rest[0] - rest[1]) ** 2 / rest[1] if rest[1] > 1 else 0
    degrees = int(likely.sum())
    assert chi < degrees + 4.75 * math.sqrt(2 * degrees) + 15, "Laurent and Massart's bound, rounded up"


def knobs(state: SamplingState) -> dict[str, Any]:
    names = ("temperature", "top_p", "top_k", "min_p", "biases", "presence_penalty", "frequency_penalty")
    return {name: getattr(state, name) for name in names}


def test_positions_of_one_seed_are_drawn_independently() -> None:
    """Pairs of successive draws of one seed: all 16 pairs of 4 equal tokens come as often as they should."""
    state, draws = SamplingState(seed=11), 8_000
    row = [tokens(torch.zeros(1, 4), [state])[0] for _ in range(draws)]
    pairs = np.bincount([4 * a + b for a, b in zip(row[::2], row[1::2], strict=True)], minlength=16)
    chi = ((pairs - draws / 32) ** 2 / (draws / 32)).sum()
    assert chi < 15 + 4.75 * math.sqrt(30) + 15


def test_a_seed_gives_the_same_tokens_alone_and_among_others() -> None:
    rows = logits_of(3, 12)
    alone = SamplingState(seed=99, temperature=1.1, top_p=0.9)
    wanted = [tokens(row[None].clone(), [alone])[0] for row in rows]
    mixed = SamplingState(seed=99, temperature=1.1, top_p=0.9)
    got = []
    for step, row in enumerate(rows):
        others = [SamplingState(**knobs(state), seed=step) for state in STATES.values()]
        place = step % len(others)
        logits = logits_of(100 + step, len(others) + 1)
        logits[place] = row
        got.append(tokens(logits, [*others[:place], mixed, *others[place:]])[place])
    assert got == wanted
    assert len(set(wanted)) > 3, "it is chance, not the likeliest"


def test_chance_is_even_and_fixed_by_its_arguments() -> None:
    numbers = [uniform(seed, place, lane) for seed in range(20) for place in range(20) for lane in range(2)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 1 for number in numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.05
    assert uniform(1, 2) == 0.4155384153012005, "pinned: a seed means the same on every machine, in every release"
    assert len({seed_of_choice(5, index) for index in range(100)}) == 100


def test_penalties_count_what_was_chosen() -> None:
    state = SamplingState(temperature=0.0, frequency_penalty=0.6)
    logits = torch.tensor([[2.0, 1.5, 0.0]])
    assert [tokens(logits.clone(), [state])[0] for _ in range(4)] == [0, 1, 0, 1]
    assert dict(state.counts) == {0: 2, 1: 2} and state.position == 4
    once = SamplingState(temperature=0.0, presence_penalty=0.6)
    assert [tokens(logits.clone(), [once])[0] for _ in range(4)] == [0, 1, 0, 0], "how often does not matter"


def test_ahead_looks_at_what_would_be_and_changes_nothing() -> None:
    state = SamplingState(frequency_penalty=0.5, seed=4)
    later = state.ahead([1, 1, 2])
    assert (later.position, dict(later.counts), later.seed) == (3, {1: 2, 2: 1}, 4)
    assert (state.position, dict(state.counts)) == (0, {})


def test_logprobs_are_the_models_own() -> None:
    logits = logits_of(8, 3)
    own = logits.double().log_softmax(-1)
    states = [
        SamplingState(temperature=0.3, top_k=1, biases={2: 100.0}, logprobs=3),
        SamplingState(),
        SamplingState(logprobs=0),
    ]
    first, second, third = sampler(logits, states)
    assert isinstance(first, Token) and isinstance(second, Token) and isinstance(third, Token)
    assert first.id == 2 and first.logprob == pytest.approx(float(own[0, 2]), abs=1e-5)
    assert [token for token, _ in first.top] == own[0].argsort(descending=True)[:3].tolist()
    assert [value for _, value in first.top] == pytest.approx(own[0].sort(descending=True).values[:3].tolist())
    assert (second.logprob, second.top, third.top) == (None, (), ())
    assert third.logprob == pytest.approx(float(own[2, third.id]), abs=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["greedy", "plain"])
def test_logits_that_are_no_numbers_fail_their_row_only(bad: float, name: str) -> None:
    logits = logits_of(2, 3)
    logits[1] = bad
    states = [SamplingState(**knobs(STATES[name]), seed=row) for row in range(3)]
    chosen = sampler(logits, states)
    assert isinstance(chosen[1], FunctionRaised)
    assert isinstance(chosen[0], Token) and isinstance(chosen[2], Token)
    assert [state.position for state in states] == [1, 0, 1]
    with pytest.raises(FunctionRaised):
        sampler.process(torch.full((1, 4), bad), [SamplingState()])


def test_the_smallest_temperatures_make_no_nan() -> None:
    logits = torch.tensor([[1e30, -1e30, 3e38, 0.0]])
    for temperature in (1e-5, 1e-4, 2.0):
        assert tokens(logits.clone(), [SamplingState(temperature=temperature)]) == [2]


def test_a_flat_vocabulary_is_cut_right_beyond_the_first_guess() -> None:
    width = NUCLEUS_TRY * 4
    probs = sampler.process(torch.zeros(2, width), [SamplingState(top_p=0.5), SamplingState(top_p=0.75)])
    assert (probs > 0).sum(dim=-1).tolist() == [width // 2, width * 3 // 4]


class Only:
    """A grammar that allows some tokens."""

    def __init__(self, *allowed: int, error: Exception | None = None) -> None:
        self.allowed = allowed
        self.error = error
        self.seen: list[int] = []

    @property
    def is_finished(self) -> bool:
        return False

    def mask(self) -> bytes:
        if self.error is not None:
            raise self.error
        bits = np.zeros(32, np.uint8)
        bits[list(self.allowed)] = 1
        return np.packbits(bits, bitorder="little").tobytes()

    def consume(self, token_id: int) -> None:
        self.seen.append(token_id)

    def copy(self) -> Only:
        return Only(*self.allowed)


def test_a_grammar_leaves_what_it_allows() -> None:
    grammar = Only(4, 9)
    states = [SamplingState(temperature=0.0, grammar=grammar, biases={5: 100.0}), SamplingState(grammar=Only(7))]
    assert tokens(logits_of(1, 2), states)[1] == 7
    assert grammar.seen[0] in (4, 9)


def test_a_grammar_that_leaves_nothing_or_gets_stuck_fails_its_row() -> None:
    states = [SamplingState(grammar=Only()), SamplingState(grammar=Only(error=RequestError("stuck"))), SamplingState()]
    chosen = sampler(logits_of(1, 3), states)
    assert isinstance(chosen[0], FunctionRaised) and isinstance(chosen[1], RequestError)
    assert isinstance(chosen[2], Token)
