#!/bin/sh
# What only a real GPU can show. One command, a few minutes, on a machine with an NVIDIA GPU and the dev extra installed:
#     sh tests/gpu/run.sh
set -eu
cd "$(dirname "$0")/../.."
exec "${PYTHON:-python}" -m pytest tests/gpu -m gpu -q "$@"
