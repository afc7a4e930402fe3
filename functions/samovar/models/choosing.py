"""Which task a folder with a model is made for, and what the names are that people and model cards have for it.

A task is chosen by what the folder says of itself, in this order: files of sentence-transformers, the model card, the
class that the weights were saved from. The task that a person names must fit that class: a model without the head for
it would answer at random. This module does not know transformers or engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from samovar.errors import DeployRefused
from samovar.models.folder import ModelFolder
from samovar.models.processors import processors_of
from samovar.models.tasks import EITHER, TASKS, ModelTask
from samovar.tasks import EMBEDDINGS, TEXT_GENERATION


@dataclass(frozen=True, slots=True)
class Choice:
    """The task of a model, and why it is this one."""

    task: ModelTask
    why: str


# what else people and model cards call them
ALIASES = {
    "sentence-similarity": EMBEDDINGS,
    "sentence-embeddings": EMBEDDINGS,
    "embedding": EMBEDDINGS,
    "conversational": TEXT_GENERATION,
    "chat": TEXT_GENERATION,
    "sentiment-analysis": "text-classification",
    "ner": "token-classification",
    "asr": "automatic-speech-recognition",
    "speech-recognition": "automatic-speech-recognition",
    "text-to-speech": "text-to-audio",
    "tts": "text-to-audio",
    "document-qa": "document-question-answering",
    "table-qa": "table-question-answering",
    "zero-shot": "zero-shot-classification",
    "image-embeddings": "image-feature-extraction",
    "image-matching": "keypoint-matching",
    "semantic-segmentation": "image-segmentation",
    "instance-segmentation": "image-segmentation",
    "panoptic-segmentation": "image-segmentation",
}
_NEAR = 0.8  # of 1: how alike two names are for one to be meant by the other
_GONE = "transformers 5 has no such pipeline; "
_BY_CHAT = _GONE + "a chat model does it, by --task text-generation"
_BY_IMAGE_CHAT = _GONE + "a model of images and texts does it, by --task image-text-to-text"
_NO_PIPELINE = "transformers has no pipeline for it: write a function, docs/authoring.md"
# what people ask for that is not served, and why
_REFUSED = {
    "summarization": _BY_CHAT,
    "translation": _BY_CHAT,
    "text2text-generation": _BY_CHAT,
    "question-answering": _BY_CHAT,
    "visual-question-answering": _BY_IMAGE_CHAT,
    "vqa": _BY_IMAGE_CHAT,
    "image-to-text": _BY_IMAGE_CHAT,
    "image-to-image": _GONE + "write a function, docs/authoring.md",
    "decision": "a chat model answers in words that you choose, by --task text-generation and response_format",
    "keypoint-detection": _NO_PIPELINE,
    "pose-estimation": _NO_PIPELINE,
    "text-to-image": _NO_PIPELINE,
    "text-to-video": _NO_PIPELINE,
    "image-to-video": _NO_PIPELINE,
    "audio-to-audio": _NO_PIPELINE,
    "voice-activity-detection": _NO_PIPELINE,
    "video-text-to-text": _NO_PIPELINE,
    "text-ranking": _NO_PIPELINE,
}


def choose(folder: ModelFolder, wanted: str | None) -> Choice:
    """Return the task `wanted`, or the one that the folder says it is for.

    Raises: DeployRefused with what is possible, if there is no such task, the model cannot do it, or nothing says.
    """
    if wanted is not None:
        task = _named(wanted)
        _refuse_misfit(task, folder)
        return Choice(task, "as asked for")
    if folder.modules:
        return Choice(TASKS[EMBEDDINGS], "it has the modules.json of sentence-transformers")
    tag = ALIASES.get(folder.pipeline_tag, folder.pipeline_tag)
    if tag in TASKS and fits(TASKS[tag], folder):
        return Choice(TASKS[tag], f"its model card says {folder.pipeline_tag}")
    if found := _by_architecture(folder):
        return Choice(found, f"its config.json says {folder.architecture}")
    says = f"its config.json says {folder.architecture}, which" if folder.architecture else "its config.json"
    raise DeployRefused(f"{folder.path}: {says} does not tell what it is for: give --task, {_possible(folder)}")


def fits(task: ModelTask, folder: ModelFolder) -> bool:
    """Return whether the model was saved with what the task needs; a folder that does not say fits everything."""
    name = folder.architecture
    if not name:
        return True
    hears, sees = _hears(folder), _sees(folder)
    if task.hears not in (None, hears) or task.sees not in (None, sees):
        return False
    if task.hears is task.sees is None and not (hears or sees):
        return False
    return not task.endings or name.endswith(task.endings)


def _named(wanted: str) -> ModelTask:
    """Return the task of this name, in any case. Raises: DeployRefused, with the names near to it first."""
    name = wanted.strip().lower()
    name = ALIASES.get(name, name)
    if name in TASKS:
        return TASKS[name]
    name = "translation" if name.startswith("translation_") else name
    near = [] if name in _REFUSED else get_close_matches(name, [*TASKS, *ALIASES], n=3, cutoff=_NEAR)
    why = f" ({_REFUSED[name]})" if name in _REFUSED else ""
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    raise DeployRefused(f"there is no task {wanted!r}{why}; {meant}there are {', '.join(sorted(TASKS))}")


def _refuse_misfit(task: ModelTask, folder: ModelFolder) -> None:
    if not fits(task, folder):
        raise DeployRefused(
            f"{folder.path} holds a {folder.architecture}, which is not made for {task.name}: {_possible(folder)}"
        )


def _possible(folder: ModelFolder) -> str:
    names = sorted(name for name, task in TASKS.items() if fits(task, folder))
    return f"possible are {', '.join(names)}" if names else "nothing without code of yours is possible with it"


def _by_architecture(folder: ModelFolder) -> ModelTask | None:
    """Return the task made for just this class, by the longest of the endings; a bare encoder is for vectors."""
    name = folder.architecture
    if not name or name == EITHER:
        return None
    exact = [task for task in TASKS.values() if task.endings and fits(task, folder)]
    if exact:
        return max(exact, key=lambda task: max(len(ending) for ending in task.endings if name.endswith(ending)))
    if not name.endswith("Model"):
        return None
    bare = "image-feature-extraction" if _sees(folder) else EMBEDDINGS
    return TASKS[bare] if fits(TASKS[bare], folder) else None


def _hears(folder: ModelFolder) -> bool:
    return "feature_extractor" in processors_of(folder.read)


def _sees(folder: ModelFolder) -> bool:
    return not processors_of(folder.read).isdisjoint({"image_processor", "video_processor"})
