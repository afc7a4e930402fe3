"""Models that cannot attend over pages, or with attention of their own kind: the tokens of `generate` in any mix."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from samovar.errors import DeadlineExceeded
from samovar_instance.engines.generation.engine import Engine, Options
from samovar_instance.engines.generation.ladder import engine_for
from samovar_instance.engines.generation.sampling import TokenSampler
from samovar_instance.engines.generation.sampling_state import SamplingState
from samovar_instance.engines.generation.scheduler import Limits
from support.decoders import decoder
from support.engines import Heard, finish, greedy, run_all, sequence

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers: slow kernels

OVER_PAGES = ["GptOss", "GraniteSWA", "DeepseekV3"]
WHOLE_PROMPTS = {"Mamba", "Jamba"}
IN_BATCHES = [
    *["Bloom", "Mpt", "Falcon", "GPTNeo", "StableLm", "DiffLlama", "Doge", "Llama4Text"],
    *["Mamba", "Mamba2", "Jamba", "Bamba", "FalconH1", "GraniteMoeHybrid", "Qwen3Next", "Qwen3_5Text", "Lfm2"],
]
ONE_BY_ONE = ["Rwkv", "MiniMax"]
NOTHING_KEPT = ["RecurrentGemma", "OpenAIGPT"]
Request = tuple[list[int], int]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def requests(lengths: list[int], max_tokens: int = 8) -> list[Request]:
    chance = random.Random(1)
    return [([chance.randrange(3, 320) for _ in range(length)], max_tokens) for length in lengths]


def expected(model: Any, request: Request) -> list[int]:
    """What `generate` makes of a prompt, greedily; it ends at nothing else than its length."""
    prompt, max_tokens = request
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=max_tokens, eos_token_id=-1, do_sample=False)
    return list(out[0, len(prompt) :].tolist())


def engine_of(model: Any, cache_bytes: int = 8_000_000, **limits: int) -> Engine:
    return engine_for(model, greedy, Options(cache_bytes=cache_bytes, limits=Limits(**limits)))


def check(name: str) -> Engine:
    """Requests of several lengths that join while others run, one of them is cancelled: the others get their tokens."""
    asked = requests([80, 3, 17, 70, 9])
    theirs = [expected(decoder(name), request) for request in asked]
    engine = engine_of(decoder(name), max_step_tokens=16)  # so that prompts come in pieces, where they can
    sequences = [sequence(*request) for request in asked]
    for each in sequences:
        engine.add(each)
        engine.step()
    engine.cancel(sequences[1])
    num_told = len(sequences[1].generated)
    finish(engine)
    assert sequences[1].generated == theirs[1][:num_told] and num_told < 8
    assert sequences[1].listener.reason == "cancelled"  # type: ignore[attr-defined]
    for place in (0, 2, 3, 4):
        assert sequences[place].generated == theirs[place]
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_held_blocks) == (0, 0, 0)
    return engine


@pytest.mark.parametrize("name", OVER_PAGES)
def test_sinks_and_latent_attention_run_over_pages(name: str) -> None:
    assert check(name).manner == "in batches over pages"


@pytest.mark.parametrize("name", IN_BATCHES)
def test_other_layers_run_in_batches(name: str) -> None:
    how = "in batches over its own cache"
    assert check(name).manner == (f"{how}, reading prompts whole" if name in WHOLE_PROMPTS else how)


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_what_cannot_be_joined_runs_one_by_one(name: str) -> None:
    assert check(name).manner == "one by one over its own cache"


@pytest.mark.parametrize("name", NOTHING_KEPT)
def test_what_keeps_nothing_or_mixes_up_sequences_is_read_from_the_start(name: str) -> None:
    assert check(name).manner == "one by one, reading all of the text for each token"


@pytest.mark.parametrize("name", ["Bloom", "Mamba", "Jamba", "Rwkv"])
def test_a_seed_draws_the_same_alone_and_in_any_batch(name: str) -> None:
    asked = requests([20, 5, 31], max_tokens=12)

    def drawn(places: list[int]) -> dict[int, list[int]]:
        engine = engine_for(decoder(name), TokenSampler(), Options(cache_bytes=8_000_000))
        states = {place: SamplingState(temperature=1.0, seed=place) for place in places}
        sequences = {place: sequence(*asked[place], sampling=states[place]) for place in places}
        run_all(engine, [*sequences.values()])
        return {place: each.generated for place, each in sequences.items()}

    together = drawn([0, 1, 2])
    assert together == drawn([0]) | drawn([2, 1])
    assert len({*map(tuple, together.values())}) == 3


def noting_sizes(model: Any) -> list[tuple[int, int]]:
    """Rows and columns of each forward from now on."""
    sizes: list[tuple[int, int]] = []
    model.register_forward_pre_hook(
        lambda _, __, keywords: sizes.append(tuple(keywords["input_ids"].shape)), with_kwargs=True
    )
    return sizes


def test_rows_of_like_length_share_a_forward_and_no_others() -> None:
    model = decoder("Bloom")
    engine = engine_of(model)
    sizes = noting_sizes(model)
    run_all(engine, [sequence(*request) for request in requests([10, 20, 30, 200], max_tokens=4)])
    assert sizes.count((3, 1)) == sizes.count((1, 1)) == 3


@pytest.mark.parametrize("name", [*OVER_PAGES, *IN_BATCHES, *ONE_BY_ONE])
def test_prompts_that_come_at_once_get_the_tokens_of_each_alone(name: str) -> None:
    asked = requests([1, 40, 27, 40, 33, 5, 12, 5], max_tokens=40)  # beyond windows, and beyond room for columns
    engine = engine_of(decoder(name))
    sequences = [sequence(*request) for request in asked]
    run_all(engine, sequences)
    assert [each.generated for each in sequences] == [expected(decoder(name), request) for request in asked]


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("DiffLlama", [(1, 90), (4, 40), (3, 14)]),  # padded by 16 tokens at most
        ("Bamba", [(1, 90), (2, 40), (1, 35), (1, 30), (2, 14), (1, 2)]),  # padding would run through states
        ("Rwkv", [(1, 90), (1, 40), (1, 40), (1, 35), (1, 30), (1, 14), (1, 14), (1, 2)]),
    ],
)
def test_prompts_of_like_length_are_read_in_one_forward(name: str, reads: list[tuple[int, int]]) -> None:
    model = decoder(name)
    engine = engine_of(model, max_step_tokens=512)
    for request in requests([2, 40, 14, 30, 90, 40, 35, 14], max_tokens=1):
        engine.add(sequence(*request))
    sizes = noting_sizes(model)
    engine.step()
    assert sizes == reads


def test_short_prompts_are_read_whole_though_steps_are_small() -> None:
    model = decoder("DiffLlama")
    engine = engine_of(model, max_step_tokens=16)
    sizes = noting_sizes(model)
    run_all(engine, [sequence(*request) for request in requests([60, 100], max_tokens=1)])
    assert sizes == [(1, 4), (1, 60), *[(1, 16)] * 6]


def test_a_prompt_that_fails_harms_none_that_is_read_with_it() -> None:
    model = decoder("DiffLlama")
    asked = requests([12, 9, 7], max_tokens=6)
    theirs = [expected(decoder("DiffLlama"), request) for request in asked]
    engine = engine_of(model)
    poison = asked[1][0]

    def fail(_: Any, __: Any, keywords: Any) -> None:
        ends = keywords["input_ids"][:, -len(poison) :]
        if ends.shape[1] == len(poison) and (ends == torch.tensor(poison)).all(1).any():
            raise FloatingPointError("poison")

    model.register_forward_pre_hook(fail, with_kwargs=True)
    sequences = [sequence(*request) for request in asked]
    run_all(engine, sequences)
    assert isinstance(sequences[1].listener.ends[0][1], FloatingPointError)  # type: ignore[attr-defined]
    assert [sequences[0].generated, sequences[2].generated] == [theirs[0], theirs[2]]


def test_who_gives_way_for_lack_of_room_goes_on_later() -> None:
    asked = requests([30] * 6, max_tokens=20)
    theirs = [expected(decoder("Falcon"), request) for request in asked]
    engine = engine_of(decoder("Falcon"), cache_bytes=100 * 2 * 4 * 2 * 8 * 4, growth_tokens=0)
    assert engine.max_context_tokens < 3 * 50
    sequences = [sequence(*request) for request in asked]
    run_all(engine, sequences)
    assert engine.stats().num_preemptions > 0
    assert [each.generated for each in sequences] == theirs


def test_states_bound_how_many_run_at_once() -> None:
    engine = engine_of(decoder("Mamba"), cache_bytes=8 * 4 * 4 * 64 * 12)
    sequences = [sequence(*request) for request in requests([5] * 8, max_tokens=4)]
    for each in sequences:
        engine.add(each)
    engine.step()
    assert 0 < engine.stats().num_running < 8
    finish(engine)
    assert all(len(each.generated) == 4 for each in sequences)


def test_one_that_fails_harms_no_other() -> None:
    model = decoder("Jamba")
    asked = requests([12, 6, 7], max_tokens=6)
    theirs = [expected(decoder("Jamba"), request) for request in asked]
    engine = engine_of(model)
    poison = theirs[1][2]  # comes in the middle of a batch; layers before the last have kept that step by then

    def break_at_poison(_: Any, __: Any, keywords: Any) -> None:
        if keywords["input_ids"].shape[1] == 1 and (keywords["input_ids"] == poison).any():
            seen.append(keywords["input_ids"].shape[0])

    def fail_after(_: Any, __: Any) -> None:
        if seen and seen.pop() != 0:
            raise FloatingPointError("poison")

    seen: list[int] = []
    model.register_forward_pre_hook(break_at_poison, with_kwargs=True)
    model.lm_head.register_forward_pre_hook(fail_after)
    late = sequence(asked[0][0], 6, deadline_s=0.0)
    deaf = sequence(asked[0][0], 6, listener=Heard(stop_after=2, raises=ValueError("deaf")))
    sequences = [sequence(*request) for request in asked]
    run_all(engine, [late, deaf, *sequences])
    assert [each.generated for each in sequences] == theirs  # read again, whole: there the token is not alone
    assert isinstance(late.listener.ends[0][1], DeadlineExceeded)  # type: ignore[attr-defined]
    assert isinstance(deaf.listener.ends[0][1], ValueError)  # type: ignore[attr-defined]


def test_the_log_says_which_way_a_model_runs_and_why(caplog: pytest.LogCaptureFixture) -> None:
    engine_of(decoder("Mamba2"))
    assert "Mamba2ForCausalLM runs in batches over its own cache, not over pages: it has layers of the type" in (
        caplog.text
    )
