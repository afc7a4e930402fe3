"""From token ids to text, as they come: whole characters only, special tokens left out.

    byte-level BPE     each character of a token stands for a byte             GPT-2, Llama 3, Qwen, Phi, SmolLM
    sentencepiece      "▁" stands for a space, "<0xE2>" for a byte             Llama 2, Mistral, Gemma
    any other          the tokenizer decodes a few tokens before, and with the new one: the difference is its text

A character whose bytes are spread over tokens is held back until its last one. Bytes that are no UTF-8 become U+FFFD,
as `decode` has it; a character that the end cut off is dropped. A text that continues a prompt keeps a space that
begins it; of a reply the one that sentencepiece puts in front of every word is dropped.
This module does not know models or requests.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from typing import Any, Protocol

BytesOf = Callable[[int], bytes]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NUM_BEFORE = 6  # tokens that settle how the next is written


class Detokenizer(Protocol):
    """One text in the making."""

    def add(self, token_id: int) -> str:
        """Take the next token; return the characters that are complete by it."""


class Vocabulary:
    """The tokens of one tokenizer as bytes, and the makers of its texts."""

    def __init__(self, tokenizer: Any) -> None:
        """tokenizer: of transformers, fast or slow."""
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.items()
        self._special = frozenset(tokenizer.all_special_ids) | {token_id for token_id, token in added if token.special}
        steps = _decoder_steps(tokenizer)
        self._piece_bytes = _piece_reader(steps)
        self._has_extra_space = any(map(_drops_space, steps))

    def is_special(self, token_id: int) -> bool:
        """Whether the token is no part of a text, such as the one that ends it."""
        return token_id in self._special

    def bytes_of(self, token_id: int) -> bytes:
        """Return what a token adds to a text, special ones too; nothing for an id that no token has."""
        if self._piece_bytes is None:
            return str(self._tokenizer.decode([token_id])).encode()
        piece = self._tokenizer.convert_ids_to_tokens(token_id)
        return b"" if piece is None else self._piece_bytes(piece)

    def detokenizer(self, shown: frozenset[int] = frozenset(), *, is_reply: bool = False) -> Detokenizer:
        """Return the maker of a new text.

        shown: special tokens that are part of it all the same. is_reply: it stands by itself, and continues nothing.
        """
        hidden = self._special - shown
        if self._piece_bytes is not None:
            drops_space = is_reply and self._has_extra_space
            return ByteDetokenizer(lambda token_id: b"" if token_id in hidden else self.bytes_of(token_id), drops_space)
        return DiffDetokenizer(lambda ids: str(self._tokenizer.decode(ids)), hidden)


class ByteDetokenizer:
    """Joins the bytes of tokens and reads them as UTF-8."""

    def __init__(self, bytes_of: BytesOf, drops_space: bool) -> None:
        """drops_space: one that begins the text is left out."""
        self._bytes_of = bytes_of
        self._drops_space = drops_space
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def add(self, token_id: int) -> str:
        """Take the next token; return the characters that are complete by it."""
        text = self._decode(self._bytes_of(token_id))
        if self._drops_space and text:
            self._drops_space = False
            return text.removeprefix(" ")
        return text


class DiffDetokenizer:
    """For tokenizers whose tokens are no bytes: what `decode` makes of the newest ones, with and without the last."""

    def __init__(self, decode: Callable[[list[int]], str], hidden: frozenset[int]) -> None:
        self._decode = decode
        self._hidden = hidden
        self._told: list[int] = []
        self._new: list[int] = []

    def add(self, token_id: int) -> str:
        """Take the next token; return the characters that are complete by it."""
        if token_id in self._hidden:
            return ""
        self._new.append(token_id)
        before, text = self._decode(self._told), self._decode(self._told + self._new)
        if text.endswith("\ufffd") or len(text) <= len(before):
            return ""
        self._told, self._new = (self._told + self._new)[-_NUM_BEFORE:], []
        return text[len(before) :]


def _decoder_steps(tokenizer: Any) -> list[dict[str, Any]]:
    """Return how a fast tokenizer makes text of tokens, as `tokenizer.json` has it; nothing for others."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.decoder is None:
        return []
    decoder: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = decoder.get("decoders", [decoder])
    return steps


def _piece_reader(steps: list[dict[str, Any]]) -> Callable[[str], bytes] | None:
    """Return what reads a token's own notation as bytes, None if this tokenizer's notation is not one of the two."""
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:
        return _byte_level_reader()
    if any(map(_writes_spaces, steps)) and kinds <= {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"}:
        return _read_sentencepiece
    return None


def _writes_spaces(step: dict[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return bool(step["replacement"] == "▁")
    return step == {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}


def _drops_space(step: dict[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return bool(step["prepend_scheme"] != "never")
    return bool(step["type"] == "Strip" and step["content"] == " " and step["start"] > 0)


def _byte_level_reader() -> Callable[[str], bytes]:
    """Return what reads GPT-2's notation: visible characters stand for themselves, other bytes for 256 and up."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in set(visible))
    byte_of = {chr(byte): byte for byte in visible} | {chr(256 + at): byte for at, byte in enumerate(others)}

    def read(piece: str) -> bytes:
        try:
            return bytes(byte_of[char] for char in piece)
        except KeyError:  # a token that was added as it is
            return piece.encode()

    return read


def _read_sentencepiece(piece: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode()
