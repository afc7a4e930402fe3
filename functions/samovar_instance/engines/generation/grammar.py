"""Text that follows a schema by construction: before each token, those that would break it are masked.

The work is llguidance's: schemas and grammars are compiled against the tokenizer, once per request; a mask takes some
ten microseconds. What it cannot follow exactly is refused, never followed loosely. This module knows no tools.
"""

from __future__ import annotations

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
            raise RequestError(f"the grammar of the answer got stuck: {_first_line(self._matcher.get_error())}")
        return mask

    def consume(self, token_id: int) -> None:
        """The token was chosen, one that the mask allows."""
        self._matcher.consume_token(token_id)

    def copy(self) -> TokenGrammar:
        """Return one that goes on from here by itself."""
        return TokenGrammar(self._matcher.deep_copy(), self.text)


class GrammarMaker:
    """Makes grammars over one tokenizer. For the first one the vocabulary is read: 0.4 s for 49,152 tokens."""

    def __init__(self, tokenizer: Any, num_logits: int, end_ids: Iterable[int]) -> None:
        """tokenizer: of transformers. num_logits: columns of the model's logits. end_ids: tokens that end a text."""
        self._tokenizer = tokenizer
        self._num_logits = num_logits
        self._end_ids = sorted(end_ids)
        self._vocabulary: Any = None

    def make(self, grammar: str, param: str) -> TokenGrammar:
        """Return a grammar at its beginning. May take a while: not for an event loop.

        grammar: as `of_schema` and `of_format` return it, or Lark in llguidance's dialect.
        Raises: RequestError naming `param` if it is wrong, or needs what llguidance does not know.
        """
        from llguidance import LLMatcher

        if len(grammar) > MAX_SCHEMA_CHARS:
            raise refusal(param, f"{param}: the schema is larger than {MAX_SCHEMA_CHARS} characters")
        matcher = LLMatcher(self._read_vocabulary(param), grammar, log_level=0)
        if matcher.is_error():
            raise refusal(param, f"{param}: the schema cannot be followed: {_first_line(matcher.get_error())}")
        return TokenGrammar(matcher, grammar)

    def _read_vocabulary(self, param: str) -> Any:
        from llguidance.hf import from_tokenizer

        if self._vocabulary is None:
            if not getattr(self._tokenizer, "is_fast", False) or not self._end_ids:
                raise refusal(
                    param, f"{param}: text of this model cannot be constrained: its tokenizer does not allow it"
                )
            try:
                self._vocabulary = from_tokenizer(self._tokenizer, self._num_logits, self._end_ids)
            except ValueError as error:
                raise refusal(param, f"{param}: text of this model cannot be constrained: {error}") from error
        return self._vocabulary


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


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]
