"""The flags of `samovar deploy --model`, and what they come to: a project like one that a person wrote.

This module does not know what becomes of the project.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
import msgspec

from samovar.cli.session import Session
from samovar.cli.text import size
from samovar.errors import DeployRefused
from samovar.tasks import TEXT_GENERATION

if TYPE_CHECKING:
    from samovar.models.choosing import Choice
    from samovar.models.folder import ModelFolder
    from samovar.models.project import Wishes
    from samovar.models.tasks import ModelTask

# where each flag ends up: in fields of value objects, or in attributes of the engine's class (_SETTINGS)
_SETTINGS = "settings"
_GOES_TO: dict[str, tuple[tuple[str, str], ...]] = {
    "min_instances": (("scaling", "min_instances"),),
    "max_instances": (("scaling", "max_instances"),),
    "gpus": (("resources", "gpus"),),
    "cpus": (("resources", "cpus"),),
    "timeout_s": (("limits", "timeout_s"),),
    "max_batch": (("batch", "max_size"),),
    "max_wait_ms": (("batch", "max_wait_ms"),),
    # as many calls as the engine runs are let in
    "max_running": ((_SETTINGS, "max_running"), ("scaling", "target_concurrency")),
    "max_context": ((_SETTINGS, "max_context"),),
    "cache_gib": ((_SETTINGS, "cache_gib"),),
    "prefix_sharing": ((_SETTINGS, "prefix_sharing"),),
    "speculation": (("speculation", "method"),),
}
_WORDS = ("precision", "compile", "engine", "attention")
_OF_GENERATION = frozenset({"max_running", "max_context", "cache_gib", "prefix_sharing", "speculation", "draft_model"})
_OF_OUR_ENGINE = frozenset({"cache_gib", "prefix_sharing", "speculation", "draft_model"})
_NOT_OF_GENERATION = frozenset({"max_batch", "max_wait_ms", "compile", "engine"})


@dataclass(frozen=True, slots=True)
class Project:
    """A project made for a model. folder, draft, choice: what it was made from. code: its app.py."""

    folder: ModelFolder
    draft: ModelFolder | None
    choice: Choice
    code: str


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `deploy` the flags of a model; they reach it in its keyword arguments."""
    options = (
        click.option("--model", metavar="FOLDER", help="Deploy the model in FOLDER, without a line of code."),
        click.option("--task", help="What it is for [found in the folder], such as text-generation, embeddings."),
        click.option("--print-code", is_flag=True, help="With --model: print the app.py that it comes to, and stop."),
        click.option(
            "--eject",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="With --model: write the project to DIR, and stop.",
        ),
        click.option("--min-instances", type=click.IntRange(min=0), help="With --model: kept without demand."),
        click.option("--max-instances", type=click.IntRange(min=1), help="With --model: most instances."),
        click.option("--gpus", type=click.IntRange(min=0), help="With --model: GPUs of an instance."),
        click.option("--cpus", type=click.FloatRange(min=0, min_open=True), help="With --model: CPUs of an instance."),
        click.option(
            "--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True), help="With --model: deadline, s."
        ),
        click.option("--max-batch", type=click.IntRange(min=1), help="With --model: calls in one forward."),
        click.option("--max-wait-ms", type=click.FloatRange(min=0), help="With --model: longest wait for a batch."),
        click.option(
            "--max-context", type=click.IntRange(min=1), help="Text generation: tokens of a request, at most."
        ),
        click.option("--max-running", type=click.IntRange(min=1), help="Text generation: answers made at once."),
        click.option(
            "--cache-gib", type=click.FloatRange(min=0, min_open=True), help="Text generation: GiB of keys and values."
        ),
        click.option(
            "--prefix-sharing",
            type=click.Choice(["key", "function", "off"]),
            help="Text generation: among whose prompts equal beginnings are computed once.",
        ),
        click.option(
            "--speculation", type=click.Choice(["prompt-lookup"]), help="Text generation: drafts, where they pay."
        ),
        click.option("--draft-model", metavar="FOLDER", help="Text generation: a small model that drafts."),
    )
    for option in reversed(options + _acceleration_options()):
        command = option(command)
    return command


def _acceleration_options() -> tuple[Callable[..., Any], ...]:
    """Return a flag for each word that says how the model is run."""
    from samovar.acceleration.options import Acceleration

    said = {field.name: field.type for field in msgspec.structs.fields(Acceleration)}
    texts = {
        "precision": "What it computes in; the error against fp32 is measured.",
        "compile": "Machine code of the model, made once, now.",
        "engine": "Another runtime for its forward.",
        "attention": "The kernel that transformers uses.",
    }
    return tuple(
        click.option(f"--{name}", name, type=click.Choice(sorted(filter(None, _words(said[name])))), help=text)
        for name, text in texts.items()
    )


def _words(hint: Any) -> Iterator[str]:
    """Yield the words of a Literal, or of a union of them."""
    for argument in get_args(hint):
        if isinstance(argument, str):
            yield argument
        else:
            yield from _words(argument)


def project_of(flags: dict[str, Any], name: str | None, allow_pickle: bool) -> Project:
    """Return the project that the flags describe. Raises: DeployRefused."""
    from samovar.models.choosing import choose
    from samovar.models.folder import read_model_folder, refuse_untokenized
    from samovar.models.project import app_code, default_model_name, refuse_foreign_draft
    from samovar.spec import check_name

    folder = read_model_folder(flags["model"], allow_pickle=allow_pickle)
    choice = choose(folder, flags["task"])
    if choice.task.name == TEXT_GENERATION:
        refuse_untokenized(folder)
    code = app_code(check_name(name or default_model_name(folder)), choice.task, folder, _wishes(flags, choice))
    draft = None
    if flags["draft_model"] is not None:
        draft = read_model_folder(flags["draft_model"], allow_pickle=allow_pickle)
        refuse_foreign_draft(folder, draft)
    return Project(folder, draft, choice, code)


def refuse_strays(flags: dict[str, Any]) -> None:
    """Raise a usage error if flags of a model were given without one."""
    strays = [key for key, value in flags.items() if value not in (None, False)]
    if strays:
        flag = "timeout" if strays[0] == "timeout_s" else strays[0].replace("_", "-")
        raise click.UsageError(f"--{flag} is for --model FOLDER; in a file it is an option of @sv.function")


@contextmanager
def written(session: Session, project: Project) -> Iterator[str]:
    """Yield the project's app.py, on the disk while the context lasts; say what was chosen and what goes up."""
    from samovar.models.project import write_project

    folder, choice = project.folder, project.choice
    session.note(f"task {choice.task.name}: {choice.why}")
    session.note(f"weights and tokenizer: {len(folder.files)} files, {size(folder.size_bytes(folder.files))}")
    if folder.left_out:
        left = ", ".join(folder.left_out[:3]) + (" …" if len(folder.left_out) > 3 else "")
        session.note(f"left out, not needed: {left} ({size(folder.size_bytes(folder.left_out))})")
    with tempfile.TemporaryDirectory(prefix="samovar-model-") as scratch:
        try:
            yield str(write_project(Path(scratch) / "project", project.code, folder, project.draft))
        except DeployRefused as refused:
            if str(refused.extra.get("file", "")).startswith(str(Path(scratch).resolve())):
                # nobody wrote that file, and it is gone when the person looks for it
                del refused.extra["file"]
            raise


def eject(session: Session, project: Project, target: Path) -> None:
    """Write the project to a folder of the person's own and say how to go on."""
    from samovar.models.project import write_project

    app = write_project(target, project.code, project.folder, project.draft)
    data = {"app": str(app), "task": project.choice.task.name, "why": project.choice.why}
    session.emit(data, lambda: f"{app} is yours now; its weights are links to {project.folder.path}")
    session.note(f"change it, then: samovar deploy {app}")


def _wishes(flags: dict[str, Any], choice: Choice) -> Wishes:
    """Return what was asked for. Raises a usage error for what the task has no use for."""
    from samovar.models.project import DRAFT, Wishes

    _refuse_senseless(flags, choice.task)
    told: dict[str, dict[str, Any]] = {}
    for flag, places in _GOES_TO.items():
        if flags[flag] is not None:
            for place, field in places:
                told.setdefault(place, {})[field] = flags[flag]
    if flags["draft_model"] is not None:
        told["speculation"] = {"method": "draft-model", "folder": DRAFT}
    settings = told.pop(_SETTINGS, {})
    return Wishes(told, {name: flags[name] for name in _WORDS if flags[name] is not None}, settings)


def _senseless(task: ModelTask) -> frozenset[str]:
    """Return the flags that change nothing for a task."""
    if not task.generates:
        return _OF_GENERATION
    return _NOT_OF_GENERATION | ({"attention"} if task.name == TEXT_GENERATION else _OF_OUR_ENGINE)


def _refuse_senseless(flags: dict[str, Any], task: ModelTask) -> None:
    """Raise a usage error for a flag that changes nothing, or two that exclude each other."""
    senseless = _senseless(task)
    for flag in sorted(senseless):
        if flags[flag] is not None:
            raise click.UsageError(f"--{flag.replace('_', '-')} means nothing for {task.name}")
    if flags["speculation"] is not None and flags["draft_model"] is not None:
        raise click.UsageError("drafts come by --speculation or by --draft-model, not both")
