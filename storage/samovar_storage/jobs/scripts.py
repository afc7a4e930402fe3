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


def _move(*names: str, head: str = _ALLOW_OOM) -> str:
    return head + TELL_WEBHOOK + _text("common") + "".join(map(_text, names))


def _fire() -> str:
    # the submission as it is, made a function: its own locals, its own returns
    submit = f"local function submit()\n{_text('submit')}\nend\n"
    return _REFUSE_OOM + TELL_WEBHOOK + _text("common") + submit + _text("fire")


def _small(name: str) -> str:
    return _ALLOW_OOM + _text(name)


SUBMIT = _move("submit", head=_REFUSE_OOM)
FIRE = _fire()
TAKE = _move("take")
SETTLE = _move("settle")
REAP = _move("reap")
CANCEL = _move("cancel")
PROMOTE = _move("promote")
PURGE = _move("forget", "purge")
SWEEP = _move("forget", "sweep")
TRIM = _move("forget", "trim")
BEAT = _small("beat")
WAITING = _small("waiting")
PROGRESS = _small("progress")
POSITION = _small("position")
OBJECTS = _small("objects")
NOTE_OBJECT = _small("note_object")
