"""Loads the same directory by load_pretrained and by from_pretrained and compares every bit."""

import logging
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers as t

import samovar as sv
from samovar.torch import load_pretrained

BERT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
LLAMA = BERT | {"num_key_value_heads": 2}
CASES: dict[str, tuple[Any, Any, Any]] = {
    "llama": (t.LlamaForCausalLM, t.LlamaConfig(**LLAMA), t.AutoModelForCausalLM),
    "llama tied": (t.LlamaForCausalLM, t.LlamaConfig(**LLAMA, tie_word_embeddings=True), t.AutoModelForCausalLM),
    "llama bf16": (t.LlamaForCausalLM, t.LlamaConfig(**LLAMA, dtype="bfloat16"), t.AutoModelForCausalLM),
    "gpt2": (t.GPT2LMHeadModel, t.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4), t.AutoModelForCausalLM),
    "bert": (t.BertModel, t.BertConfig(**BERT), t.AutoModel),
    "bert from a head's file": (t.BertForSequenceClassification, t.BertConfig(**BERT), t.AutoModel),
    "bert classifier": (
        t.BertForSequenceClassification,
        t.BertConfig(**BERT, num_labels=3),
        t.AutoModelForSequenceClassification,
    ),
    "bert masked": (t.BertForMaskedLM, t.BertConfig(**BERT), t.AutoModelForMaskedLM),
    "t5": (
        t.T5ForConditionalGeneration,
        t.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4),
        t.AutoModelForSeq2SeqLM,
    ),
    "a head the file lacks": (t.BertModel, t.BertConfig(**BERT), t.AutoModelForSequenceClassification),
}


class Caught(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        caught.append(record.getMessage())


caught: list[str] = []
logging.getLogger("samovar.torch").addHandler(Caught())


@sv.function(name="loads-models")
class LoadsModels:
    def load(self, weights: Path, device: str) -> None:
        self.weights = weights

    def __call__(self, case: str, shard: str = "1GB", dtype: str = "") -> dict[str, Any]:
        caught.clear()
        if case == "minilm":
            return compare(self.weights, t.AutoModel, None)
        cls, config, auto = CASES[case]
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            cls(config).save_pretrained(folder, max_shard_size=shard)
            return compare(Path(folder), auto, getattr(torch, dtype) if dtype else None)


def compare(folder: Path, auto: Any, dtype: Any) -> dict[str, Any]:
    ours = load_pretrained(folder, auto, dtype=dtype)
    theirs = auto.from_pretrained(folder, dtype=dtype or "auto")
    inputs = {"input_ids": torch.arange(10).view(1, 10)}
    if ours.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    with torch.inference_mode():
        outputs = ours(**inputs).to_tuple()[0], theirs(**inputs).to_tuple()[0]
    ours_state, theirs_state = tensors(ours), tensors(theirs)
    return {
        "output": torch.equal(*outputs),
        "same_class": type(ours) is type(theirs),
        "state": ours_state.keys() == theirs_state.keys()
        and all(same(ours_state[key], theirs_state[key]) for key in ours_state),
        "tied": sharing(ours) == sharing(theirs),
        "eval": not ours.training,
        "generation": str(getattr(ours, "generation_config", "")) == str(getattr(theirs, "generation_config", "")),
        "shards": len(list(folder.glob("*.safetensors"))),
        "fell_back": [line for line in caught if "with from_pretrained" in line],
        "dtype": str(next(ours.parameters()).dtype),
    }


def tensors(model: Any) -> dict[str, Any]:
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


def same(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.requires_grad == b.requires_grad and torch.equal(a, b)


def sharing(model: Any) -> set[frozenset[str]]:
    """Return the groups of names that are one and the same parameter."""
    groups: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), set()).add(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}
