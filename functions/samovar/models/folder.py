"""What is in a model's folder as transformers and sentence-transformers save them, and which files of it are needed.

The same weights often lie there several times, for other libraries: only the safetensors go up. This module does not
know tasks or engines.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from samovar.bundle import PICKLED
from samovar.errors import DeployRefused
from samovar.models.safetensors import refuse_incomplete

# beside the weights: configuration, tokenizers, chat templates; the rest is for other libraries or for training
_NEEDED = (
    "*.json", "*.jinja", "*.model", "*.tiktoken", "vocab.txt", "merges.txt", "vocab.bpe", "bpe.codes",
    "additional_chat_templates/*.jinja",
)  # fmt: skip
_OF_TOKENIZERS = ("*token*", "*vocab*", "*.model", "*.tiktoken", "merges.txt", "bpe.codes")
_NOT_NEEDED = ("*.index.json", "trainer_state.json", "all_results.json", "train_results.json", "eval_results.json")
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_ADAPTER = "adapter_config.json"
_PICKLED_WHOLE, _PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
_WEIGHTS = (*(f"*{suffix}" for suffix in sorted(PICKLED)), "*.safetensors", "*.gguf", "*.onnx", "*.h5", "*.msgpack")
_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")
_PIPELINE_TAG = re.compile(r"^pipeline_tag:\s*['\"]?([a-z0-9-]+)", re.MULTILINE)
_FRONT_MATTER = re.compile(r"^---\r?\n(.*?)\n---", re.DOTALL)
_POINTER = b"version https://git-lfs.github.com/spec/"
_NO_PICKLES = (
    "pickled weights run any code hidden in them when they are loaded. Save the model once more with "
    "save_pretrained(folder), which writes safetensors, or deploy with --allow-pickle if you trust them"
)


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder that holds a model.

    config: its config.json. files: what a model needs, relative to `path`, sorted. left_out: weights that it does not
    need, such as the same ones in another format. modules: of sentence-transformers, in order, by type; empty if the
    folder is not of theirs. pipeline_tag: what the model card says it is for, "" if it does not.
    """

    path: Path
    config: dict[str, Any]
    files: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    modules: tuple[tuple[str, str], ...] = ()
    pipeline_tag: str = ""

    @property
    def architecture(self) -> str:
        """The class that the weights were saved from, "" if config.json does not say."""
        found = self.config.get("architectures")
        return str(found[0]) if isinstance(found, list) and found else ""

    def size_bytes(self, names: tuple[str, ...]) -> int:
        """Return the size of some files of the folder."""
        return sum((self.path / name).stat().st_size for name in names)

    def has(self, *names: str) -> bool:
        """Return whether one of these files is among those needed."""
        return not set(names).isdisjoint(self.files)

    def read(self, name: str) -> dict[str, Any]:
        """Return a JSON file of the folder, {} if it is not there. Raises: DeployRefused if it is no JSON object."""
        return _json_object(self.path / name) if (self.path / name).is_file() else {}


def read_model_folder(text: str, *, allow_pickle: bool = False) -> ModelFolder:
    """Return what is in the folder `text`.

    Args: allow_pickle: accept pickled weights where there are no safetensors.
    Raises: DeployRefused, saying what a folder must have, for everything that is not a folder with a model.
    """
    path = Path(text).expanduser().resolve()
    if not path.is_dir():
        raise DeployRefused(_not_a_folder(text, path))
    modules = _modules(path)
    inner = next((place for kind, place in modules if kind == "Transformer"), "")
    prefix = f"{inner}/" if inner else ""
    _refuse_adapter(path / inner)
    if not (path / inner / "config.json").is_file():
        raise DeployRefused(_no_config(path))
    names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    visible = [name for name in names if not any(part.startswith(".") for part in Path(name).parts)]
    weights = _weights(path / inner, allow_pickle)
    places = {place for _, place in modules}
    needed = {name for name in visible if _is_needed(name, prefix, places)} | {prefix + name for name in weights}
    _refuse_pointers(path, sorted(needed))
    for name in sorted(needed):
        if name.endswith(".safetensors"):
            refuse_incomplete(path / name)
    others = [name for name in visible if name not in needed and any(fnmatchcase(name, form) for form in _WEIGHTS)]
    return ModelFolder(
        path=path,
        config=_json_object(path / inner / "config.json"),
        files=tuple(sorted(needed)),
        left_out=tuple(others),
        modules=modules,
        pipeline_tag=_pipeline_tag(path / "README.md"),
    )


def refuse_untokenized(folder: ModelFolder) -> None:
    """Raise DeployRefused if a folder has not one file that could be of a tokenizer: its model could read no text.

    One is enough: tokenizers of bytes or characters, such as ByT5's, have a tokenizer_config.json alone.
    """
    names = [name.rpartition("/")[2] for name in folder.files]
    if not any(fnmatchcase(name, form) for name in names for form in _OF_TOKENIZERS):
        raise DeployRefused(
            f"{folder.path} has no tokenizer, which the task needs: tokenizer.json and tokenizer_config.json are "
            "missing. Write them once with the tokenizer's save_pretrained(folder)"
        )


def _refuse_adapter(folder: Path) -> None:
    """Raise DeployRefused if what was trained is a change to another model: served alone it is not what was trained."""
    if (folder / _ADAPTER).is_file():
        base = _json_object(folder / _ADAPTER).get("base_model_name_or_path")
        raise DeployRefused(
            f"{folder} is an adapter ({_ADAPTER}) to {base or 'a model that it does not name'}: put both together "
            "once, with peft's merge_and_unload() and save_pretrained(folder), and deploy that folder"
        )


def _refuse_pointers(path: Path, names: list[str]) -> None:
    """Raise DeployRefused if a file is what git leaves of a large one where git-lfs did not fetch it."""
    for name in names:
        with (path / name).open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise DeployRefused(
                    f"{path / name} is only a pointer of git-lfs: `git lfs pull` in it fetches the file"
                )


def _is_needed(name: str, prefix: str, places: set[str]) -> bool:
    """Return whether a file that is not the model's weights belongs to it: at the top, beside them, or in a module."""
    folder, _, last = name.rpartition("/")
    if folder and folder in places and f"{folder}/" != prefix:
        return last in ("config.json", "model.safetensors")
    inside = name.removeprefix(prefix)
    forms = [form for form in _NEEDED if form.count("/") == inside.count("/")]
    return any(fnmatchcase(inside, form) for form in forms) and not any(fnmatchcase(last, no) for no in _NOT_NEEDED)


def _weights(folder: Path, allow_pickle: bool) -> list[str]:
    """Return the files of the model's own weights. Raises: DeployRefused if there are none that can be loaded."""
    if (folder / _WHOLE).is_file():
        return [_WHOLE]
    if (folder / _INDEX).is_file():
        return _sharded(folder, _INDEX)
    found = sorted(file.name for file in folder.iterdir() if file.is_file())
    pickled = [name for name in found if Path(name).suffix.lower() in PICKLED]
    if pickled and allow_pickle and (folder / _PICKLED_WHOLE).is_file():
        return [_PICKLED_WHOLE]
    if pickled and allow_pickle and (folder / _PICKLED_INDEX).is_file():
        return _sharded(folder, _PICKLED_INDEX)
    if pickled:
        raise DeployRefused(f"{folder} has its weights in {pickled[0]}: {_NO_PICKLES}", files=pickled)
    raise DeployRefused(f"{folder} has a config.json, but neither {_WHOLE} nor {_INDEX}{_instead(found)}")


def _sharded(folder: Path, index: str) -> list[str]:
    weight_map = _json_object(folder / index).get("weight_map")
    listed = list(weight_map.values()) if isinstance(weight_map, dict) else []
    shards = sorted({shard for shard in listed if isinstance(shard, str)})
    if not shards or not all(isinstance(shard, str) for shard in listed):
        raise DeployRefused(f"{folder / index} does not say which files hold the weights")
    missing = [shard for shard in shards if "/" in shard or not (folder / shard).is_file()]
    if missing:
        raise DeployRefused(f"{folder} lacks {missing[0]}, one of {len(shards)} files that {index} lists")
    return [*shards, index]


def _modules(path: Path) -> tuple[tuple[str, str], ...]:
    """Return (type, folder) of each module of sentence-transformers, () if modules.json is not there."""
    file = path / "modules.json"
    if not file.is_file():
        return ()
    try:
        listed = json.loads(file.read_bytes())
        return tuple((str(one["type"]).rpartition(".")[2], str(one["path"]).strip("/")) for one in listed)
    except (ValueError, TypeError, KeyError) as error:
        raise DeployRefused(f"{file} is not a list of modules of sentence-transformers: {error!r}") from None


def _json_object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except ValueError as error:
        raise DeployRefused(f"{file} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise DeployRefused(f"{file} is not a JSON object")
    return value


def _pipeline_tag(card: Path) -> str:
    """Return what the front matter of a model card says the model is for."""
    if not card.is_file():
        return ""
    front = _FRONT_MATTER.match(card.read_text(errors="replace"))
    found = _PIPELINE_TAG.search(front[1]) if front else None
    return found[1] if found else ""


def _not_a_folder(text: str, path: Path) -> str:
    if path.is_file():
        return f"--model takes the folder of a model, with config.json and safetensors files, and {text} is a file"
    if _HUB_NAME.match(text) and not text.startswith("."):
        return (
            f"there is no folder {text}. If that is the name of a model on a hub: nothing is fetched from there; "
            "download the model yourself, with all its files, and give the folder"
        )
    return f"there is no folder {path}"


def _no_config(path: Path) -> str:
    inner = sorted(file.parent for file in path.glob("**/config.json"))[:3] if path != path.parent else []
    if inner:
        return f"{path} has no config.json; did you mean {' or '.join(map(str, inner))}?"
    found = sorted(file.name for file in path.iterdir())
    return f"{path} has no config.json: a model is a folder as save_pretrained writes it{_instead(found)}"


def _instead(found: list[str]) -> str:
    """Return what is there that cannot be served as it is, for the end of a refusal."""
    for suffix, what in ((".gguf", "a GGUF file"), (".onnx", "an ONNX file"), (".h5", "weights of TensorFlow")):
        if name := next((name for name in found if name.endswith(suffix)), ""):
            return f". It has {what}, {name}: write the model once with transformers' save_pretrained(folder)"
    return ""
