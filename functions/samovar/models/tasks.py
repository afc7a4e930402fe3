"""What can be done with a model without code, by which engine: one entry a task.

This module does not know folders (`choosing.py` finds a folder's task) or transformers; that the names are theirs is
tested.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
