"""`load_tokenizer`: a `tokenizer.json` in two thirds of the time, the same tokenizer in every setting and token.

Most of the time goes into the vocabulary of a WordPiece model, which the library parses entry by entry into a tree of
JSON values first. Here msgspec reads it into a dict; everything else in the file is read by the library itself.
This module does not know models, weights or torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

_parts = msgspec.json.Decoder(dict[str, msgspec.Raw])
_vocab = msgspec.json.Decoder(dict[str, int])


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Return the tokenizer saved in a file; it equals `Tokenizer.from_file`.

    Args:
        path: a `tokenizer.json`, or the directory it is in.
    Raises: OSError if there is no such file, Exception if the library cannot read it.
    """
    file = Path(path)
    data = (file / "tokenizer.json" if file.is_dir() else file).read_bytes()
    try:
        parts = _parts.decode(data)
        model = _parts.decode(parts["model"])
        is_word_piece = model["type"] == b'"WordPiece"'
    except (msgspec.MsgspecError, KeyError):
        is_word_piece = False  # an old form or none at all: the library knows what to do or say
    return _word_piece(parts, model) if is_word_piece else Tokenizer.from_buffer(data)


def _word_piece(parts: dict[str, msgspec.Raw], model: dict[str, msgspec.Raw]) -> Tokenizer:
    vocab = _vocab.decode(model["vocab"])
    names = ("unk_token", "max_input_chars_per_word", "continuing_subword_prefix")
    settings: dict[str, Any] = {name: msgspec.json.decode(model[name]) for name in names if name in model}
    added = [token["content"] for token in msgspec.json.decode(parts.get("added_tokens", b"[]"))]
    # added tokens keep the numbers that the model gives them while the rest is read
    few = {content: vocab[content] for content in added if content in vocab}
    small = parts | {
        "model": msgspec.Raw(msgspec.json.encode(model | {"vocab": msgspec.Raw(msgspec.json.encode(few))}))
    }
    tokenizer = Tokenizer.from_buffer(msgspec.json.encode(small))
    tokenizer.model = WordPiece(vocab, **settings)
    return tokenizer
