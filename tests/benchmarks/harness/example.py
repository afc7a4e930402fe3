"""A deployable file driven without the platform: the very code an instance runs, for floors and bare loops."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import msgspec

from samovar.authoring import definition_of, is_function
from samovar.options import resolve_weights


class Example:
    """The one function defined in `app`: a class with weights and batching."""

    def __init__(self, app: Path) -> None:
        spec = importlib.util.spec_from_file_location(app.stem, app)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        target = next(value for value in vars(module).values() if is_function(value))
        self.definition = definition_of(target)
        self._app = app
        self._handler = target()
        self._decoder = msgspec.json.Decoder(self.definition.input_type)

    def load(self) -> None:
        """Load the weights on the CPU."""
        assert self.definition.weights is not None
        self._handler.load(resolve_weights(self.definition.weights, self._app.parent), "cpu")

    def decode(self, body: bytes) -> Any:
        """Return one input as the handler takes it."""
        item = self._decoder.decode(body)
        fields = self.definition.signature.fields
        return getattr(item, fields[0]) if fields else item

    def handle(self, items: list[Any]) -> list[Any]:
        """Return the handler's answers to one batch."""
        answers: list[Any] = self._handler(items)
        return answers

    def answer(self, body: bytes) -> bytes:
        """Return the answer to one body, as bytes."""
        return msgspec.json.encode(self.handle([self.decode(body)])[0])
