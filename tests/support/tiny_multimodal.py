"""Tiny models that see, read documents and tables, or speak, with random weights; `tiny_tasks` writes them to folders.

Importing this module imports no torch.
"""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

from support.tiny_models import CONTEXT_TOKENS, tiny_tokenizer

IMAGE_TOKEN = "<image>"
MEDIA_TEMPLATE = """\
{%- for message in messages -%}<|im_start|>{{ message['role'] }}
{% for part in message['content'] -%}
{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}
{%- endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""
_SIDE = 32
_SEES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": _SIDE,
    "patch_size": 8,
}
_WRITES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": CONTEXT_TOKENS,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}


def llava() -> list[Any]:
    """Return a Llava: a Llama that sees 16 patches of each image, with a chat template."""
    t = _transformers()
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE_TOKEN]})
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    config = t.LlavaConfig(
        vision_config=t.CLIPVisionConfig(**_SEES),
        text_config=t.LlamaConfig(**_WRITES, **ends, vocab_size=len(tokenizer)),
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
        vision_feature_layer=-1,
    )
    size = {"height": _SIDE, "width": _SIDE}
    processor = t.LlavaProcessor(
        image_processor=t.CLIPImageProcessorPil(size={"shortest_edge": _SIDE}, crop_size=size),
        tokenizer=tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=MEDIA_TEMPLATE,
    )
    return [t.LlavaForConditionalGeneration(config), processor]


def qwen_vl() -> list[Any]:
    """Return a Qwen2.5-VL: positions in space, which the model itself remembers; 4 tokens of each image.

    Its processor is told by files: without torchvision there is none to be saved.
    """
    t = _transformers()
    tokenizer = copy.deepcopy(tiny_tokenizer())
    marks = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    tokenizer.chat_template = MEDIA_TEMPLATE.replace(IMAGE_TOKEN, "".join((marks[0], marks[2], marks[1])))
    start, end, image, video = (tokenizer.convert_tokens_to_ids(mark) for mark in marks)
    sees = {"depth": 2, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 64, "num_heads": 2}
    patches = {"patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2}
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10_000.0}
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    config = t.Qwen2_5_VLConfig(
        vision_config=sees | patches | {"window_size": 32, "fullatt_block_indexes": [1]},
        text_config=_WRITES | ends | {"vocab_size": len(tokenizer), "rope_parameters": rope},
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
    )
    pixels = {"min_pixels": _SIDE * _SIDE, "max_pixels": _SIDE * _SIDE, "patch_size": 8, "merge_size": 2}
    kind = {"processor_class": "Qwen2_5_VLProcessor"}
    images = kind | {"image_processor_type": "Qwen2VLImageProcessor", "temporal_patch_size": 2} | pixels
    files = _Files({"processor_config.json": kind, "preprocessor_config.json": images})
    return [t.Qwen2_5_VLForConditionalGeneration(config), tokenizer, files]


class _Files:
    """Files of a processor, by name."""

    def __init__(self, files: dict[str, dict[str, Any]]) -> None:
        self._files = files

    def save_pretrained(self, folder: Path) -> None:
        """Write them."""
        for name, content in self._files.items():
            (folder / name).write_text(json.dumps(content))


def qwen_audio() -> list[Any]:
    """Return a Qwen2-Audio: a Qwen2 that hears."""
    t = _transformers()
    tokenizer = copy.deepcopy(tiny_tokenizer())
    marks = ["<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    hears = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
    config = t.Qwen2AudioConfig(
        audio_config=hears | {"num_mel_bins": 16},
        text_config=_WRITES | ends | {"model_type": "qwen2", "vocab_size": len(tokenizer)},
        audio_token_index=tokenizer.convert_tokens_to_ids(marks[1]),
    )
    template = MEDIA_TEMPLATE.replace("'image'", "'audio'").replace(IMAGE_TOKEN, "".join(marks))
    processor = t.Qwen2AudioProcessor(t.WhisperFeatureExtractor(feature_size=16), tokenizer, chat_template=template)
    return [t.Qwen2AudioForConditionalGeneration(config), processor]


def blip() -> list[Any]:
    """Return a BLIP: it captions, by a `generate` and for a prompt of its own, and has no chat template."""
    t = _transformers()
    tokenizer = word_tokenizer(t.BertTokenizerFast)
    text = _READS | {"encoder_hidden_size": 32, "projection_dim": 32, "vocab_size": len(tokenizer)}
    ends = {"bos_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id, "pad_token_id": 0}
    config = t.BlipConfig(text_config=text | ends, vision_config=_SEES, projection_dim=32)
    size = {"height": _SIDE, "width": _SIDE}
    return [t.BlipForConditionalGeneration(config), t.BlipProcessor(t.BlipImageProcessorPil(size=size), tokenizer)]


def layoutlm() -> list[Any]:
    """Return a LayoutLM: questions about words at places."""
    t = _transformers()
    tokenizer = word_tokenizer(t.BertTokenizerFast)
    config = t.LayoutLMConfig(**_READS, vocab_size=len(tokenizer), max_2d_position_embeddings=1024)
    return [t.LayoutLMForQuestionAnswering(config), tokenizer]


def donut() -> list[Any]:
    """Return a Donut: questions about pictures of pages."""
    t = _transformers()
    tokenizer = copy.deepcopy(tiny_tokenizer())
    encoder = t.DonutSwinConfig(
        image_size=_SIDE, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    decoder = t.MBartConfig(
        d_model=32,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=64,
        vocab_size=len(tokenizer),
        max_position_embeddings=_NUM_POSITIONS,
        is_decoder=True,
        add_cross_attention=True,
        pad_token_id=0,
        eos_token_id=tokenizer.eos_token_id,
    )
    config = t.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.pad_token_id, config.decoder_start_token_id = 0, 1
    model = t.VisionEncoderDecoderModel(config)
    model.generation_config.max_length = _NUM_POSITIONS
    return [model, tokenizer, t.DonutImageProcessorPil(size={"height": _SIDE, "width": _SIDE})]


def tapas() -> list[Any]:
    """Return a Tapas: questions about tables, with sums and averages."""
    t = _transformers()
    tokenizer = word_tokenizer(t.TapasTokenizer)
    config = t.TapasConfig(
        **_READS,
        vocab_size=len(tokenizer),
        type_vocab_sizes=[3, 256, 256, 2, 256, 256, 10],
        num_aggregation_labels=4,
        aggregation_labels={0: "NONE", 1: "SUM", 2: "AVERAGE", 3: "COUNT"},
        no_aggregation_label_index=0,
    )
    return [t.TapasForQuestionAnswering(config), tokenizer]


def vits() -> list[Any]:
    """Return a VITS: speech by letters."""
    t = _transformers()
    letters = {letter: index for index, letter in enumerate("_abcdefghijklmnopqrstuvwxyz ?!'")}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "vocab.json"
        file.write_text(json.dumps(letters))
        tokenizer = t.VitsTokenizer(str(file), phonemize=False, is_uroman=False, pad_token="_", unk_token="?")
    config = t.VitsConfig(
        vocab_size=len(letters),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=32,
        flow_size=16,
        spectrogram_bins=9,
        wavenet_kernel_size=3,
        prior_encoder_num_flows=1,
        prior_encoder_num_wavenet_layers=1,
        posterior_encoder_num_wavenet_layers=1,
        duration_predictor_num_flows=1,
        duration_predictor_filter_channels=16,
        duration_predictor_flow_bins=4,
        depth_separable_num_layers=1,
        depth_separable_channels=2,
        upsample_initial_channel=16,
        upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
    )
    return [t.VitsModel(config), tokenizer]


_NUM_POSITIONS = 64
_READS = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": _NUM_POSITIONS,
    "initializer_range": 0.2,
}
_WORDS = ("tea", "coffee", "green", "black", "cups", "two", "how", "many", "is", "ready", "what", "the", "of", "2", "3")


def word_tokenizer(kind: Any) -> Any:
    """Return a tokenizer of a few words and all letters. kind: of transformers, that reads BERT's vocabularies."""
    letters = [chr(code) for code in range(ord("!"), ord("~") + 1)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EMPTY]", *letters, *(f"##{one}" for one in letters)]
    vocabulary = dict.fromkeys([*pieces, *_WORDS])
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "vocab.txt"
        file.write_text("\n".join(vocabulary) + "\n")
        return kind(str(file), model_max_length=_NUM_POSITIONS)


def _transformers() -> Any:
    import transformers

    return transformers
