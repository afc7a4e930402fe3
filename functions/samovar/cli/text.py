"""Numbers and times as people read and write them. Pure; this module does not know verbs or consoles."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samovar.acceleration.options import Acceleration, Built

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_BAR_WIDTH = 40
TOTAL = "total"
_PHASES = ("queue", "claim", "fetch", "import", "load", "warmup", "run", TOTAL)
_EIGHTHS = " ▏▎▍▌▋▊▉"


def parse_duration_s(text: str) -> float:
    """Return the seconds of "90", "90s", "30m", "1h30m" or "2d". Raises ValueError."""
    compact = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", compact):
        return float(compact)
    parts = _DURATION.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise ValueError(f"{text!r} is not a duration such as 90s, 30m or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def duration(seconds: float) -> str:
    """Return seconds as people say them: 4ms, 0.4s, 12s, 3m20s, 5h02m, 3d4h."""
    if 0 < seconds < 0.1:
        return f"{max(1, round(seconds * 1000))}ms"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    total = round(seconds)
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m{total % 60:02d}s"
    if total < 86400:
        return f"{total // 3600}h{total % 3600 // 60:02d}m"
    return f"{total // 86400}d{total % 86400 // 3600}h"


def traffic(route: Mapping[str, Any]) -> dict[str, str]:
    """Return version → its percent of all calls, of a route: a canary's percent is taken off the stable versions'."""
    trial = route.get("canary")
    on_trial = float(trial["percent"]) if trial else 0.0
    found = {version: f"{share * (100 - on_trial) / 100:g} %" for version, share in route["shares"].items()}
    return found | {f"canary {trial['version']}": f"{on_trial:g} %"} if trial else found


def size(num_bytes: float) -> str:
    """Return bytes with a binary unit: 0 B, 19.4 MiB."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def bars(phases_ms: Mapping[str, float]) -> list[str]:
    """Return one line per phase in the order they happen, its bar as long as its share of the longest; total last."""
    phases = sorted(phases_ms.items(), key=lambda phase: _PHASES.index(phase[0]) if phase[0] in _PHASES else 0)
    longest, width = max(phases_ms.values(), default=0), max(map(len, phases_ms), default=0)
    return [
        f"{name:<{width}}  {ms:>9.2f} ms  {_bar(ms / longest) if longest and name != TOTAL else ''}".rstrip()
        for name, ms in phases
    ]


def _bar(share: float) -> str:
    eighths = round(share * _BAR_WIDTH * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def pretty_json(value: Any, indent: str = "") -> str:
    """Return `value` as indented JSON, with lists of plain values kept on one line."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        items = (f"{inner}{json.dumps(key, ensure_ascii=False)}: {pretty_json(v, inner)}" for key, v in value.items())
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(inner + pretty_json(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


def sample(schema: Mapping[str, Any]) -> Any:
    """Return a value that fits a JSON Schema, to show what a call looks like."""
    for key in ("default", "example"):
        if key in schema:
            return schema[key]
    if options := schema.get("enum") or schema.get("examples"):
        return options[0]
    if options := schema.get("anyOf"):
        return sample(options[0])
    properties, required = schema.get("properties", {}), schema.get("required", ())
    plain = {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "array": [], "null": None}
    if schema.get("type") == "array" and isinstance(schema.get("items"), Mapping):
        return [sample(schema["items"])]
    return plain.get(
        schema.get("type", "object"), {key: sample(properties[key]) for key in properties if key in required}
    )


_LAYERS = (
    ("uid", ("uid", "user_namespace")),
    ("net", ("network_namespace",)),
    ("mnt", ("mount_namespace",)),
    ("pid", ("pid_namespace",)),
    ("landlock", ("landlock",)),
    ("seccomp", ("seccomp",)),
    ("cgroup", ("cgroup_memory", "cgroup_pids", "cgroup_cpu")),
)


def sandbox(layers: Collection[str]) -> str:
    """Return the layers that matter most, in short, such as "uid net mnt pid landlock seccomp cgroup"; "off" if none is
    on. `--json` and `samovar doctor` have all of them."""
    return " ".join(short for short, names in _LAYERS if any(name in layers for name in names)) or "off"


def described(declared: Acceleration) -> str:
    """Return what is declared of a version's models, in a few words."""
    drafts = declared.speculation.method if declared.speculation is not None else ""
    named = {
        "precision": declared.precision,
        "compile": declared.compile,
        "engine": declared.engine,
        "attention": declared.attention,
        "speculation": drafts,
    }
    return ", ".join(f"{key} {value}" for key, value in named.items() if value)


def measured(built: Built) -> str:
    """Return what a build cost and gained, against fp32 with the example."""
    found = built.difference
    if found is None:
        return "not measured: the function has no example"
    cosine = (
        "the same answer" if found.same else f"cosine {found.cosine:.5f}" if found.cosine is not None else "differs"
    )
    largest = f", largest difference {found.max_abs:.2g}" if found.max_abs and not found.same else ""
    return f"{cosine}{largest} against fp32 on the example, {found.speedup:.2f} x as fast here ({built.kind.device})"
