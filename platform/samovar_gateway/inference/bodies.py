"""From the tensors of a request to the bodies that instances get, and from their answers to the tensors of one answer.

Pure, and without an event loop: what is large is done in a thread. This module does not know asks.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from samovar import tensor_codec
from samovar.errors import InvalidInput, ProtocolError
from samovar.spec import Manifest
from samovar.tensor_codec import Contents, TensorValue
from samovar_gateway.inference import models, rows


def bodies_of(manifest: Manifest, inputs: Sequence[TensorValue], outputs: Sequence[str]) -> list[bytes]:
    """Return a body for each item of a request: one, or of a batch handler one for each row.

    outputs: names that are wanted. Raises: InvalidInput for what is not of the version's types.
    """
    models.check_outputs(manifest, outputs)
    tensor_codec.check_inputs(inputs, manifest.inputs, models.required(manifest))
    if manifest.batch is None:
        return [tensor_codec.encode(inputs)]
    return [tensor_codec.encode(item) for item in rows.split(inputs, rows.num_rows(inputs))]


def outputs_of(manifest: Manifest, answers: Sequence[tuple[str, Contents]], names: Sequence[str]) -> list[TensorValue]:
    """Return the outputs that are wanted of all items together.

    answers: media type and body of each item's. Raises: BadOutput if they are not one, ProtocolError if one is none.
    """
    items = [tensors_of(manifest, media_type, body) for media_type, body in answers]
    return models.wanted(rows.stack(items) if manifest.batch is not None else items[0], names)


def tensors_of(manifest: Manifest, media_type: str, body: Contents) -> Sequence[TensorValue]:
    """Return the outputs of one item; a fallback's, which is JSON, in the form of `manifest`. Raises: ProtocolError."""
    try:
        if media_type == tensor_codec.MEDIA_TYPE:
            return tensor_codec.decode(body)
        return models.from_plain(msgspec.json.decode(body), manifest)
    except (InvalidInput, msgspec.DecodeError) as error:
        raise ProtocolError(f"the answer is no tensors: {error}") from None
