"""Model folders for tasks beyond generation, tiny and with random weights; like `tiny_models`, made once per process.

    path = tiny_task("image-classification")

Importing this module imports no torch.
"""

from __future__ import annotations

import atexit
import base64
import copy
import functools
import io
import json
import shutil
import struct
import tempfile
import wave
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import tiny_multimodal
from support.tiny_models import tiny_tokenizer

MASK = "<mask>"
RATE_HZ = 16_000
NUM_FRAMES = 4  # that the model of videos looks at
LABELS = {0: "contradiction", 1: "neutral", 2: "entailment"}  # what zero-shot classification looks for
_NUM_POSITIONS = 64
_SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
_IMAGE = _SHAPE | {"image_size": 32, "patch_size": 8}
_SOUND = _SHAPE | {
    "conv_dim": (8, 8, 8),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
_SIZE = {"height": 32, "width": 32}


@functools.cache
def tiny_task(task: str) -> Path:
    """Return the folder of a tiny model for a task in TASKS; "whisper" recognises speech, too, another way."""
    import torch

    torch.manual_seed(sum(task.encode()))
    folder = Path(tempfile.mkdtemp(prefix=f"samovar-{task}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    model, *processors = TASKS[task]()
    model.save_pretrained(folder)
    for processor in processors:
        processor.save_pretrained(folder)
    return folder


def png(width: int, height: int, colour: tuple[int, int, int] = (200, 30, 3)) -> str:
    """Return base64 of an image file of one colour."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def bomb() -> bytes:
    """Return a PNG file of a few bytes that says it is 100,000 pixels wide and high."""
    data = bytearray(base64.b64decode(png(2, 2)))
    data[16:24] = struct.pack(">II", 100_000, 100_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


def noise(width: int, height: int, seed: int) -> bytes:
    """Return an image file of coloured spots, for models to find something in."""
    import numpy as np
    from PIL import Image

    spots = np.random.default_rng(seed).integers(0, 256, (max(1, height // 4), max(1, width // 4), 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(spots).resize((width, height)).save(file, "PNG")
    return file.getvalue()


def film(pictures: list[bytes]) -> bytes:
    """Return a video file of image files, which loses nothing of them."""
    import av
    from PIL import Image

    images = [Image.open(io.BytesIO(picture)) for picture in pictures]
    file = io.BytesIO()
    with av.open(file, "w", format="mov") as out:
        stream: Any = out.add_stream("qtrle", rate=8)
        stream.width, stream.height, stream.pix_fmt = *images[0].size, "rgb24"
        for image in images:
            out.mux(stream.encode(av.VideoFrame.from_image(image)))
        out.mux(stream.encode(None))
    return file.getvalue()


def wav(frames: bytes, *, rate_hz: int = RATE_HZ, width: int = 2, channels: int = 1) -> bytes:
    """Return a WAV file of these frames."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(width)
        out.setframerate(rate_hz)
        out.writeframes(frames)
    return file.getvalue()


def _transformers() -> Any:
    import transformers

    return transformers


def _reader() -> Any:
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.add_special_tokens({"mask_token": MASK})
    return tokenizer


def _bert(head: str, **more: Any) -> list[Any]:
    t, tokenizer = _transformers(), _reader()
    config = t.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=_NUM_POSITIONS, **_SHAPE, **more)
    return [getattr(t, f"BertFor{head}")(config), tokenizer]


def _labels() -> dict[str, Any]:
    return {"id2label": LABELS, "label2id": {label: index for index, label in LABELS.items()}}


def _vit() -> list[Any]:
    t = _transformers()
    return [t.ViTForImageClassification(t.ViTConfig(**_IMAGE, num_labels=3)), t.ViTImageProcessorPil(size=_SIZE)]


def _yolos() -> list[Any]:
    t = _transformers()
    config = t.YolosConfig(**_IMAGE | {"image_size": [32, 32]}, num_detection_tokens=4, num_labels=3)
    return [
        t.YolosForObjectDetection(config),
        t.YolosImageProcessorPil(size={"shortest_edge": 32, "longest_edge": 64}),
    ]


def _segformer() -> list[Any]:
    t = _transformers()
    config = t.SegformerConfig(**_pyramid(2), num_labels=3)
    return [t.SegformerForSemanticSegmentation(config), t.SegformerImageProcessorPil(size=_SIZE)]


def _glpn() -> list[Any]:
    t = _transformers()
    return [t.GLPNForDepthEstimation(t.GLPNConfig(**_pyramid(4))), t.GLPNImageProcessorPil()]


def _pyramid(num_blocks: int) -> dict[str, Any]:
    return {
        "num_encoder_blocks": num_blocks,
        "depths": [1] * num_blocks,
        "sr_ratios": [1] * num_blocks,
        "hidden_sizes": [16] * num_blocks,
        "patch_sizes": [3] * num_blocks,
        "strides": [2] * num_blocks,
        "num_attention_heads": [1] * num_blocks,
        "mlp_ratios": [2] * num_blocks,
        "decoder_hidden_size": 16,
    }


def _clip() -> list[Any]:
    t, tokenizer = _transformers(), _reader()
    text = _SHAPE | {"vocab_size": len(tokenizer), "max_position_embeddings": _NUM_POSITIONS}
    ends = {"bos_token_id": 1, "eos_token_id": tokenizer.eos_token_id}
    config = t.CLIPConfig(text_config=text | ends, vision_config=_IMAGE, projection_dim=16)
    processor = t.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=_SIZE)
    return [t.CLIPModel(config), processor, tokenizer]


def _owlvit() -> list[Any]:
    t, tokenizer = _transformers(), _reader()
    text = _SHAPE | {"vocab_size": len(tokenizer), "max_position_embeddings": 16}
    ends = {"bos_token_id": 1, "eos_token_id": tokenizer.eos_token_id}
    config = t.OwlViTConfig(text_config=text | ends, vision_config=_IMAGE, projection_dim=32)
    processor = t.OwlViTImageProcessorPil(size=_SIZE, do_center_crop=False)
    return [t.OwlViTForObjectDetection(config), processor, tokenizer]


def _louder(model: Any, factor: float) -> Any:
    """Return a model whose answers depend on what it is given more than those of fresh weights do."""
    import torch

    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(factor if weights.ndim > 1 else 1)
    return model


def _sam() -> list[Any]:
    t, size = _transformers(), {"image_size": 64, "patch_size": 16}
    vision = _SHAPE | size | {"output_channels": 16, "num_pos_feats": 8, "window_size": 2, "global_attn_indexes": [0]}
    prompt = size | {"hidden_size": 16, "mask_input_channels": 4}
    decoder = {"hidden_size": 16, "num_attention_heads": 2, "mlp_dim": 32, "iou_head_hidden_dim": 16}
    config = t.SamConfig(
        vision_config=vision, prompt_encoder_config=prompt, mask_decoder_config=decoder | {"num_hidden_layers": 1}
    )
    whole = {"height": 64, "width": 64}
    return [_louder(t.SamModel(config), 40), t.SamImageProcessorPil(size={"longest_edge": 64}, pad_size=whole)]


def _superglue() -> list[Any]:
    t = _transformers()
    points = {
        "model_type": "superpoint",
        "encoder_hidden_sizes": [8, 8, 8, 8],
        "decoder_hidden_size": 16,
        "descriptor_decoder_dim": 16,
        "keypoint_threshold": 0.0,
        "max_keypoints": 16,
        "nms_radius": 2,
    }
    config = t.SuperGlueConfig(
        keypoint_detector_config=points,
        hidden_size=16,
        keypoint_encoder_sizes=[8],
        gnn_layers_types=["self", "cross"],
        num_attention_heads=2,
        sinkhorn_iterations=5,
        matching_threshold=0.0,
    )
    processor = t.SuperGlueImageProcessorPil(size={"height": 48, "width": 64})
    return [t.SuperGlueForKeypointMatching(config), processor]


def _videomae() -> list[Any]:
    t = _transformers()
    config = t.VideoMAEConfig(**_IMAGE, num_frames=NUM_FRAMES, tubelet_size=2, num_labels=3)
    processor = t.VideoMAEImageProcessorPil(size={"shortest_edge": 32}, crop_size=_SIZE)
    return [t.VideoMAEForVideoClassification(config), processor]


def _clap() -> list[Any]:
    t, tokenizer = _transformers(), _reader()
    text = _SHAPE | {"vocab_size": len(tokenizer), "max_position_embeddings": 66}
    sound = {
        "hidden_size": 32,
        "num_mel_bins": 16,
        "spec_size": 64,
        "window_size": 4,
        "patch_stride": [4, 4],
        "patch_embeds_hidden_size": 16,
        "depths": [1, 1],
        "num_attention_heads": [1, 1],
    }
    config = t.ClapConfig(
        text_config=text | {"pad_token_id": tokenizer.pad_token_id}, audio_config=sound, projection_dim=16
    )
    processor = t.ClapFeatureExtractor(
        feature_size=16,
        sampling_rate=RATE_HZ,
        max_length_s=1,
        hop_length=160,
        fft_window_size=1024,
        frequency_max=8000,
        truncation="rand_trunc",
    )
    return [_louder(t.ClapModel(config), 4), processor, tokenizer]


def _wav2vec2() -> list[Any]:
    t = _transformers()
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "|": 4} | {
        letter: 5 + index for index, letter in enumerate("ABCDE")
    }
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "vocab.json"
        file.write_text(json.dumps(vocab))
        tokenizer = t.Wav2Vec2CTCTokenizer(str(file))
    config = t.Wav2Vec2Config(**_SOUND, vocab_size=len(vocab), pad_token_id=0)
    return [t.Wav2Vec2ForCTC(config), t.Wav2Vec2FeatureExtractor(), tokenizer]


def _wav2vec2_labels() -> list[Any]:
    t = _transformers()
    config = t.Wav2Vec2Config(**_SOUND, num_labels=3, classifier_proj_size=8)
    return [t.Wav2Vec2ForSequenceClassification(config), t.Wav2Vec2FeatureExtractor()]


def _whisper() -> list[Any]:
    """Return a Whisper of two languages; its vocabulary is 256 bytes and its own markers."""
    from tokenizers.pre_tokenizers import ByteLevel

    t = _transformers()
    tokenizer = t.WhisperTokenizer(vocab={byte: index for index, byte in enumerate(sorted(ByteLevel.alphabet()))})
    times = [f"<|{index * 0.02:.2f}|>" for index in range(1501)]
    tokenizer.add_special_tokens({"pad_token": "<|endoftext|>"})
    tokenizer.add_tokens([*_MARKERS, *times], special_tokens=True)
    ids = {marker: tokenizer.convert_tokens_to_ids(marker) for marker in _MARKERS}
    end = ids["<|endoftext|>"]
    config = t.WhisperConfig(
        vocab_size=len(tokenizer),
        d_model=32,
        **{f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in _SIDE.items()},
        max_target_positions=32,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=ids["<|startoftranscript|>"],
        begin_suppress_tokens=None,
        suppress_tokens=None,
    )
    model = t.WhisperForConditionalGeneration(config)
    vars(model.generation_config).update(
        {
            "max_length": 12,
            "_from_model_config": False,
            "is_multilingual": True,
            "lang_to_id": {marker: ids[marker] for marker in ("<|en|>", "<|fr|>")},
            "task_to_id": {"transcribe": ids["<|transcribe|>"], "translate": ids["<|translate|>"]},
            "no_timestamps_token_id": ids["<|notimestamps|>"],
            "prev_sot_token_id": ids["<|startofprev|>"],
            "max_initial_timestamp_index": 50,
            "alignment_heads": [[0, 0]],
        }
    )
    return [model, t.WhisperFeatureExtractor(), tokenizer]


_MARKERS = (
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|fr|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>",
    "<|startofprev|>", "<|nocaptions|>", "<|notimestamps|>",
)  # fmt: skip
_SIDE = {"layers": 1, "attention_heads": 2, "ffn_dim": 64}

TASKS: dict[str, Callable[[], list[Any]]] = {
    "text-classification": lambda: _bert("SequenceClassification", **_labels()),
    "zero-shot-classification": lambda: _bert("SequenceClassification", **_labels()),
    "token-classification": lambda: _bert("TokenClassification", num_labels=3),
    "fill-mask": lambda: _bert("MaskedLM"),
    "feature-extraction": lambda: _bert("MaskedLM"),
    "image-classification": _vit,
    "image-feature-extraction": _vit,
    "object-detection": _yolos,
    "image-segmentation": _segformer,
    "depth-estimation": _glpn,
    "zero-shot-image-classification": _clip,
    "zero-shot-object-detection": _owlvit,
    "mask-generation": _sam,
    "keypoint-matching": _superglue,
    "video-classification": _videomae,
    "zero-shot-audio-classification": _clap,
    "automatic-speech-recognition": _wav2vec2,
    "whisper": _whisper,
    "audio-classification": _wav2vec2_labels,
    "image-text-to-text": tiny_multimodal.llava,
    "any-to-any": tiny_multimodal.qwen_audio,
    "blip": tiny_multimodal.blip,
    "qwen-vl": tiny_multimodal.qwen_vl,
    "document-question-answering": tiny_multimodal.layoutlm,
    "donut": tiny_multimodal.donut,
    "table-question-answering": tiny_multimodal.tapas,
    "text-to-audio": tiny_multimodal.vits,
}
