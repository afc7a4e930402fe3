"""Prompts and conversations with pictures and sounds, as the model's own processor reads them.

    messages ─► parts, each checked alone ─► chat template ─► processor ─► token ids, and pixels or spectra beside them

What is decoded and read is bounded, and done in a thread, one request at a time: a processor is not made for two.
This module does not know models, engines or steps.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from samovar.errors import InvalidInput, RequestError
from samovar.tasks.generation import GenerationInput, Message, Part, Tool, refusal
from samovar_instance.engines.generation.planning import Limits, Planner
from samovar_instance.engines.generation.templates import MAX_REASON_CHARS, ChatTemplate, num_chars
from samovar_instance.engines.generation.tools import ToolFormat
from samovar_instance.engines.pipelines.media import MAX_PIXELS, image_of, sound_of

_IDS = ("input_ids", "decoder_input_ids")


class MediaPlanner(Planner):
    """Reads requests for one model that sees, or hears. kinds: of parts that it takes."""

    def __init__(self, processor: Any, limits: Limits, kinds: frozenset[str], tool_format: ToolFormat | None) -> None:
        """processor: of transformers, with a tokenizer. tool_format: as of `Planner`."""
        super().__init__(processor.tokenizer, limits, tool_format)
        self._processor = processor
        self._kinds = kinds
        self._reading = threading.Lock()
        self._template = MediaTemplate(processor)

    async def _prompt(self, request: GenerationInput, wanted_tools: list[Tool]) -> tuple[list[int], Any]:
        if isinstance(request.prompt, list):
            if request.images:
                raise refusal("images", "images go with a prompt that is a text")
            return await super()._prompt(request, wanted_tools)
        if request.messages is not None:
            param, work = "messages", self._conversation(request.messages, wanted_tools)
            size = sum(map(num_chars, request.messages))
            self._check_room(len(request.messages), param, "at least ")
        else:
            assert request.prompt is not None, "one of the two is there"
            param, work = "prompt", self._pictured(request.prompt, request.images)
            size = len(request.prompt)
        self._check_size(size, param)
        inputs = await asyncio.to_thread(self._read, work)
        name = next((name for name in _IDS if name in inputs), None)
        if name is None:
            raise refusal(param, "the model's processor makes no tokens of it")
        ids: list[int] = inputs[name][0].tolist()
        self._check_room(len(ids), param)
        return ids, inputs

    def _read(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        with self._reading:
            return work()

    def _conversation(self, messages: Sequence[Message], tools: list[Tool]) -> Callable[[], dict[str, Any]]:
        def read() -> dict[str, Any]:
            media = Media(self._kinds, self._rate_hz)
            return self._template.inputs(messages, tools, media)

        return read

    def _pictured(self, prompt: str, images: list[bytes]) -> Callable[[], dict[str, Any]]:
        def read() -> dict[str, Any]:
            media = Media(self._kinds, self._rate_hz)
            pictures = [media.image(data, f"images[{place}]") for place, data in enumerate(images)]
            try:
                return dict(self._processor(images=pictures or None, text=prompt, return_tensors="pt"))
            except Exception as error:  # it may raise anything where text and pictures do not fit
                raise refusal("prompt", f"the model's processor refuses this prompt: {_reason(error)}") from error

        return read
