"""`python -m samovar.inspection app.py[:name]`: import an author's file and print what it defines, as one JSON line.

Runs in a process of its own, started by the command line, so that the author's imports, prints and crashes stay away
from it. Exit code 0 with a `Draft`, or 1 with `{"error": {...}}`; whatever the author's file prints goes to stderr.
This module does not know the gateway, archives or uploads.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

import samovar
from samovar.acceleration.options import requirements
from samovar.authoring import Definition, definition_of, is_function
from samovar.errors import DeployRefused, RequestError
from samovar.options import require_draft_model, resolve_weights
from samovar.schema import Input, input_schema, output_schema
from samovar.signature_tensors import manifest_specs
from samovar.spec import BlobRef, Manifest
from samovar.tasks.checks import check_task
from samovar.values import Struct


class Draft(Struct, frozen=True, kw_only=True):
    """What an author's file says: a manifest without code and weights, and where the weights are ("" = none).

    root: the project folder, which becomes the code archive. file, line: of the decorator.
    """

    manifest: Manifest
    root: str
    weights: str = ""
    file: str = ""
    line: int = 0


class Failure(Struct, frozen=True, kw_only=True):
    """Why a file cannot be deployed."""

    detail: str
    file: str = ""
    line: int = 0


def inspect_file(target: str) -> Draft:
    """Import the file of `target` ("app.py", its folder, or "app.py:name") and return its draft.

    Raises: DeployRefused with file and line.
    """
    text, _, attribute = target.partition(":")
    path = Path(text).resolve()
    if path.is_dir():
        path /= "app.py"
    module = _import(path)
    name, definition = _pick(module, attribute, path)
    try:
        return _draft(definition, f"{path.stem}:{name}", path)
    except DeployRefused as refused:
        refused.extra = {"file": definition.file, "line": definition.line} | refused.extra
        raise


def _draft(definition: Definition, entry: str, path: Path) -> Draft:
    weights = None if definition.weights is None else resolve_weights(definition.weights, path.parent)
    if weights is not None:
        require_draft_model(definition.acceleration.speculation, weights)
    return Draft(
        manifest=_manifest(definition, entry),
        root=str(path.parent),
        weights="" if weights is None else str(weights),
        file=definition.file,
        line=definition.line,
    )


def _manifest(definition: Definition, entry: str) -> Manifest:
    try:
        schema = input_schema(definition)
        check_task(definition.task, definition.handler, schema, output_schema(definition))
        _check_example(definition, Input(definition))
        inputs, outputs, no_tensors = manifest_specs(definition)
    except TypeError as error:
        raise DeployRefused(f"the handler's input type cannot be read from JSON: {error}") from error
    return Manifest(
        name=definition.name,
        task=definition.task,
        version=0,
        entry=entry,
        kind=definition.kind,
        handler=definition.handler,
        code=BlobRef(sha256="", size_bytes=0),
        requirements=[*definition.requirements, *requirements(definition.acceleration, definition.resources.gpus)],
        acceleration=definition.acceleration,
        scaling=definition.scaling,
        batch=definition.batch.spec if definition.batch else None,
        resources=definition.resources,
        limits=definition.limits,
        retry_on_crash=definition.retry_on_crash,
        fallback=definition.fallback,
        cache=definition.cache,
        breaker=definition.breaker,
        jobs=definition.jobs,
        log=definition.log,
        hedge_after=definition.hedge_after,
        has_check=definition.has_check,
        input_schema=schema,
        output_schema=output_schema(definition),
        inputs=inputs,
        outputs=outputs,
        no_tensors=no_tensors,
        example=definition.example,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        sdk_version=samovar.__version__,
    )


def _check_example(definition: Definition, decoder: Input) -> None:
    if definition.example is None:
        return
    try:
        decoder.decode(msgspec.json.encode(definition.example))
    except RequestError as error:
        raise DeployRefused(f"example= does not match the handler's input: {error.detail}") from error
    except TypeError as error:
        raise DeployRefused(f"example= cannot be written as JSON: {error}") from error


def _import(path: Path) -> ModuleType:
    if not path.is_file():
        is_model = (path.parent / "config.json").is_file()
        hint = f"; a model without code goes up by `samovar deploy --model {path.parent}`" if is_model else ""
        raise DeployRefused(f"there is no file {path}{hint}")
    stem = path.stem
    if path.suffix != ".py" or not stem.isidentifier():
        raise DeployRefused(f"{path.name} cannot be imported: its name must be letters, digits and '_', ending in .py")
    if stem in sys.stdlib_module_names or stem == "samovar":
        raise DeployRefused(f"{path.name} would hide the module {stem!r}: give the file another name, such as app.py")
    sys.path.insert(0, str(path.parent))
    try:
        module = importlib.import_module(stem)
    except (Exception, SystemExit) as error:
        raise _import_failure(error, path) from error
    if Path(module.__file__ or "").resolve() != path:
        raise DeployRefused(f"{path.name} has the name of an imported module, {module.__file__}: rename it")
    return module


def _import_failure(error: BaseException, path: Path) -> DeployRefused:
    """Return the refusal of a file that cannot be imported, placed at the last line of the author's own code."""
    extra = error.extra if isinstance(error, DeployRefused) else {}
    file, line = extra.get("file", ""), extra.get("line", 0)
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno or 0
    for frame, number in traceback.walk_tb(error.__traceback__):
        if not line and Path(frame.f_code.co_filename).is_relative_to(path.parent):
            file, line = frame.f_code.co_filename, number
    if isinstance(error, DeployRefused):
        return DeployRefused(error.detail, file=file, line=line)
    return DeployRefused(f"cannot import {path.name}: {type(error).__name__}: {error}", file=file, line=line)


def _pick(module: ModuleType, attribute: str, path: Path) -> tuple[str, Definition]:
    """Return the one function of the module, or the one named."""
    found = {
        name: value
        for name, value in vars(module).items()
        if is_function(value) and getattr(value, "__module__", "") == module.__name__
    }
    if attribute:
        if attribute not in found:
            raise DeployRefused(f"{path.name} has no function {attribute!r}", file=str(path), line=1)
        return attribute, definition_of(found[attribute])
    if not found:
        rule = "put @sv.function on a function or a class"
        raise DeployRefused(f"{path.name} defines no function: {rule}", file=str(path), line=1)
    if len(found) > 1:
        choices = ", ".join(f"{path.name}:{name}" for name in found)
        raise DeployRefused(f"{path.name} defines several functions; name one: {choices}", file=str(path), line=1)
    name, value = next(iter(found.items()))
    return name, definition_of(value)


def main(arguments: list[str]) -> int:
    """Print the draft of `arguments[0]` and return the exit code."""
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    try:
        answer: Any = inspect_file(arguments[0])
    except DeployRefused as refused:
        detail, place = refused.detail, refused.extra
        answer = {"error": Failure(detail=detail, file=place.get("file", ""), line=place.get("line", 0))}
    with os.fdopen(answer_fd, "wb") as out:
        out.write(msgspec.json.encode(answer) + b"\n")
    return 0 if isinstance(answer, Draft) else 1


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # the answer is out: threads or exit handlers of the author's imports must not hold the deploy up
    os._exit(code)
