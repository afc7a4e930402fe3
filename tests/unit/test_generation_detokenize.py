"""Token ids to text: pieces that add up to what `decode` says, and never half a character."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordPiece
from transformers import PreTrainedTokenizerFast

from samovar_instance.engines.generation.detokenize import Vocabulary
from support.tiny_models import END, tiny_tokenizer

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
SMILE = "\U0001f600\u200d\U0001f525 né 中文\n"


def sentencepiece() -> Any:
    """Return a tokenizer as Llama 2's: spaces as ▁, bytes for what the vocabulary lacks."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he")]
    pieces = ["<unk>", "</s>", *byte_tokens, *"▁thecandog", *(left + right for left, right in merges)]
    vocab = {piece: place for place, piece in enumerate(pieces)}
    tokenizer = Tokenizer(BPE(vocab, merges, byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")
    fast.byte_ids = {byte: tokenizer.token_to_id(token) for byte, token in enumerate(byte_tokens)}
    return fast


def streamed(vocabulary: Vocabulary, ids: list[int]) -> list[str]:
    detokenizer = vocabulary.detokenizer()
    return [detokenizer.add(token_id) for token_id in ids]


byte_level = Vocabulary(tiny_tokenizer())


@given(texts)
@example(SMILE)
def test_byte_level_pieces_add_up_and_are_whole(text: str) -> None:
    ids = tiny_tokenizer().encode(text, add_special_tokens=False)
    pieces = streamed(byte_level, ids)
    assert "".join(pieces) == text
    assert text.count("\ufffd") == "".join(pieces).count("\ufffd")


@given(st.lists(st.integers(0, 319), max_size=30))
def test_any_tokens_come_out_as_decode_has_them(ids: list[int]) -> None:
    """Random bytes are mostly no UTF-8: replaced as `decode` does it, but for a character cut off at the end."""
    tokenizer = tiny_tokenizer()
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    text = "".join(streamed(byte_level, ids))
    assert whole == text or (whole.endswith("\ufffd") and whole.removesuffix("\ufffd") == text)


@given(texts)
@example(SMILE)
def test_sentencepiece_pieces_add_up(text: str) -> None:
    tokenizer = sentencepiece()
    ids = [tokenizer.byte_ids[byte] for byte in text.encode()]
    assert "".join(streamed(Vocabulary(tokenizer), ids)) == text


def test_sentencepiece_words_keep_the_space_in_front() -> None:
    """The text continues the prompt: only the tokenizer's own decode drops the first space."""
    tokenizer = sentencepiece()
    ids = tokenizer.encode("the cat and the dog", add_special_tokens=False)
    assert "".join(streamed(Vocabulary(tokenizer), ids)) == " the cat and the dog"
    reply = Vocabulary(tokenizer).detokenizer(is_reply=True)
    assert "".join(map(reply.add, ids)) == "the cat and the dog" == tokenizer.decode(ids)


def test_a_space_that_the_model_wrote_stays() -> None:
    ids = tiny_tokenizer().encode(" the", add_special_tokens=False)
    assert "".join(map(byte_level.detokenizer(is_reply=True).add, ids)) == " the"


def test_a_character_comes_with_its_last_byte() -> None:
    ids = tiny_tokenizer().encode("a\U0001f600b", add_special_tokens=False)
    assert streamed(byte_level, ids) == ["a", "", "", "", "\U0001f600", "b"]


def test_a_character_that_is_cut_off_is_left_out() -> None:
    ids = tiny_tokenizer().encode("a\U0001f600", add_special_tokens=False)[:-1]
    assert "".join(streamed(byte_level, ids)) == "a"


def test_special_tokens_are_left_out_unless_shown() -> None:
    end = tiny_tokenizer().convert_tokens_to_ids(END)
    assert byte_level.detokenizer().add(end) == ""
    assert byte_level.detokenizer(frozenset([end])).add(end) == END
    assert byte_level.is_special(end) and byte_level.bytes_of(end) == END.encode()


def test_ids_that_no_token_has_are_nothing() -> None:
    assert byte_level.bytes_of(100_000) == b""
    assert byte_level.detokenizer().add(100_000) == ""


@pytest.mark.parametrize("text", ["the cat sat", "cat the"])
def test_other_tokenizers_are_decoded_by_the_difference(text: str) -> None:
    vocab = {"[UNK]": 0, "the": 1, "cat": 2, "sa": 3, "##t": 4}
    tokenizer = Tokenizer(WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", clean_up_tokenization_spaces=False)
    ids = fast.encode(text, add_special_tokens=False)
    pieces = streamed(Vocabulary(fast), ids)
    assert "".join(pieces) == text and all(pieces)
