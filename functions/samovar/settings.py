"""Settings: one frozen struct per process, read once in its `__main__`, passed down as values.

Precedence: flag, then `SAMOVAR_<FIELD>` variable, then the JSON file named by `--config` / `SAMOVAR_CONFIG`, then the
default. A bad value names its key and where it came from; an unknown `SAMOVAR_` variable stops the process. Every field
carries its description (`Annotated[..., Meta(description=...)]`); a test checks that none lacks one.
This module does not know which processes exist.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from samovar.errors import ConfigError

PREFIX = "SAMOVAR_"
# Read by the CLI and SDK wherever they run; never an error in another process's environment.
CLIENT_VARIABLES = frozenset({"SAMOVAR_URL", "SAMOVAR_API_KEY", "SAMOVAR_DATA_DIR", "SAMOVAR_CONFIG"})


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every process's settings."""


class Secret:
    """A value that never prints: `repr`, `str` and f-strings show stars; `reveal()` returns it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret('***')" if self._value else "Secret('')"

    __str__ = __repr__

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


S = TypeVar("S", bound=Settings)


def read(
    cls: type[S],
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    known_variables: Iterable[str] = (),
) -> S:
    """Return the settings of this process.

    Args:
        flags: values given on the command line; None means not given.
        environ: the environment, default `os.environ`.
        known_variables: further `SAMOVAR_` variables that other processes own and this one ignores.
    Raises: ConfigError naming the key, its source and what is wrong with it.
    """
    environ = os.environ if environ is None else environ
    flags = {key: value for key, value in (flags or {}).items() if value is not None}
    file = flags.pop("config", None) or environ.get(PREFIX + "CONFIG")
    fields = {field.name for field in msgspec.structs.fields(cls)}
    _refuse_unknown_variables(fields, environ, known_variables)
    values: dict[str, tuple[Any, str]] = {}
    if file:
        values |= {key: (value, f"{key} in {file}") for key, value in _read_file(Path(file), fields).items()}
    for name in fields:
        variable = PREFIX + name.upper()
        if variable in environ:
            values[name] = (environ[variable], variable)
    values |= {key: (value, "--" + key.replace("_", "-")) for key, value in flags.items()}
    hints = get_type_hints(cls, include_extras=True)
    return cls(**{name: _convert(value, hints[name], source) for name, (value, source) in values.items()})


def describe(cls: type[Settings]) -> list[tuple[str, str, str]]:
    """Return (variable, default, description) of every field, for `--help`, docs and the test that checks both."""
    rows = []
    for field in msgspec.structs.fields(cls):
        default = field.default if field.default is not msgspec.NODEFAULT else "required"
        meta = next((m for m in getattr(field.type, "__metadata__", ()) if isinstance(m, msgspec.Meta)), None)
        shown = default.reveal() if isinstance(default, Secret) else "" if default is None else str(default)
        rows.append((PREFIX + field.name.upper(), shown, (meta.description or "") if meta else ""))
    return rows


def _refuse_unknown_variables(fields: set[str], environ: Mapping[str, str], known: Iterable[str]) -> None:
    allowed = {PREFIX + name.upper() for name in fields} | CLIENT_VARIABLES | set(known)
    unknown = sorted(name for name in environ if name.startswith(PREFIX) and name not in allowed)
    if unknown:
        raise ConfigError(f"unknown setting {unknown[0]} in the environment; known: {', '.join(sorted(allowed))}")


def _read_file(path: Path, fields: set[str]) -> dict[str, Any]:
    """Return the file's values for `fields`; one file may serve several processes, so other keys are left alone."""
    try:
        data = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"the settings file {path} is not a JSON object: {error}") from error
    return {key: value for key, value in data.items() if key in fields}


def _convert(value: Any, hint: Any, source: str) -> Any:
    try:
        return msgspec.convert(value, hint, strict=False, dec_hook=_decode)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{source}: {error}") from error


def _decode(hint: type, value: Any) -> Any:
    if hint is Secret:
        return value if isinstance(value, Secret) else Secret(str(value))
    if issubclass(hint, Path):
        return Path(str(value)).expanduser()
    raise ValueError(f"cannot read a {hint.__name__}")
