#!/bin/sh
# Everything that only a machine with a GPU can show, in one command of a few minutes:
#   sh tests/gpu/run.sh            uses python3 from the environment that samovar is installed in
#   PYTHON=/path/to/python sh tests/gpu/run.sh
# Without a GPU every test is skipped, with the reason.
set -eu
cd "$(dirname "$0")/../.."
exec "${PYTHON:-python3}" -m pytest -m gpu -rs -v --durations=0 tests/gpu
