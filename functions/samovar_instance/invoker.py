"""One handler, from bytes to bytes. Made once per version; used by the runners and the warm-up.

Bodies are JSON, whatever they are called, unless their media type is that of tensors (`samovar.tensor_codec`).
This module does not know calls, batches, deadlines or threads.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from samovar.authoring import Definition
from samovar.context import Context
from samovar.errors import BadOutput
from samovar.schema import Input, Output
from samovar.tensor_codec import MEDIA_TYPE as TENSORS
from samovar_instance.tensors import Tensors

JSON = "application/json"


class Invoker:
    """`handler`: the user's function, or the loaded instance of the user's class.

    prove: finds out whether that is well, raising if it is not; a plain async handler's returns a coroutine or None.
    length: tokens of one item, None if the function does not say.
    takes_context: whether the handler asked for one: the call's own, of a batch the list of its members'.
    """

    def __init__(self, definition: Definition, handler: Callable[..., Any]) -> None:
        self.kind = definition.handler
        self.batch = definition.batch
        length = definition.batch.length if definition.batch is not None else None
        self.length: Callable[[Any], int] | None = getattr(handler, length) if isinstance(length, str) else length
        shape = Input(definition)
        self.decode: Callable[[bytes], Any] = shape.decode
        self.encode: Callable[[Any], bytes] = Output().encode
        self._args = shape.invoke_args
        self._definition = definition
        self._item = shape.item
        self._context_at = definition.signature.context_at
        self.takes_context = self._context_at is not None
        self.prove: Callable[[], Any] = _nothing
        self._handler = handler

    @property
    def is_stream(self) -> bool:
        """Whether the handler yields its answer item by item."""
        return self.kind in ("generator", "async_generator")

    @cached_property
    def tensors(self) -> Tensors:
        """Decoder and encoder of tensors. Raises: RequestError if the version's types are none."""
        return Tensors(self._definition, self._item)

    def read(self, body: bytes, content_type: str) -> Any:
        """Return the value of a body. Raises: RequestError, InvalidInput."""
        return self.decode(body) if content_type != TENSORS else self.tensors.decode(body)

    def write(self, output: Any, accept: str) -> bytes:
        """Return an output, or an item of a stream, as its caller accepts it. Raises: BadOutput, RequestError."""
        return self.encode(output) if accept != TENSORS else self.tensors.encode(output)

    def start(self, value: Any, context: Context | Sequence[Context] | None = None) -> Any:
        """Call the handler with a decoded value; return its result, coroutine or generator.

        context: None for what is no call, such as the warm-up: a handler that wants one gets a blank one.
        """
        args, at = self._args(value), self._context_at
        if at is None:
            return self._handler(*args)
        if context is None:
            context = Context() if self.batch is None else [Context() for _ in value]
        return self._handler(*args[:at], context, *args[at:])

    def answer(
        self, body: bytes, context: Context | None = None, content_type: str = JSON, accept: str = JSON
    ) -> bytes:
        """Return a sync handler's answer. Raises whatever decoding, the handler or encoding raises."""
        return self.write(self.start(self.read(body, content_type), context), accept)

    async def answer_async(
        self, body: bytes, context: Context | None = None, content_type: str = JSON, accept: str = JSON
    ) -> bytes:
        """Return a coroutine handler's answer."""
        return self.write(await self.start(self.read(body, content_type), context), accept)

    def items(self, body: bytes, context: Context | None = None, content_type: str = JSON) -> Iterator[Any]:
        """Return the generator of a stream. Raises before the first item if the input is wrong."""
        generator: Iterator[Any] = self.start(self.read(body, content_type), context)
        return generator

    def items_async(self, body: bytes, context: Context | None = None, content_type: str = JSON) -> AsyncIterator[Any]:
        """Return the async generator of a stream."""
        generator: AsyncIterator[Any] = self.start(self.read(body, content_type), context)
        return generator

    def outputs(
        self, values: list[Any], run: Callable[[Any], Any], contexts: Sequence[Context] | None = None
    ) -> list[Any]:
        """Return a batch handler's outputs for `values`, one each; `run` waits for an async handler.

        Raises: BadOutput if it does not return as many as it was given.
        """
        outputs = self.start(values, contexts)
        if inspect.isawaitable(outputs):
            outputs = run(outputs)
        try:
            listed = list(outputs) if not isinstance(outputs, dict | str | bytes) else None
        except TypeError:
            listed = None
        if listed is None:
            raise BadOutput(f"a batch handler must return a list, not {type(outputs).__name__}")
        if len(listed) != len(values):
            raise BadOutput(f"the batch handler returned {len(listed)} outputs for {len(values)} items")
        return listed


def _nothing() -> None:
    """Prove nothing: until the loader says how."""
