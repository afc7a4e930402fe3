"""`load_pretrained`: a transformers directory as fast as memory can be mapped.

The module is built on the meta device (no memory, no initialisation), the safetensors files are memory-mapped and
their tensors become the parameters: zero copy on the CPU, straight to the device on a GPU. What is not in the files
(such as rotary frequencies) is computed by the model's own code, tied weights are tied again. The result equals
`from_pretrained` bit for bit; where that cannot be promised, `from_pretrained` itself is called and the log says why.

Leans on internals of transformers 5: when they have moved, that too only means the slower way.
Importing this module imports torch and transformers. It does not know functions, versions or instances.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import tempfile
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from transformers import AutoConfig, AutoModel, BertConfig, BertModel, GenerationConfig
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key
from transformers.initialization import no_init_weights
from transformers.models.auto.auto_factory import _get_model_class

from samovar.acceleration.models import accelerate as accelerate
from samovar.acceleration.models import declared_now, dtype_of
from samovar.errors import DeployRefused

logger = logging.getLogger("samovar.torch")

_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_tiny_files: dict[str, bytes] = {}  # of the tiny model, by name; made once and shared with forks


class _CannotMatch(Exception):
    """Why the fast way would not equal from_pretrained."""


def load_pretrained(
    path: str | Path,
    auto_class: Any = AutoModel,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    *,
    may_lack: Collection[str] | None = None,
) -> Any:
    """Return the model saved in a directory, in eval mode, equal in every output bit to `from_pretrained`.

    Args:
        path: directory with config.json and safetensors files, whole or sharded.
        auto_class: a transformers Auto class, or a model class. device: "cpu" or "cuda:N".
        dtype: of the floating parameters; None keeps what the checkpoint was saved in.
        may_lack: parts of the names of weights that may be missing; None = any may be. transformers makes those up at
            random, which is right for a part whose answer is not used, and for training.
    What the version declares (`samovar.acceleration`) is made of it: its precision, unless `dtype` says another, its
    attention kernel, and what was built of it at deploy in its place.
    Raises: DeployRefused for weights that are missing and may not be; whatever `from_pretrained` raises for a directory
        it cannot load.
    """
    folder = Path(path)
    declared = declared_now()
    model, missing = _load(folder, auto_class, device, dtype or dtype_of(declared), declared.attention)
    if may_lack is not None:
        _refuse_random(sorted(name for name in missing if not any(part in name for part in may_lack)))
    return accelerate(model, device)


def _refuse_random(missing: list[str]) -> None:
    """Raise DeployRefused if weights are missing: what a model answers with random ones looks like an answer."""
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DeployRefused(
            f"the weights lack {missing[0]}{more}, which would be random: either they are not all "
            "there, or config.json is that of another model"
        )


def _load(
    folder: Path, auto_class: Any, device: str, dtype: torch.dtype | None, attention: str
) -> tuple[Any, Collection[str]]:
    """Return the model, and which of its weights were not in the directory."""
    try:
        return _load_mapped(folder, auto_class, device, dtype, attention), ()
    except _CannotMatch as reason:
        logger.warning("loading %s with from_pretrained: %s", folder, reason)
    except Exception as error:  # noqa: BLE001 (whatever breaks in internals, from_pretrained is the answer)
        logger.warning("loading %s with from_pretrained: %s: %s", folder, type(error).__name__, error)
    kernel = {"attn_implementation": attention} if attention else {}
    model, found = auto_class.from_pretrained(
        folder, dtype=dtype or "auto", local_files_only=True, output_loading_info=True, **kernel
    )
    return model.to(device).eval(), found["missing_keys"]


def prepare() -> None:
    """Do beforehand what the first load would do: load a tiny model and run it.

    transformers compiles a thousand patterns and torch registers its meta kernels on first use, 0.1 s together: done
    once for all forks of this process. A fork that does it again owns the pages that a load writes to.
    """
    with tempfile.TemporaryDirectory(prefix="samovar-tiny-") as folder, torch.inference_mode():
        _write_tiny_checkpoint(Path(folder))
        model = load_pretrained(folder, BertModel)
        model(input_ids=torch.ones(1, 4, dtype=torch.long), attention_mask=torch.ones(1, 4, dtype=torch.long))


def _write_tiny_checkpoint(folder: Path) -> None:
    """Save a tiny model, the same one in this process and in its forks."""
    if not _tiny_files:
        config = BertConfig(
            vocab_size=8, hidden_size=32, num_hidden_layers=1, num_attention_heads=1, intermediate_size=32
        )
        # not save_pretrained: its progress bar starts a thread, and this process is about to be forked
        _tiny_files["config.json"] = config.to_json_string().encode()
        _tiny_files[_WHOLE] = save(BertModel(config).state_dict())
    for name, content in _tiny_files.items():
        (folder / name).write_bytes(content)


def _load_mapped(folder: Path, auto_class: Any, device: str, dtype: torch.dtype | None, attention: str = "") -> Any:
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if attention:
        config._attn_implementation = attention
    _refuse_special(config)
    cls = _model_class(auto_class, config)
    weights = _map_weights(folder, device)
    dtype = _set_dtype(config, dtype, weights)
    model = _build_on_meta(cls, config, dtype)
    if model._get_dtype_plan(dtype):
        raise _CannotMatch("some of its modules keep another dtype")
    missing = _assign(model, _renamed(model, weights))
    _finish(model, missing, device)
    if model.can_generate():
        model.generation_config = _generation_config(folder)
    return model.eval()


def _refuse_special(config: Any) -> None:
    if getattr(config, "quantization_config", None) is not None:
        raise _CannotMatch("it is quantized")
    if getattr(config, "auto_map", None):
        raise _CannotMatch("it brings code of its own")
    if getattr(config, "fusion_config", None) is not None:
        raise _CannotMatch("it asks for fused modules")


def _model_class(auto_class: Any, config: Any) -> Any:
    mapping = getattr(auto_class, "_model_mapping", None)
    return auto_class if mapping is None else _get_model_class(config, mapping)


def _map_weights(folder: Path, device: str) -> dict[str, torch.Tensor]:
    """Return every tensor of the checkpoint, mapped rather than read when the device is the CPU."""
    if (folder / _WHOLE).is_file():
        whole: dict[str, torch.Tensor] = load_file(folder / _WHOLE, device)
        return whole
    if not (folder / _INDEX).is_file():
        raise _CannotMatch("it has no safetensors files")
    weight_map: dict[str, str] = json.loads((folder / _INDEX).read_bytes())["weight_map"]
    weights: dict[str, torch.Tensor] = {}
    for shard in sorted(set(weight_map.values())):
        weights |= load_file(folder / shard, device)
    return weights


def _set_dtype(config: Any, dtype: torch.dtype | None, weights: dict[str, torch.Tensor]) -> torch.dtype:
    """Settle the dtype as from_pretrained's "auto" does: asked for, the config's, or the first float weight's."""
    if dtype is None:
        dtype = getattr(config, "dtype", None)
    if dtype is None:
        dtype = next((tensor.dtype for tensor in weights.values() if tensor.is_floating_point()), torch.float32)
    config.dtype = dtype
    for name in config.sub_configs:
        if (sub_config := getattr(config, name)) is not None:
            sub_config.dtype = dtype
    return dtype


def _build_on_meta(cls: Any, config: Any, dtype: torch.dtype) -> Any:
    with ExitStack() as stack:
        for context in (*cls.get_init_context(dtype, False, False, None), no_init_weights()):
            stack.enter_context(context)
        return cls(copy.deepcopy(config))


def _renamed(model: Any, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights under the model's own names, those it has no place for left out."""
    conversions = get_model_conversion_mapping(model)
    renamings = [rule for rule in conversions if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in conversions if not isinstance(rule, WeightRenaming)]
    expected, prefix = model.state_dict(), model.base_model_prefix
    renamed: dict[str, torch.Tensor] = {}
    for key, tensor in weights.items():
        name, converter = rename_source_key(key, renamings, converters, prefix, expected)
        if name not in expected and key in expected:
            name, converter = rename_source_key(key, [], [], prefix, expected)
        if converter is not None:
            raise _CannotMatch(f"{key} has to be converted")
        if name in expected:
            renamed[name] = tensor.to(expected[name].dtype)
        elif not _is_ignored(model, name):
            logger.info("the model has no place for the weight %s", name)
    return renamed


def _is_ignored(model: Any, name: str) -> bool:
    patterns = [*(model._keys_to_ignore_on_load_unexpected or ()), r"(rotary_emb\.inv_freq|position_ids)$"]
    return any(re.search(pattern, name) for pattern in patterns)


def _assign(model: Any, weights: dict[str, torch.Tensor]) -> set[str]:
    """Make the tensors the model's parameters; return the names still missing, which must all be tied ones."""
    missing = set(model.load_state_dict(weights, strict=False, assign=True).missing_keys)
    tied = model.all_tied_weights_keys
    untied = sorted(missing - set(tied) - set(tied.values()))
    if untied:
        raise _CannotMatch(f"the checkpoint lacks {untied[0]}" + (f" and {len(untied) - 1} more" * (len(untied) > 1)))
    return missing


def _finish(model: Any, missing: set[str], device: str) -> None:
    """Compute what no checkpoint holds (non-persistent buffers) and tie what is tied."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor._is_hf_initialized = True
    model._move_missing_keys_from_meta_to_device(set(), {"": torch.device(device)}, None, None)
    for module in model.modules():
        module._is_hf_initialized = not module._non_persistent_buffers_set
    model._initialize_missing_keys(False)
    model.tie_weights(missing_keys=missing, recompute_mapping=False)
    left = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    if left:
        raise _CannotMatch(f"{left[0]} could not be filled")


def _generation_config(folder: Path) -> Any:
    if (folder / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(folder, local_files_only=True)
    return GenerationConfig.from_pretrained(
        folder, config_file_name="config.json", _from_model_config=True, local_files_only=True
    )
