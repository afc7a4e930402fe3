"""The examples are what their pages say: deployable, and MiniLM gives the numbers transformers gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from samovar.deploying import inspect

pytestmark = pytest.mark.process
EXAMPLES = Path(__file__).parents[2] / "functions" / "examples"

# in a process of its own: the files of all examples are called app
COMPARE = """
import sys
from pathlib import Path
import msgspec, torch
from transformers import AutoModel, AutoTokenizer
from samovar.authoring import definition_of
from samovar.options import resolve_weights
import app

torch.set_num_threads(1)
folder = resolve_weights(definition_of(app.MiniLM).weights, Path("."))
texts = ["tea is ready", "The kettle has boiled, and the cups are on the table.", "word " * 700, ""]
tokens = AutoTokenizer.from_pretrained(folder)(texts, padding=True, truncation=True, return_tensors="pt")
with torch.inference_mode():
    hidden = AutoModel.from_pretrained(folder).eval()(**tokens).last_hidden_state
mask = tokens["attention_mask"].unsqueeze(-1)
wanted = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1).tolist()
model = app.MiniLM()
model.load(folder, "cpu")
answers = model(texts)
equal = [answer["embedding"] for answer in answers] == wanted
sys.stdout.write(msgspec.json.encode([equal, len(wanted[0])]).decode())
"""


@pytest.mark.parametrize(("example", "handler"), [("echo_sum", "sync"), ("countdown", "generator"), ("minilm", "sync")])
def test_every_example_can_be_deployed(example: str, handler: str) -> None:
    draft = inspect(str(EXAMPLES / example / "app.py"))
    assert draft.manifest.handler == handler
    assert draft.manifest.example is not None, "an example is warmed up with"
    assert draft.manifest.output_schema
    assert bool(draft.weights) == (example == "minilm")


def test_minilm_gives_the_numbers_of_transformers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPARE], cwd=EXAMPLES / "minilm", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert msgspec.json.decode(done.stdout) == [True, 384]
