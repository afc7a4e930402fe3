"""One choice of an answer, from tokens to what its reader gets: text, calls, logprobs, and how it ended.

    token ─► detokenizer ─► stops ─► tools ─► waiting pieces ─► take()

What waits is merged into one piece, so that a reader who is slow costs nobody anything; it is bounded by max_tokens.
This module does not know the engine, other choices or who reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from samovar.tasks.generation import Alternative, FinishReason, GenerationOutput, TokenLogprob, ToolCall
from samovar_instance.engines.generation.contract import EndReason, Token
from samovar_instance.engines.generation.detokenize import Detokenizer, Vocabulary
from samovar_instance.engines.generation.sampling_state import SamplingState
from samovar_instance.engines.generation.stops import StopFinder
from samovar_instance.engines.generation.tools import ToolReader

MAX_TOLD = 128  # tokens whose logprobs are in one piece: whoever reads it does so at one go
T = TypeVar("T")


class Choice:
    """The engine's `Listener` of one sequence.

    is_ended: nothing more comes into it. error: why it failed, if it did. num_tokens: heard so far.
    """

    def __init__(
        self,
        index: int,
        vocabulary: Vocabulary,
        detokenizer: Detokenizer,
        sampling: SamplingState,
        wake: Callable[[], object],
        *,
        stops: Sequence[str] = (),
        end_ids: frozenset[int] = frozenset(),
        tools: ToolReader | None = None,
        is_one_call: bool = False,
        prefix: str = "",
    ) -> None:
        """wake: called when there is something to take. end_ids: tokens that end it and are no part of its text.

        tools: reads calls; None = text is text. is_one_call: the first call ends it. prefix: text that goes in front.
        """
        self._index = index
        self._vocabulary = vocabulary
        self._sampling = sampling
        self._wake = wake
        self._end_ids = end_ids
        self._detokenizer = detokenizer
        self._stops = StopFinder(stops)
        self._tools = tools
        self._is_one_call = is_one_call
        self._texts = [prefix] if prefix else []
        self._calls: list[ToolCall] = []
        self._told: deque[TokenLogprob] = deque()
        self._num_in = 0  # characters that came out of tokens
        self._num_out = 0  # … and passed the stops
        self._finish: FinishReason | None = None
        self.is_ended = False
        self.error: Exception | None = None
        self.num_tokens = 0

    def token(self, token: Token) -> FinishReason | None:
        """Take the next token; a reason ends the sequence with it."""
        self.num_tokens += 1
        if token.id not in self._end_ids:
            self._note_logprob(token)
            text = self._detokenizer.add(token.id)
            self._num_in += len(text)
            self._pass(self._stops.add(text))
        if self._texts or self._calls:
            self._wake()
        if self._stops.found:
            return "stop"
        if self._is_one_call and self._tools is not None and self._tools.num_calls:
            return "tool_calls"
        grammar = self._sampling.grammar
        return "stop" if grammar is not None and grammar.is_finished else None

    def ended(self, reason: EndReason, error: Exception | None) -> None:
        """The sequence is over."""
        self.is_ended, self.error = True, error
        if reason in ("stop", "length", "tool_calls"):
            self._flush()
            has_calls = self._tools is not None and self._tools.num_calls > 0
            self._finish = "length" if reason == "length" else "tool_calls" if has_calls else "stop"
        self._wake()

    def take(self) -> GenerationOutput | None:
        """Return what waits as one piece, None if nothing does; of many logprobs the rest comes with the next."""
        told = self._take_logprobs()
        finish = None if self._has_logprobs else self._finish
        if not (self._texts or self._calls or told or finish):
            return None
        piece = GenerationOutput(
            index=self._index,
            text="".join(self._texts),
            logprobs=told,
            tool_calls=self._calls,
            finish_reason=finish,
        )
        self._texts, self._calls = [], []
        self._finish = None if finish else self._finish
        return piece

    def _pass(self, text: str) -> None:
        """Take text that no stop will cut off."""
        self._num_out += len(text)
        if self._tools is not None and text:
            text, calls = self._tools.add(text)
            self._add_calls(calls)
        if text:
            self._texts.append(text)

    def _flush(self) -> None:
        """Let go what was held back: nothing more comes that it could become."""
        if not self._stops.found:
            self._pass(self._stops.flush())
            self._num_out = self._num_in + 1  # and whatever tokens had no text of their own
        if self._tools is not None:
            text, calls = self._tools.flush()
            self._add_calls(calls)
            self._texts += [text] if text else []

    def _add_calls(self, calls: list[ToolCall]) -> None:
        """Keep the calls, of several that are one too many only the first."""
        room = 1 - len(self._calls) if self._is_one_call else len(calls)
        self._calls += calls[:room]

    def _note_logprob(self, token: Token) -> None:
        if token.logprob is None:
            return
        text, raw = self._written(token.id)
        top = [self._alternative(token_id, logprob) for token_id, logprob in token.top]
        self._told.append(
            TokenLogprob(token=text, token_id=token.id, logprob=token.logprob, bytes=raw, top=top, offset=self._num_in)
        )

    def _alternative(self, token_id: int, logprob: float) -> Alternative:
        text, raw = self._written(token_id)
        return Alternative(token=text, token_id=token_id, logprob=logprob, bytes=raw)

    def _written(self, token_id: int) -> tuple[str, list[int]]:
        """Return a token alone as text and bytes; bytes that are no whole characters are written out."""
        raw = self._vocabulary.bytes_of(token_id)
        try:
            return raw.decode(), [*raw]
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), [*raw]

    def _take_logprobs(self) -> list[TokenLogprob]:
        """Return the logprobs of the next tokens whose text has begun to pass."""
        told: list[TokenLogprob] = []
        while self._has_logprobs and len(told) < MAX_TOLD:
            told.append(self._told.popleft())
        return told

    @property
    def _has_logprobs(self) -> bool:
        return bool(self._told) and self._told[0].offset < self._num_out
