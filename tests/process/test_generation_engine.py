"""The engine against `generate`: the same tokens for every request in any mix."""

from __future__ import annotations

import random

import pytest

from samovar_instance.engines.generation.engine import Engine, Options
from support import engines
from support.engines import Heard, expected, greedy, run_all, sequence
from support.tiny_models import GENERATORS, SLIDING

END_ID = 2


def prompts(num: int, longest: int, seed: int = 0) -> list[tuple[int, ...]]:
    chance = random.Random(seed)
    return [tuple(chance.randrange(3, 320) for _ in range(chance.randrange(1, longest))) for _ in range(num)]


def check(kind: str, engine: Engine, asked: list[tuple[tuple[int, ...], int]]) -> None:
    sequences = [sequence(prompt, num, stop_ids=frozenset([END_ID])) for prompt, num in asked]
    run_all(engine, sequences)
    for each in sequences:
        assert isinstance(each.listener, Heard)
        assert each.listener.tokens == each.generated == expected(kind, tuple(each.prompt), each.max_tokens)
        assert each.listener.reason == ("stop" if each.generated[-1] == END_ID else "length")
    assert engine.stats().num_held_blocks == 0


@pytest.mark.parametrize("kind", [*GENERATORS, *SLIDING])
def test_every_request_gets_the_tokens_of_generate(kind: str) -> None:
    engine = Engine(engines.load(kind), greedy, Options(cache_bytes=2_000_000))
    check(kind, engine, [(prompt, 4 + 3 * i % 20) for i, prompt in enumerate(prompts(10, 60))])
