"""The Lua scripts beside this file, each put together with what all of them begin with.

Scripts that move or finish accepted jobs run although Redis has no memory left (`allow-oom`); a submission is refused
before it changed anything. This module does not know what the scripts do.
"""

from __future__ import annotations

from importlib import resources

from samovar_storage.jobs.hooks import TELL_WEBHOOK

_ALLOW_OOM = "#!lua flags=allow-oom\n"
_REFUSE_OOM = "#!lua\n"


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(f"{name}.lua").read_text()


def _move(name: str, head: str = _ALLOW_OOM) -> str:
    return head + TELL_WEBHOOK + _text("common") + _text(name)


SUBMIT = _move("submit", _REFUSE_OOM)
TAKE = _move("take")
SETTLE = _move("settle")
REAP = _move("reap")
BEAT = _ALLOW_OOM + _text("beat")
WAITING = _ALLOW_OOM + _text("waiting")
