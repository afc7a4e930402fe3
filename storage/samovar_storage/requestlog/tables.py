"""The request log as Parquet: the columns, tables made of frames, and files read and written.

Only the keeper's process imports this: pyarrow stays out of gateways. This module does not know object storage.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from samovar_storage.requestlog.layout import Partition, partition_of
from samovar_storage.requestlog.rows import CUT, HASH, MARKS, NONE, PRIORITIES, Frame, Row

BOOT_PHASES = ("claim", "fetch", "import", "load", "warmup")
PAYLOAD_FORMS = ("none", "text", "base64", "hash")
_FIELDS = Row.__struct_fields__
_AT = _FIELDS.index("at_s")

SCHEMA = pa.schema(
    [
        ("run", pa.string()),  # the gateway and its start; with seq, the identity of a record
        ("seq", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("function", pa.string()),
        ("version", pa.int32()),
        ("instance", pa.string()),
        ("request_id", pa.string()),
        ("trace_id", pa.string()),
        ("key_id", pa.string()),
        ("priority", pa.string()),
        ("status", pa.int16()),
        ("code", pa.string()),
        ("total_ms", pa.float64()),
        ("queue_ms", pa.float64()),
        ("run_ms", pa.float64()),
        *((f"boot_{phase}_ms", pa.float64()) for phase in BOOT_PHASES),
        ("batch_size", pa.int32()),
        ("num_attempts", pa.int16()),
        ("bytes_in", pa.int64()),
        ("bytes_out", pa.int64()),
        ("content_type", pa.string()),
        *((mark, pa.bool_()) for mark in MARKS),
        ("payload", pa.string()),
        ("payload_form", pa.string()),  # one of PAYLOAD_FORMS
        ("payload_cut", pa.bool_()),
        ("answer", pa.string()),
        ("answer_form", pa.string()),
        ("answer_cut", pa.bool_()),
        ("answered_by", pa.string()),
        ("protocol", pa.string()),
    ]
)


def tables_of(frames: Iterable[Frame]) -> dict[Partition, pa.Table]:
    """Return the rows of the frames as one table per function and hour, in the order they came."""
    rows: dict[tuple[Partition, str], list[list[Any]]] = {}
    for run, function, frame_rows in frames:
        first, last = (partition_of(function, at_s) for at_s in _span_s(frame_rows))
        if first == last:
            rows.setdefault((first, run), []).extend(frame_rows)
        else:
            for row in frame_rows:
                rows.setdefault((partition_of(function, row[_AT]), run), []).append(row)
    pieces: dict[Partition, list[pa.Table]] = {}
    for (partition, run), its_rows in rows.items():
        pieces.setdefault(partition, []).append(table_of(run, partition.function, its_rows))
    return {partition: pa.concat_tables(tables) for partition, tables in pieces.items()}


def _span_s(rows: Sequence[Sequence[Any]]) -> tuple[float, float]:
    times_s = [row[_AT] for row in rows]
    return min(times_s), max(times_s)


def table_of(run: str, function: str, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Return one frame's rows as a table of SCHEMA. Whole columns are converted at once: this is paid per call."""
    columns = dict(zip(_FIELDS, zip(*rows, strict=True), strict=False))
    marks = pa.array(columns["marks"], pa.int32())
    made: dict[str, Any] = {
        "run": pa.repeat(pa.scalar(run, pa.string()), len(rows)),
        "function": pa.repeat(pa.scalar(function, pa.string()), len(rows)),
        "at": pa.array([int(at_s * 1e6) for at_s in columns["at_s"]], pa.timestamp("us", tz="UTC")),
        "request_id": _text(columns["request_id"]),
        "trace_id": pc.utf8_slice_codeunits(pa.array(columns["traceparent"], pa.string()), 3, 35),
        "priority": pa.array(PRIORITIES, pa.string()).take(pa.array(columns["priority"], pa.int32())),
        "total_ms": pc.multiply(pa.array(columns["total_s"], pa.float64()), 1e3),
        "queue_ms": pc.multiply(pa.array(columns["queue_s"], pa.float64()), 1e3),
        "run_ms": pc.divide(pa.array(columns["run_us"], pa.float64()), 1e3),
    }
    boots = columns["boot_ms"]
    is_cold = any(boots)
    for phase in BOOT_PHASES:
        values = pa.array([boot and boot.get(phase) for boot in boots], pa.float64()) if is_cold else None
        made[f"boot_{phase}_ms"] = values if values is not None else pa.nulls(len(rows), pa.float64())
    for bit, mark in enumerate(MARKS):
        made[mark] = pc.not_equal(pc.bit_wise_and(marks, 1 << bit), 0)
    made |= _payload("payload", columns["body"], columns["body_form"])
    made |= _payload("answer", columns["answer"], columns["answer_form"])
    absent = (None,) * len(rows)  # rows of an older gateway lack the fields that came last
    arrays = [made[f.name] if f.name in made else pa.array(columns.get(f.name, absent), f.type) for f in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _text(values: Sequence[bytes]) -> Any:
    """Return bytes as strings; what is no UTF-8 is read as Latin-1, as headers are."""
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("latin-1") for value in values], pa.string())


def _payload(name: str, values: Sequence[bytes | None], forms: Sequence[int]) -> dict[str, Any]:
    """Return the three columns of an input or an answer."""
    kinds = set(forms)
    cut = pa.array([form == CUT for form in forms] if CUT in kinds else [False] * len(forms), pa.bool_())
    texts, spelled = None, ["none" if form == NONE else "text" for form in forms]
    if HASH not in kinds:
        try:
            texts = pa.array(values, pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            texts = None
    if texts is None:
        pairs = [_spell(value, form) for value, form in zip(values, forms, strict=True)]
        texts, spelled = pa.array([text for text, _ in pairs], pa.string()), [form for _, form in pairs]
    return {name: texts, f"{name}_form": pa.array(spelled, pa.string()), f"{name}_cut": cut}


def _spell(value: bytes | None, form: int) -> tuple[str | None, str]:
    if value is None or form == NONE:
        return None, "none"
    if form == HASH:
        return value.hex(), "hash"
    try:
        return value.decode(), "text"
    except UnicodeDecodeError as error:
        if form == CUT and error.start >= len(value) - 3:  # cut within a character
            return value[: error.start].decode(), "text"
        return base64.b64encode(value).decode(), "base64"


def write(table: pa.Table) -> bytes:
    """Return a table as the bytes of a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", compression_level=1, use_dictionary=_DICTIONARY)
    return sink.getvalue()


_DICTIONARY = [
    f.name for f in SCHEMA if pa.types.is_string(f.type) and f.name not in ("payload", "answer", "request_id")
]


def read(data: bytes, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table:
    """Return the table in a Parquet file's bytes. columns: all if None. filters: an expression rows must fulfil."""
    return pq.read_table(pa.BufferReader(data), columns=columns and [*columns], filters=filters)


def conformed(table: pa.Table) -> pa.Table:
    """Return a table of an older release with SCHEMA's columns; those it lacks are null."""
    if table.schema.equals(SCHEMA):
        return table
    have = set(table.column_names)
    arrays = [table[f.name].cast(f.type) if f.name in have else pa.nulls(len(table), f.type) for f in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)
