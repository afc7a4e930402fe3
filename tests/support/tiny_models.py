"""Model folders as people have them, of tiny models with random weights: config, safetensors, tokenizer, chat template.

    path = tiny_model("llama")      made once per process, removed when it ends; the same weights every time

The tokenizer is a byte-level BPE of 256 bytes, a few merges and the markers of ChatML: any text comes back as it was,
and characters beyond ASCII are split over tokens. Importing this module imports no torch.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

GENERATORS = ("llama", "qwen2", "qwen3", "mistral", "gpt2", "gpt_neox", "phi", "gemma")
SLIDING = ("mistral_sliding", "gemma2")  # layers that see the last 24 tokens only
ENCODERS = ("bert",)
CONTEXT_TOKENS = 2048

END = "<|im_end|>"
SPECIALS = ("<|endoftext|>", "<|im_start|>", END)
CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}
{%- if message.get('tool_calls') %}{{ message['tool_calls'] | tojson }}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""

_TEXT = (
    "the cat and the dog went to the other end of the street, and there they saw the old man with the hat",
    "that is the thing about this: it is in the end what one would think of it then and there",
)
_SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_FEW_KV = {"num_key_value_heads": 2}
_WINDOW = {"sliding_window": 24}

# of each kind: the config class and what it needs beside the common shape
_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _SHAPE | _FEW_KV),
    "llama_wide": ("LlamaConfig", _SHAPE | _FEW_KV | {"head_dim": 32}),  # as narrow as vLLM takes on CPUs
    "qwen2": ("Qwen2Config", _SHAPE | _FEW_KV),
    "qwen3": ("Qwen3Config", _SHAPE | _FEW_KV | {"head_dim": 16}),
    "mistral": ("MistralConfig", _SHAPE | _FEW_KV | {"sliding_window": None}),
    "mistral_sliding": ("MistralConfig", _SHAPE | _FEW_KV | _WINDOW),
    "gpt2": ("GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT_TOKENS}),
    "gpt_neox": ("GPTNeoXConfig", _SHAPE),
    "phi": ("PhiConfig", _SHAPE),
    "gemma": ("GemmaConfig", _SHAPE | {"num_key_value_heads": 1, "head_dim": 16}),
    "gemma2": ("Gemma2Config", _SHAPE | _FEW_KV | _WINDOW | {"head_dim": 16, "query_pre_attn_scalar": 16}),
    "bloom": ("BloomConfig", {"hidden_size": 64, "n_layer": 2, "n_head": 4}),  # no pages for it: ALiBi
    "bert": ("BertConfig", _SHAPE),
}


@functools.cache
def tiny_model(kind: str) -> Path:
    """Return the folder of a tiny model of a kind in GENERATORS, SLIDING or ENCODERS; about 0.5 MB."""
    import torch
    import transformers

    torch.manual_seed(sum(kind.encode()))
    tokenizer = tiny_tokenizer()
    name, shape = _CONFIGS[kind]
    common = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": CONTEXT_TOKENS,
        "intermediate_size": 128,
        "initializer_range": 0.2,  # large enough that every token of the context matters
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": tokenizer.convert_tokens_to_ids(END),
        "pad_token_id": 0,
    }
    config = getattr(transformers, name)(**common | shape)
    auto = transformers.AutoModel if kind in ENCODERS else transformers.AutoModelForCausalLM
    folder = Path(tempfile.mkdtemp(prefix=f"samovar-{kind}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    auto.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@functools.cache
def tiny_tokenizer() -> Any:
    """Return the tokenizer of all tiny models, as transformers has them; who changes it, changes a copy."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=320, initial_alphabet=alphabet, special_tokens=list(SPECIALS), show_progress=False)
    tokenizer.train_from_iterator(_TEXT, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=SPECIALS[0],
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )
