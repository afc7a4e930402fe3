"""What can be done with a model without code, by which engine, and which of it a folder is made for.

A task is chosen by what the folder says of itself, in this order: files of sentence-transformers, the model card, the
class that the weights were saved from. The task that a person names must fit that class: a model without the head for
it would answer at random. This module does not know transformers; that the names are theirs is tested.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from samovar.errors import DeployRefused
from samovar.models.folder import ModelFolder
from samovar.models.processors import processors_of
from samovar.tasks import ANY_TO_ANY, EMBEDDINGS, IMAGE_TEXT_TO_TEXT, PARTS, TEXT_GENERATION

_PIPELINES = "samovar_instance.engines.pipelines"


@dataclass(frozen=True, slots=True)
class ModelTask:
    """One thing that models are for.

    does: for people, "… with <class>". engine: module and class that does it. endings: of the names of the classes that
    can; empty if any model can. example: answered while an instance warms up. options: fields of value objects, such
    as {"batch": {"max_size": 16}}. hears, sees: needs an audio, an image processor; None = may have one. requirements:
    of pip, beyond what every model needs.
    """

    name: str
    does: str
    engine: tuple[str, str]
    endings: tuple[str, ...] = ()
    example: dict[str, Any] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=lambda: {"batch": {"max_size": 16}})
    hears: bool | None = False
    sees: bool | None = False
    requirements: tuple[str, ...] = ()

    @property
    def generates(self) -> bool:
        """Whether it is done by an engine that makes text token by token."""
        return self.name in PARTS


@dataclass(frozen=True, slots=True)
class Choice:
    """The task of a model, and why it is this one."""

    task: ModelTask
    why: str


# 64 x 64 pixels of one colour
SQUARE = (
    "iVBORw0KGgoAAAANSUhEUgAAAEAAAABAAQMAAACQp+OdAAAAA1BMVEXIeCjqlaEm"
    "AAAAD0lEQVR42mNgGAWjgHwAAAJAAAHgTR1EAAAAAElFTkSuQmCC"
)
_SILENCE = {"audio": [0.0] * 1600, "sampling_rate": 16000}
_TEXT = {"text": "tea is ready"}
_IMAGE = {"image": SQUARE}
_LABELS = {"labels": ["tea", "coffee"]}
# a few answers take turns
_WRITES: dict[str, Any] = {
    "example": {"prompt": "tea is", "images": [SQUARE], "max_tokens": 2},
    "options": {"scaling": {"target_concurrency": 4}, "limits": {"timeout_s": 600}},
}
EITHER = "VisionEncoderDecoderModel"  # reads, captions, answers: nothing tells which
_TABLE = {"tea": ["green", "black"], "cups": ["2", "3"]}
_WORDS: list[dict[str, Any]] = [{"word": "tea", "box": [10, 10, 90, 60]}, {"word": "ready", "box": [100, 10, 200, 60]}]


def _pipeline(name: str, does: str, engine: str, *endings: str, **more: Any) -> ModelTask:
    module, _, name_of_class = engine.partition(":")
    return ModelTask(name=name, does=does, engine=(f"{_PIPELINES}.{module}", name_of_class), endings=endings, **more)


TASKS = {
    task.name: task
    for task in (
        ModelTask(
            name=TEXT_GENERATION,
            does="text generation",
            engine=("samovar_instance.engines.text_generation", "TextGenerator"),
            endings=("ForCausalLM", "LMHeadModel"),
            example={"prompt": "tea is", "max_tokens": 2},
            # one answer takes a while, and many are made at once
            options={"scaling": {"target_concurrency": 64}, "limits": {"timeout_s": 600}},
        ),
        ModelTask(
            name=EMBEDDINGS,
            does="embeddings of texts",
            engine=("samovar_instance.engines.embeddings", "Embedder"),
            example=_TEXT,
            options={"batch": {"max_size": 64, "max_wait_ms": 5, "length": "num_tokens", "max_tokens": 2048}},
        ),
        _pipeline(
            "text-classification",
            "text classification",
            "texts:TextClassifier",
            "ForSequenceClassification",
            example=_TEXT,
        ),
        _pipeline(
            "token-classification", "labels of words", "texts:TokenClassifier", "ForTokenClassification", example=_TEXT
        ),
        _pipeline("fill-mask", "words for a mask", "texts:MaskFiller", "ForMaskedLM", "ForPreTraining"),
        _pipeline("feature-extraction", "vectors of tokens", "texts:FeatureExtractor", example=_TEXT),
        _pipeline(
            "zero-shot-classification",
            "classification by any labels",
            "texts:ZeroShotClassifier",
            "ForSequenceClassification",
            example=_TEXT | _LABELS,
        ),
        _pipeline(
            "image-classification",
            "image classification",
            "images:ImageClassifier",
            "ForImageClassification",
            "ForImageClassificationWithTeacher",
            "ForImageClassificationConvProcessing",
            "ForImageClassificationFourier",
            "ForImageClassificationLearned",
            example=_IMAGE,
            sees=True,
        ),
        _pipeline("image-feature-extraction", "vectors of images", "images:ImageFeatures", example=_IMAGE, sees=True),
        _pipeline(
            "zero-shot-object-detection",
            "named objects in images",
            "detection:ZeroShotObjectDetector",
            "OwlViTForObjectDetection",
            "Owlv2ForObjectDetection",
            "GroundingDinoForObjectDetection",
            example=_IMAGE | _LABELS,
            sees=True,
        ),
        _pipeline(
            "object-detection",
            "objects in images",
            "images:ObjectDetector",
            "ForObjectDetection",
            example=_IMAGE,
            sees=True,
        ),
        _pipeline(
            "image-segmentation",
            "masks of what is in images",
            "images:ImageSegmenter",
            "ForSemanticSegmentation",
            "ForImageSegmentation",
            "ForInstanceSegmentation",
            "ForUniversalSegmentation",
            "ForSegmentation",
            example=_IMAGE,
            sees=True,
        ),
        _pipeline(
            "depth-estimation",
            "depth of images",
            "images:DepthEstimator",
            "ForDepthEstimation",
            example=_IMAGE,
            sees=True,
        ),
        _pipeline(
            "mask-generation",
            "masks of everything in images",
            "masks:MaskGenerator",
            "SamModel",
            "Sam2Model",
            "Sam2VideoModel",
            "SamHQModel",
            "EdgeTamModel",
            "EdgeTamVideoModel",
            "Sam3TrackerModel",
            "Sam3VideoModel",
            example=_IMAGE | {"points_per_side": 2},
            # one image takes seconds: none waits for another in its batch
            options={"batch": {"max_size": 1}, "limits": {"timeout_s": 300}},
            sees=True,
        ),
        _pipeline(
            "keypoint-matching",
            "points that two images share",
            "detection:KeypointMatcher",
            "ForKeypointMatching",
            example={"images": [SQUARE, SQUARE]},
            sees=True,
        ),
        _pipeline(
            "video-classification",
            "video classification",
            "videos:VideoClassifier",
            "ForVideoClassification",
            example={"video": [SQUARE] * 64},  # as many frames as any of them looks at
            requirements=("av>=14",),
            sees=True,
        ),
        _pipeline(
            "zero-shot-image-classification",
            "image classification by any labels",
            "images:ZeroShotImageClassifier",
            "CLIPModel",
            "SiglipModel",
            "Siglip2Model",
            "AlignModel",
            "BlipModel",
            "Blip2ForImageTextRetrieval",
            "CLIPSegModel",
            "MetaClip2Model",
            "Tipsv2Model",
            example=_IMAGE | _LABELS,
            sees=True,
        ),
        _pipeline(
            "text-to-audio",
            "sounds of texts",
            "speech:TextToAudio",
            "VitsModel",
            "BarkModel",
            "MusicgenForConditionalGeneration",
            "MusicgenMelodyForConditionalGeneration",
            "FastSpeech2ConformerWithHifiGan",
            "SeamlessM4TForTextToSpeech",
            "SeamlessM4Tv2ForTextToSpeech",
            "CsmForConditionalGeneration",
            "PocketTTSForConditionalGeneration",
            "HiggsAudioV2ForConditionalGeneration",
            "VibeVoiceForConditionalGeneration",
            "GradiumPhononTTSForConditionalGeneration",
            example=_TEXT,
            # a text takes seconds: none waits for another in its batch
            options={"batch": {"max_size": 1}, "limits": {"timeout_s": 300}},
            hears=None,
        ),
        _pipeline(
            "automatic-speech-recognition",
            "speech to text",
            "sounds:SpeechRecognizer",
            "ForCTC",
            "ForTDT",
            "ForSpeechSeq2Seq",
            "ForConditionalGeneration",
            "ForSpeechToText",
            "EncoderDecoderModel",
            example=_SILENCE,
            hears=True,
        ),
        _pipeline(
            "zero-shot-audio-classification",
            "audio classification by any labels",
            "sounds:ZeroShotAudioClassifier",
            "ClapModel",
            example=_SILENCE | _LABELS,
            hears=True,
        ),
        _pipeline(
            "audio-classification",
            "audio classification",
            "sounds:AudioClassifier",
            "ForSequenceClassification",
            "ForAudioClassification",
            example=_SILENCE,
            hears=True,
        ),
        _pipeline(
            "document-question-answering",
            "answers from pages",
            "documents:DocumentAnswerer",
            "LayoutLMForQuestionAnswering",
            "LayoutLMv2ForQuestionAnswering",
            "LayoutLMv3ForQuestionAnswering",
            EITHER,
            example={"question": "what is ready", "words": _WORDS},
            sees=None,
        ),
        _pipeline(
            "table-question-answering",
            "answers from tables",
            "documents:TableAnswerer",
            "TapasForQuestionAnswering",
            example={"question": "how many cups of black tea", "table": _TABLE},
            requirements=("pandas>=2.2",),
        ),
        _pipeline(
            IMAGE_TEXT_TO_TEXT,
            "text about images",
            "multimodal:ImageTextToText",
            "ForConditionalGeneration",
            "ForCausalLM",
            "ForVisionText2Text",
            hears=None,
            sees=True,
            **_WRITES,
        ),
        _pipeline(
            ANY_TO_ANY,
            "text about images and sounds",
            "multimodal:AnyToAny",
            "Qwen2AudioForConditionalGeneration",
            "Qwen2_5OmniForConditionalGeneration",
            "Qwen3OmniMoeForConditionalGeneration",
            "Gemma3nForConditionalGeneration",
            "Phi4MultimodalForCausalLM",
            "ForConditionalGeneration",
            "ForCausalLM",
            "ForVisionText2Text",
            hears=None,
            sees=None,
            **_WRITES,
        ),
    )
}

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
