"""The project that a person would have written for a model: an app.py of a few lines, and the weights beside it.

    app.py       @sv.function with what was asked for, on a class of the engine's
    weights/     links to those files of the model's folder that it needs

The same model, name and options give the same bytes, so a second deploy uploads nothing; no path of this machine is in
them. This module does not know the command line or uploads.
"""

from __future__ import annotations

import json
import re
import textwrap
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samovar.errors import DeployRefused
from samovar.models.folder import ModelFolder
from samovar.models.processors import processors_of
from samovar.models.tasks import EITHER, SQUARE, ModelTask

APP = "app.py"
WEIGHTS = "weights"
DRAFT = "draft"  # within the weights
_LINE = 120


@dataclass(frozen=True, slots=True)
class Wishes:
    """What was asked for beyond the task's own defaults. options: fields of value objects by option, such as
    {"scaling": {"max_instances": 2}}. words: options that are a word, such as {"compile": "inductor"}. settings:
    attributes of the engine's class, such as {"max_context": 2048}.
    """

    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def default_model_name(folder: ModelFolder) -> str:
    """Return the function name made from the folder's: `SmolLM2-135M-Instruct` becomes `smollm2-135m-instruct`."""
    plain = unicodedata.normalize("NFKD", folder.path.name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:63].strip("-") or "model"


def example_of(task: ModelTask, folder: ModelFolder) -> dict[str, Any]:
    """Return what an instance answers while it warms up."""
    if task.generates and "images" in task.example:
        return _shown(task.example, folder)
    if "words" in task.example and folder.architecture == EITHER:
        return {"question": task.example["question"], "image": SQUARE}
    if task.name != "fill-mask":
        return task.example
    token = folder.read("tokenizer_config.json").get("mask_token") or folder.read("special_tokens_map.json").get(
        "mask_token"
    )
    mask = token.get("content") if isinstance(token, dict) else token
    if not isinstance(mask, str):
        raise DeployRefused(f"{folder.path}: its tokenizer has no mask token, so there is nothing to fill")
    return {"text": f"tea is {mask}"}


def _shown(example: Mapping[str, Any], folder: ModelFolder) -> dict[str, Any]:
    """Return a prompt with its images as the model takes them: as a message, if it has a chat template."""
    images = example["images"] if "image_processor" in processors_of(folder.read) else []
    names = ("tokenizer_config.json", "processor_config.json")
    has_template = folder.has("chat_template.jinja", "chat_template.json") or any(
        "chat_template" in folder.read(name) for name in names
    )
    if not has_template:
        return {**example, "images": images}
    parts = [{"type": "image", "image": image} for image in images] + [{"type": "text", "text": example["prompt"]}]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": example["max_tokens"]}


def app_code(name: str, task: ModelTask, folder: ModelFolder, wishes: Wishes = Wishes()) -> str:
    """Return the text of app.py for a function `name` that does `task` with the model in `folder`."""
    module, engine = task.engine
    what = f"with {folder.architecture}" if folder.architecture else "with a model"
    arguments = [
        f"name={_literal(name)}",
        f"task={_literal(task.name)}",
        f'weights=sv.Weights("{WEIGHTS}")',
        *_options(task, wishes),
        *([f"requirements={_literal(list(task.requirements))}"] if task.requirements else []),
        *_wrapped("example", example_of(task, folder)),
    ]
    lines = [
        f'"""{name}: {task.does} {what}. Written by `samovar deploy --model`."""',
        "",
        "import samovar as sv",
        f"from {module} import {engine}",
        "",
        "",
        "@sv.function(",
        *(f"    {argument}," for argument in arguments),
        ")",
        f"class Model({engine}):",
        f'    """{_sentence(task)}"""',
    ]
    if wishes.settings:
        lines += ["", *(f"    {key} = {_literal(value)}" for key, value in wishes.settings.items())]
    return "\n".join(lines) + "\n"


def write_project(target: Path, code: str, folder: ModelFolder, draft: ModelFolder | None = None) -> Path:
    """Write the project to the folder `target`, which is new or empty, and return its app.py.

    Args: draft: a small model that drafts for the other one; it goes to DRAFT.
    Raises: DeployRefused if something is there already.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DeployRefused(f"{target} is there already: give the name of a new folder")
    _link(folder, target / WEIGHTS)
    if draft is not None:
        _link(draft, target / WEIGHTS / DRAFT)
    app = target / APP
    app.write_text(code)
    return app


def refuse_foreign_draft(folder: ModelFolder, draft: ModelFolder) -> None:
    """Return if both models mean the same by each token. Raises: DeployRefused."""
    if _vocabulary(folder) != _vocabulary(draft):
        raise DeployRefused(f"{draft.path} cannot draft for {folder.path.name}: its tokenizer has other tokens")


def _vocabulary(folder: ModelFolder) -> Any:
    model = folder.read("tokenizer.json").get("model")
    return model.get("vocab") if isinstance(model, dict) else None


def _link(folder: ModelFolder, target: Path) -> None:
    for name in folder.files:
        link = target / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to((folder.path / name).resolve())


_VALUE_OBJECTS = {
    "batch": "Batch",
    "scaling": "Scaling",
    "resources": "Resources",
    "limits": "Limits",
    "speculation": "Speculation",
}


def _options(task: ModelTask, wishes: Wishes) -> list[str]:
    """Return the value objects: the task's own, with what was asked for on top."""
    given = {key: {**task.options.get(key, {}), **wishes.options.get(key, {})} for key in _VALUE_OBJECTS}
    objects = [f"{key}={_call(_VALUE_OBJECTS[key], fields)}" for key, fields in given.items() if fields]
    words = {key: _literal(word) for key, word in wishes.words.items()}
    return objects + [f"{key}={f'sv.Precision({word})' if key == 'precision' else word}" for key, word in words.items()]


def _call(name: str, fields: Mapping[str, Any]) -> str:
    return f"sv.{name}({', '.join(f'{key}={_literal(value)}' for key, value in fields.items())})"


def _literal(value: Any) -> str:
    """Return a value as Python source: strings in double quotes, a long row of equal values as a product."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        if len(value) > 1 and value.count(value[0]) == len(value) and len(repr(value)) > _LINE:
            return f"[{_literal(value[0])}] * {len(value)}"
        return f"[{', '.join(map(_literal, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _wrapped(key: str, example: Mapping[str, Any]) -> list[str]:
    return [f"{key}={_literal(dict(example))}"]


def _sentence(task: ModelTask) -> str:
    """Return what clients send."""
    fields = ", ".join(f'"{name}": …' for name in task.example) or '"text": …'
    return textwrap.shorten(f"Clients send {{{fields}}}; see docs/models.md.", _LINE)
