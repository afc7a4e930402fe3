"""Text that follows a schema by construction: before each token, those that would break it are masked.

The work is llguidance's: schemas and grammars are compiled against the tokenizer, once per request; a mask takes some
ten microseconds. What it cannot follow exactly is refused, never followed loosely. This module knows no tools.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import msgspec

from samovar.errors import RequestError
from samovar.tasks.generation import ResponseFormat, refusal

# between the parts of JSON at most so many blanks: a model that has nothing to say would go on with them for ever
WHITESPACE = r"[ \n]{0,20}"
MAX_SCHEMA_CHARS = 256 * 1024


class TokenGrammar:
    """The grammar of one text in the making. Not shared: each choice has its own. text: as it was made from."""

    def __init__(self, matcher: Any, text: str) -> None:
        self.text = text
        self._matcher = matcher

    @property
    def is_finished(self) -> bool:
        """Whether the text is complete and nothing can follow."""
        return bool(self._matcher.is_stopped())

    def mask(self) -> bytes:
        """Return a bit per token of the vocabulary, lowest bit first. Raises: RequestError if it got stuck."""
        mask: bytes = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise RequestError(f"the grammar of the answer got stuck: {_reason(self._matcher.get_error())}")
        return mask

    def consume(self, token_id: int) -> None:
        """The token was chosen, one that the mask allows."""
        self._matcher.consume_token(token_id)

    def copy(self) -> TokenGrammar:
        """Return one that goes on from here by itself."""
        return TokenGrammar(self._matcher.deep_copy(), self.text)


class GrammarMaker:
    """Makes grammars over one tokenizer.

    It reads the vocabulary when it is made, 0.4 s for 49,152 tokens, and the library holds the interpreter's lock
    meanwhile, in whatever thread: at the first request everybody else would wait, while a model is loaded nobody does.
    """

    def __init__(self, tokenizer: Any, num_logits: int, end_ids: Iterable[int]) -> None:
        """tokenizer: of transformers. num_logits: columns of the model's logits. end_ids: tokens that end a text."""
        self._vocabulary: Any = None
        self._why_none = ""
        try:
            self._vocabulary = _read_vocabulary(tokenizer, num_logits, sorted(end_ids))
        except Exception as error:  # noqa: BLE001 (a model that cannot be constrained answers all the same)
            self._why_none = str(error)

    def make(self, grammar: str, param: str) -> TokenGrammar:
        """Return a grammar at its beginning. May take a while: not for an event loop.

        grammar: as `of_schema` and `of_format` return it, or Lark in llguidance's dialect.
        Raises: RequestError naming `param` if it is wrong, or needs what llguidance does not know.
        """
        if self._vocabulary is None:
            raise refusal(param, f"{param}: text of this model cannot be constrained: {self._why_none}")
        from llguidance import LLMatcher

        if len(grammar) > MAX_SCHEMA_CHARS:
            raise refusal(param, f"{param}: the schema is larger than {MAX_SCHEMA_CHARS} characters")
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0)
        if matcher.is_error():
            raise refusal(param, f"{param}: the schema cannot be followed: {_reason(matcher.get_error())}")
        matcher.compute_bitmask()
        if matcher.is_error():  # its references lead in a circle, for example
            raise refusal(param, f"{param}: the schema cannot be followed: there is no text that it allows")
        return TokenGrammar(matcher, grammar)


def _read_vocabulary(tokenizer: Any, num_logits: int, end_ids: list[int]) -> Any:
    """Return the vocabulary as llguidance has it. Raises: ValueError, or whatever llguidance raises, if it cannot."""
    if not getattr(tokenizer, "is_fast", False) or not end_ids:
        raise ValueError("its tokenizer does not allow it")
    from llguidance import hf

    return hf.from_tokenizer(tokenizer, num_logits, end_ids)


def of_format(wanted: ResponseFormat) -> str | None:
    """Return the grammar of a response format, None for free text. Raises: RequestError naming response_format."""
    if wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return of_schema({"type": "object"})
    if wanted.json_schema is None or wanted.json_schema.json_schema is None:
        raise refusal("response_format", "response_format of type json_schema needs json_schema.schema")
    return of_schema(wanted.json_schema.json_schema)


def of_schema(schema: dict[str, Any]) -> str:
    """Return the grammar of JSON texts that a JSON Schema allows."""
    return f"start: {json_rule(schema)}"


def json_rule(schema: dict[str, Any]) -> str:
    """Return a Lark expression for JSON texts that a JSON Schema allows."""
    options = {"whitespace_pattern": WHITESPACE}
    return "%json " + msgspec.json.encode(schema | {"x-guidance": options}).decode()


def _reason(text: str) -> str:
    """Return what llguidance says is wrong, without its view of the grammar and its state."""
    lines = itertools.takewhile(lambda line: not line.startswith(("   1 | ", "<state>")), text.splitlines())
    return " ".join(" ".join(lines).split())[:300]
