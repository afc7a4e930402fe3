"""Tiny decoders of the architectures that differ in how they remember: made from a config, in memory, without a folder.

    model = decoder("jamba")       a new one each time, with the same weights

Importing this module imports no torch.
"""

from __future__ import annotations

from typing import Any

NUM_VOCABULARY = 320
WINDOW = 24  # of layers that see the last tokens only, or chunks of them

_COMMON = {
    "vocab_size": NUM_VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "initializer_range": 0.3,  # large enough that every token of the context matters
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_DENSE = {"intermediate_size": 64, "max_position_embeddings": 512}
_GROUPED = _DENSE | {"num_key_value_heads": 2, "head_dim": 8}
_EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
_LATENT = {"kv_lora_rank": 8, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
_DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_STATES = {"mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_expand": 2, "mamba_chunk_size": 16}
_ROUTED = _EXPERTS | {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}

_CONFIGS: dict[str, dict[str, Any]] = {
    # layers that ask the registry for attention of a kind of their own
    "GptOss": _GROUPED | {"sliding_window": WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    "GraniteSWA": _GROUPED | {"sliding_window": WINDOW},
    "DeepseekV3": _DENSE | _LATENT | _ROUTED | {"num_key_value_heads": 4, "first_k_dense_replace": 1},
    # attention of the model's own code
    "Bloom": {},
    "Mpt": {"d_model": 32, "n_layers": 4, "n_heads": 4, "max_seq_len": 512},
    "Falcon": {"alibi": True},
    "GPTNeo": {"attention_types": [[["global", "local"], 2]], "window_size": WINDOW, "max_position_embeddings": 512},
    "StableLm": _DENSE | {"num_key_value_heads": 2},
    "DiffLlama": _DENSE | {"num_key_value_heads": 2},
    "Doge": _GROUPED | {"sliding_window": WINDOW},
    "Llama4Text": _GROUPED
    | {"attention_chunk_size": WINDOW, "intermediate_size_mlp": 64, "num_local_experts": 2}
    | {"layer_types": ["chunked_attention", "full_attention"] * 2},
    # states
    "Mamba": {"state_size": 8},
    "Mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 16},
    "Rwkv": {"context_length": 512, "attention_hidden_size": 32},
    "RecurrentGemma": _GROUPED | {"lru_width": 32, "attention_window_size": WINDOW, "logits_soft_cap": 30.0},
    # states in some layers, or beside the attention of each
    "Jamba": _DENSE
    | {"num_key_value_heads": 2, "num_experts": 2, "use_mamba_kernels": False}
    | {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8},
    "Bamba": _DENSE | _STATES | {"num_key_value_heads": 2, "attn_layer_indices": [1, 3]},
    "FalconH1": _GROUPED | _STATES | {"mamba_d_ssm": 64, "mamba_n_groups": 1},
    "GraniteMoeHybrid": _DENSE
    | _STATES
    | {"num_key_value_heads": 2, "num_local_experts": 2, "shared_intermediate_size": 32}
    | {"layer_types": ["mamba", "attention"] * 2},
    "Qwen3Next": _GROUPED | _DELTA | _EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 16},
    "Qwen3_5Text": _GROUPED | _DELTA | {"layer_types": ["linear_attention", "full_attention"] * 2},
    "Lfm2": _DENSE | {"num_key_value_heads": 2, "layer_types": ["conv", "full_attention"] * 2},
    "MiniMax": _GROUPED | {"num_local_experts": 2, "block_size": 16, "sliding_window": None},
    # nothing that is kept
    "OpenAIGPT": {"n_positions": 512},
}


def decoder(name: str) -> Any:
    """Return a tiny model by the name of its class, without `ForCausalLM`, whose sinks are not zero."""
    import torch
    import transformers

    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**_COMMON | _CONFIGS[name])
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    return model
