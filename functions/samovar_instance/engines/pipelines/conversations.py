"""Prompts and conversations with pictures and sounds, as the model's own processor reads them.

    parts, each checked alone ─► chat template ─► processor ─► token ids, and pixels or spectra beside them

What is decoded is bounded, and read in a thread, one request at a time: a processor is not made for two at once.
This module does not know models, engines or steps.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from samovar.errors import InvalidInput, RequestError
from samovar.tasks.generation import GenerationInput, Message, Part, Tool, refusal
from samovar_instance.engines.generation.planning import Limits, Planner
from samovar_instance.engines.generation.templates import ChatTemplate, num_chars, reason_of
from samovar_instance.engines.generation.tools import ToolFormat
from samovar_instance.engines.pipelines.media import MAX_PIXELS, MAX_SOUND_S, image_of, png_of, sound_of

_TEXT = "input_ids"
_IDS = (_TEXT, "decoder_input_ids")
_RATE_HZ = 16_000  # of processors that do not say
_PROOF_SIDE = 64  # pixels


class MediaPlanner(Planner):
    """Reads requests for one model that sees, or hears."""

    def __init__(
        self,
        processor: Any,
        limits: Limits,
        kinds: frozenset[str],
        move: Callable[[Any], dict[str, Any]],
        needed: str = _TEXT,
        tool_format: ToolFormat | None = None,
    ) -> None:
        """processor: of transformers, with a tokenizer. kinds: of parts that are taken, such as "image".

        move: makes the model's inputs of what the processor made, where the model is. needed: the input that the model
        cannot do without. tool_format: as of `Planner`.
        """
        super().__init__(processor.tokenizer, limits, tool_format)
        self._processor = processor
        self._kinds = kinds
        self._move = move
        self._needed = needed
        self._reading = threading.Lock()
        self._template: MediaTemplate = MediaTemplate(processor)

    async def _prompt(self, request: GenerationInput, wanted_tools: list[Tool]) -> tuple[list[int], Any]:
        if isinstance(request.prompt, list):
            if request.images:
                raise refusal("images", "images go with a prompt that is a text")
            self._check_needed({_TEXT: request.prompt}, "prompt")
            return await super()._prompt(request, wanted_tools)
        param = "prompt" if request.messages is None else "messages"
        messages = request.messages or []
        self._check_room(len(messages), param, "at least ")
        self._check_size(len(request.prompt or "") + sum(map(num_chars, messages)), param)
        ids, inputs = await asyncio.to_thread(self._read, request, wanted_tools)
        self._check_room(len(ids), param)
        return ids, inputs

    def proof(self) -> tuple[list[int], Any]:
        """Return tokens and inputs that the model can take: a small picture, if it sees."""
        from PIL import Image

        image = base64.b64decode(png_of(Image.new("RGB", (_PROOF_SIDE, _PROOF_SIDE))))
        parts = [Part(type="image", image=image), Part(type="text", text="a")]
        for request in (
            GenerationInput(messages=[Message(role="user", content=parts)]),
            GenerationInput(prompt="a", images=[image]),
        ):
            with suppress(RequestError):
                return self._read(request, [])
        return [0], None

    def _read(self, request: GenerationInput, tools: list[Tool]) -> tuple[list[int], dict[str, Any]]:
        """Return tokens and the model's inputs, of which they are one. Raises: RequestError."""
        inputs = self._inputs(request, tools)
        param = "prompt" if request.messages is None else "messages"
        self._check_needed(inputs, param)
        name = next((name for name in _IDS if name in inputs), None)
        if name is None:
            raise refusal(param, "the model's processor makes no tokens of it")
        return inputs[name][0].tolist(), inputs

    def _check_needed(self, inputs: dict[str, Any], param: str) -> None:
        if self._needed not in inputs:
            raise refusal(param, "this model writes about an image, and there is none")

    def _inputs(self, request: GenerationInput, tools: list[Tool]) -> dict[str, Any]:
        extractor = getattr(self._processor, "feature_extractor", None)
        media = Media(self._kinds, getattr(extractor, "sampling_rate", _RATE_HZ))
        if request.messages is not None and self._template.source:
            turns = [self._template.turn(place, message, media) for place, message in enumerate(request.messages)]
            with self._reading:
                return self._move(self._template.inputs(turns, tools))
        if request.messages is not None:
            prompt, pictures = _only_message(request.messages, media)
        else:
            prompt = str(request.prompt)
            pictures = [media.image(data, f"images[{place}]") for place, data in enumerate(request.images)]
        with self._reading:
            return self._move(self._pictured(prompt, pictures))

    def _pictured(self, prompt: str, pictures: list[Any]) -> Any:
        """Return what the processor makes of a prompt and its pictures."""
        try:
            return self._processor(images=pictures or None, text=prompt, return_tensors="pt")
        except Exception as error:  # it may raise anything where text and pictures do not fit
            raise refusal("prompt", f"the model's processor refuses this prompt: {reason_of(error)}") from error


class MediaTemplate(ChatTemplate):
    """The chat template of a processor, or else of its tokenizer."""

    def __init__(self, processor: Any) -> None:
        """processor: of transformers."""
        super().__init__(processor if processor.chat_template else processor.tokenizer)
        self._processor = processor
        self._takes_parts = "image" in self.source or "audio" in self.source

    def turn(self, place: int, message: Message, media: Media) -> dict[str, Any]:
        """Return one message as templates take it. Raises: RequestError naming what cannot be taken."""
        content = message.content
        parts = [Part(type="text", text=content)] if isinstance(content, str) else content or []
        made = self._turn(place, msgspec.structs.replace(message, content=None if content is None else ""))
        for at, part in enumerate(parts):
            if part.type != "text" and part.type not in self.source:
                path = f"messages[{place}].content[{at}]"
                raise refusal(path, f"{path}: the model's chat template has no place for parts of type {part.type!r}")
        read = [media.part(part, f"messages[{place}].content[{at}]") for at, part in enumerate(parts)]
        made["content"] = read if self._takes_parts else "".join(part["text"] for part in read)
        return made

    def inputs(self, turns: list[dict[str, Any]], tools: Sequence[Tool]) -> Any:
        """Return what the processor makes of a conversation, up to where the model is to answer.

        Raises: RequestError naming messages if the template does not take this conversation.
        """
        try:
            return self._processor.apply_chat_template(
                turns,
                chat_template=self.source,
                tools=[msgspec.to_builtins(tool) for tool in tools] or None,
                add_generation_prompt=True,
                sanitize_control_tokens=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
            )
        except Exception as error:  # a template is a program of its own, and may raise anything
            raise refusal(
                "messages", f"the model's chat template refuses these messages: {reason_of(error)}"
            ) from error


class Media:
    """Pictures and sounds of one request, decoded within bounds."""

    def __init__(self, kinds: frozenset[str], rate_hz: int) -> None:
        """kinds: of parts that are taken. rate_hz: of what the model hears."""
        self._kinds = kinds
        self._rate_hz = rate_hz
        self._num_pixels = 0
        self._num_samples = 0

    def part(self, part: Part, path: str) -> dict[str, Any]:
        """Return a part as templates take it. Raises: RequestError naming `path`."""
        if part.type == "text":
            return {"type": "text", "text": part.text}
        if part.type not in self._kinds:
            raise refusal(path, f"{path}: the model takes parts of type {', '.join(sorted(self._kinds))}")
        data = getattr(part, part.type)
        if data is None:
            raise refusal(path, f"{path}: a part of type {part.type!r} has its bytes, in base64, as {part.type!r}")
        read = self.image if part.type == "image" else self._sound
        return {"type": part.type, part.type: read(data, path)}

    def image(self, data: bytes, path: str) -> Any:
        """Return the picture. Raises: RequestError naming `path`."""
        picture = _named(path, lambda: image_of(data, max_pixels=MAX_PIXELS - self._num_pixels))
        self._num_pixels += picture.width * picture.height
        return picture

    def _sound(self, data: bytes, path: str) -> Any:
        sound = _named(path, lambda: sound_of(data, None, self._rate_hz))
        self._num_samples += len(sound)
        if self._num_samples > MAX_SOUND_S * self._rate_hz:
            raise refusal(path, f"{path}: the sounds of a request last at most {MAX_SOUND_S} s together")
        return sound


def _only_message(messages: Sequence[Message], media: Media) -> tuple[str, list[Any]]:
    """Return the text and the pictures of a message to a model without a chat template. Raises: RequestError."""
    message = messages[0]
    if len(messages) > 1 or message.role != "user" or message.content is None:
        raise refusal("messages", "the model has no chat template: it takes one message of the role user, or `prompt`")
    if isinstance(message.content, str):
        return message.content, []
    parts = [media.part(part, f"messages[0].content[{at}]") for at, part in enumerate(message.content)]
    if any(part["type"] == "audio" for part in parts):
        raise refusal("messages", "the model has no chat template: it takes texts and images only")
    text = "".join(part["text"] for part in parts if part["type"] == "text")
    return text, [part["image"] for part in parts if part["type"] == "image"]


def _named(path: str, read: Callable[[], Any]) -> Any:
    """Return what `read` does; its error names `path`."""
    try:
        return read()
    except InvalidInput as error:
        raise refusal(path, f"{path}: {str(error).partition(': ')[2]}") from None
