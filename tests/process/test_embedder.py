"""Embeddings equal those of the model's own library, whatever its folder says about pooling, layers and lengths."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from samovar.errors import DeployRefused, RequestError
from samovar.tasks.generation import CONTEXT_EXCEEDED
from samovar_instance.engines.embeddings import MAX_CHARS_PER_TOKEN, Embedder, read_recipe
from support.tiny_models import tiny_model

pytestmark = pytest.mark.process

TEXTS = ["tea is ready", "the", "the old man with the hat went to the other end of the street " * 4, "the dog"]
DIMENSIONS = 64


def module(place: str, kind: str) -> dict[str, Any]:
    return {"idx": 0, "name": place or "0", "path": place, "type": f"sentence_transformers.models.{kind}"}


def folder_of(tmp_path: Path, *, pooling: str = "", modules: tuple[str, ...] = (), **sentences: Any) -> Path:
    """Return the folder of a tiny encoder with files of sentence-transformers, if any are asked for."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model("bert"), folder)
    if pooling:
        places = [module("", "Transformer"), module("1_Pooling", "Pooling")]
        places += [module(f"{index}_{kind}", kind) for index, kind in enumerate(modules, 2)]
        (folder / "modules.json").write_text(json.dumps(places))
        (folder / "1_Pooling").mkdir()
        modes = {f"pooling_mode_{mode}": mode == pooling for mode in MODES}
        config = {"word_embedding_dimension": DIMENSIONS, **modes}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    if "Dense" in modules:
        write_dense(folder / "2_Dense")
    if sentences:
        (folder / "sentence_bert_config.json").write_text(json.dumps(sentences))
    return folder


def write_dense(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    config = {
        "in_features": DIMENSIONS,
        "out_features": 8,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(1)
    weights = {"linear.weight": torch.randn(8, DIMENSIONS), "linear.bias": torch.randn(8)}
    save_file(weights, folder / "model.safetensors")


MODES = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")


def embed(folder: Path, texts: list[str], **settings: Any) -> tuple[list[list[float]], list[int]]:
    embedder = type("Model", (Embedder,), settings)()
    embedder.load(folder, "cpu")
    answers = embedder(texts)
    return [answer["embedding"] for answer in answers], [answer["num_tokens"] for answer in answers]


def reference(folder: Path, text: str, pooling: str, max_tokens: int = 10_000) -> Any:
    """Return the text's vector by transformers alone, not yet of length 1."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")["input_ids"][:, :max_tokens]
    with torch.inference_mode():
        hidden = AutoModel.from_pretrained(folder)(ids).last_hidden_state[0]
    return {
        "cls_token": hidden[0],
        "lasttoken": hidden[-1],
        "mean_tokens": hidden.mean(0),
        "max_tokens": hidden.amax(0),
    }[pooling]


def assert_equal(found: list[list[float]], expected: list[Any]) -> None:
    for row, vector in zip(found, expected, strict=True):
        assert row == pytest.approx(vector.tolist(), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("pooling", MODES)
def test_each_way_of_pooling_is_that_of_the_single_text(tmp_path: Path, pooling: str) -> None:
    folder = folder_of(tmp_path, pooling=pooling)
    found, counts = embed(folder, TEXTS)
    assert_equal(found, [reference(folder, text, pooling) for text in TEXTS])
    assert counts == [len(tokens(folder, text)) for text in TEXTS]


def tokens(folder: Path, text: str) -> list[int]:
    from transformers import AutoTokenizer

    found: list[int] = AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    return found


def test_without_files_of_sentence_transformers_it_is_the_mean_of_length_one(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    found, _ = embed(folder, TEXTS)
    expected = [reference(folder, text, "mean_tokens") for text in TEXTS]
    assert_equal(found, [vector / vector.norm() for vector in expected])


def test_layers_after_the_pooling_and_the_length_are_theirs(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    folder = folder_of(tmp_path, pooling="mean_tokens", modules=("Dense", "Normalize"))
    weights = load_file(folder / "2_Dense" / "model.safetensors")
    found, _ = embed(folder, TEXTS)
    layers = [
        torch.tanh(weights["linear.weight"] @ reference(folder, text, "mean_tokens") + weights["linear.bias"])
        for text in TEXTS
    ]
    assert_equal(found, [vector / vector.norm() for vector in layers])


def test_texts_that_are_longer_than_the_model_reads_are_refused_with_both_numbers(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, pooling="mean_tokens", max_seq_length=6)
    long = TEXTS[2]
    with pytest.raises(RequestError, match=f"text has {len(tokens(folder, long))} tokens, the model reads 6") as caught:
        embed(folder, [long])
    assert caught.value.extra == {"param": "text", "reason": CONTEXT_EXCEEDED}
    fits = "the old man with"
    assert embed(folder, [fits], max_tokens=len(tokens(folder, fits)))[1] == [len(tokens(folder, fits))]
    with pytest.raises(RequestError, match="the model reads"):
        embed(folder, [fits], max_tokens=len(tokens(folder, fits)) - 1)


def test_where_it_is_declared_texts_are_cut_where_the_files_say(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, pooling="mean_tokens", max_seq_length=6)
    found, counts = embed(folder, TEXTS, truncates=True)
    assert counts == [min(6, len(tokens(folder, text))) for text in TEXTS]
    assert_equal(found, [reference(folder, text, "mean_tokens", 6) for text in TEXTS])
    assert embed(folder, TEXTS, max_tokens=4, truncates=True)[1] == [min(4, count) for count in counts]


def test_a_text_that_is_far_too_long_is_refused_before_it_is_tokenized(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, pooling="mean_tokens")
    most = 3 * MAX_CHARS_PER_TOKEN
    assert embed(folder, ["t" * most], max_tokens=3, truncates=True)[1] == [3]
    with pytest.raises(RequestError, match=f"has {most + 1} characters, at most {most} are taken") as caught:
        embed(folder, ["t" * (most + 1)], max_tokens=3)
    assert caught.value.extra == {"param": "text", "reason": CONTEXT_EXCEEDED}


def test_settings_of_the_class_come_first(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, pooling="mean_tokens", do_lower_case=True)
    found, _ = embed(folder, ["TEA"], pooling="cls", normalize=True, prefix="Query: ")
    expected = reference(folder, "query: tea", "cls_token")
    assert_equal(found, [expected / expected.norm()])


def test_a_text_of_no_tokens_is_a_vector_of_zeros_and_its_mates_are_unharmed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)  # its tokenizer adds no token of its own
    found, counts = embed(folder, ["", "tea"])
    assert (found[0], counts) == ([0.0] * DIMENSIONS, [0, len(tokens(folder, "tea"))])
    assert found[1] == pytest.approx(embed(folder, ["tea"])[0][0], abs=1e-5)


def test_the_same_as_sentence_transformers(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    for number, modules in enumerate([(), ("Normalize",), ("Dense", "Normalize")]):
        folder = folder_of(tmp_path / str(number), pooling="mean_tokens", modules=modules, max_seq_length=20)
        expected = library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
        assert_equal(embed(folder, TEXTS, truncates=True)[0], list(expected))


@pytest.mark.parametrize(
    ("kind", "detail"), [("LSTM", "has a module LSTM"), ("Normalize", "pools in one of the ways cls, lasttoken")]
)
def test_what_it_cannot_do_is_refused(tmp_path: Path, kind: str, detail: str) -> None:
    folder = folder_of(tmp_path, pooling="mean_tokens", modules=(kind,))
    if kind == "Normalize":
        (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_weightedmean_tokens": true}')
    with pytest.raises(DeployRefused, match=detail):
        read_recipe(folder)
