"""A folder of weights becomes an endpoint without a line of code, for the command line and for OpenAI's own client."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from support.journeys import Caller, Run
from support.platform import Platform
from support.tiny_models import tiny_model
from support.tiny_tasks import film, noise, png, tiny_task

pytestmark = pytest.mark.e2e


@pytest.fixture
def openai(platform: Platform) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{platform.url}/v1", api_key=platform.admin_key, timeout=60) as client:
        yield client


def test_a_model_that_chats(run: Run, caller: Caller, openai: OpenAI) -> None:
    folder = str(tiny_model("llama"))
    limits = ("--max-running", "8", "--cache-gib", "0.05", "--speculation", "prompt-lookup")
    deployed = run("deploy", "--model", folder, "--name", "tiny-chat", *limits)
    assert "speculation prompt-lookup" in deployed.stderr
    assert "its model runs in batches over pages" in deployed.stderr
    assert "tiny-chat@1 is live" in deployed.stdout
    assert f"base_url='{str(openai.base_url).rstrip('/')}', model='tiny-chat'" in deployed.stdout
    assert "task text-generation: its config.json says LlamaForCausalLM" in deployed.stderr
    assert caller.instances("tiny-chat", "ready"), "it was loaded before the deploy said that all is well"

    manifest = caller.http.get("/v1/functions/tiny-chat").json()["manifests"]["1"]
    assert manifest["acceleration"]["speculation"]["method"] == "prompt-lookup"

    messages: Any = [{"role": "user", "content": "the cat and"}]
    terms: dict[str, Any] = {"model": "tiny-chat", "messages": messages, "max_tokens": 8, "seed": 4}
    chunks = list(openai.chat.completions.create(**terms, stream=True))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    whole = openai.chat.completions.create(**terms)
    assert whole.choices[0].message.content == streamed
    assert whole.usage is not None and 0 < whole.usage.completion_tokens <= 8

    invoked = run("invoke", "tiny-chat", "--json", json.dumps({"messages": messages, "max_tokens": 8, "seed": 4}))
    pieces = [json.loads(line) for line in invoked.stdout.splitlines()]
    assert "".join(piece.get("text", "") for piece in pieces) == streamed
    assert pieces[-1]["usage"]["completion_tokens"] == whole.usage.completion_tokens

    refused = run("invoke", "tiny-chat", "--json", '{"prompt": ""}', ok=False)
    assert "prompt is empty" in refused.stderr


def test_a_model_whose_layers_know_no_pages(run: Run, openai: OpenAI) -> None:
    deployed = run("deploy", "--model", str(tiny_model("bloom")), "--name", "tiny-bloom", "--cache-gib", "0.01")
    assert "its model runs in batches over its own cache" in deployed.stderr
    asked = [
        openai.completions.create(model="tiny-bloom", prompt="the cat" * n, max_tokens=6, seed=n).choices[0].text
        for n in (1, 2, 2)
    ]
    assert asked[1] == asked[2]


def test_a_model_that_embeds(run: Run, openai: OpenAI) -> None:
    deployed = json.loads(run("deploy", "--model", str(tiny_model("bert")), "--name", "tiny-embed", "--json").stdout)
    assert (deployed["version"], deployed["task"]) == (1, "embeddings")
    found = openai.embeddings.create(model="tiny-embed", input=["the cat", "and the dog"])
    assert [len(one.embedding) for one in found.data] == [64, 64]
    assert found.usage.prompt_tokens > 2


def test_a_model_that_watches_files_and_frames(run: Run, caller: Caller) -> None:
    deployed = run("deploy", "--model", str(tiny_task("video-classification")), "--name", "tiny-watch")
    assert "task video-classification: its config.json says VideoMAEForVideoClassification" in deployed.stderr
    pictures = [noise(40, 30, seed) for seed in range(6)]
    file, *frames = (base64.b64encode(data).decode() for data in (film(pictures), *pictures))
    labels = caller.answer("tiny-watch", {"video": file})
    assert len(labels) == 3
    assert caller.answer("tiny-watch", {"video": frames}) == labels
    wrong = caller.invoke("tiny-watch", {"video": frames[:3]})
    assert (wrong.status_code, wrong.json()["path"]) == (422, "$.video")
    (path,) = caller.http.get("/v1/functions/tiny-watch/openapi.json").json()["paths"].values()
    schema = path["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"].keys() == {"video", "frame_sampling_rate", "top_k"}


def test_a_model_that_writes_about_pictures(run: Run, caller: Caller, openai: OpenAI) -> None:
    folder = str(tiny_task("image-text-to-text"))
    deployed = run("deploy", "--model", folder, "--name", "tiny-vlm", "--max-running", "2", "--max-context", "512")
    assert "task image-text-to-text: its config.json says LlavaForConditionalGeneration" in deployed.stderr
    assert "model='tiny-vlm'" in deployed.stdout and "samovar chat tiny-vlm" in deployed.stdout
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png(20, 30)}"}}
    messages: Any = [{"role": "user", "content": [picture, {"type": "text", "text": "what is it?"}]}]
    terms: dict[str, Any] = {"model": "tiny-vlm", "messages": messages, "max_tokens": 8, "seed": 4}
    chunks = list(openai.chat.completions.create(**terms, stream=True))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed and openai.chat.completions.create(**terms).choices[0].message.content == streamed
    refused = caller.invoke("tiny-vlm", {"prompt": "tea", "max_tokens": 600})
    assert (refused.status_code, refused.json()["param"]) == (400, "max_tokens")
    senseless = run("deploy", "--model", folder, "--name", "tiny-vlm", "--cache-gib", "1", ok=False)
    assert "--cache-gib means nothing for image-text-to-text" in senseless.stderr


def test_a_model_that_answers_from_tables(run: Run, caller: Caller) -> None:
    deployed = run("deploy", "--model", str(tiny_task("table-question-answering")), "--name", "tiny-table")
    assert "task table-question-answering: its config.json says TapasForQuestionAnswering" in deployed.stderr
    table = {"tea": ["green", "black"], "cups": [2, 3]}
    assert "answer" in caller.answer("tiny-table", {"question": "how many cups", "table": table})
    wrong = caller.invoke("tiny-table", {"question": "how many cups", "table": {"tea": [], "cups": []}})
    assert (wrong.status_code, wrong.json()["path"]) == (422, "$.table")


def test_a_model_that_sees_and_its_code_to_go_on_with(run: Run, caller: Caller, tmp_path: Path) -> None:
    folder = str(tiny_task("image-classification"))
    planned = json.loads(run("deploy", "--model", folder, "--name", "tiny-eye", "--dry-run", "--json").stdout)
    assert {row["file"] for row in planned["blobs"]} == {
        "code", "config.json", "model.safetensors", "preprocessor_config.json",
    }  # fmt: skip
    run("deploy", "--model", folder, "--name", "tiny-eye")
    labels = caller.answer("tiny-eye", {"image": png(20, 30), "top_k": 2})
    assert len(labels) == 2 and labels[0]["score"] >= labels[1]["score"]
    wrong = caller.invoke("tiny-eye", {"image": "bm90IGFuIGltYWdl"})
    assert (wrong.status_code, wrong.json()["path"]) == (422, "$.image")

    run("deploy", "--model", folder, "--name", "tiny-eye", "--eject", "mine")
    assert (tmp_path / "mine" / "app.py").read_text() == run(
        "deploy", "--model", folder, "--name", "tiny-eye", "--print-code"
    ).stdout
    again = json.loads(run("deploy", "mine/app.py", "--json").stdout)
    assert (again["version"], again["num_uploaded"]) == (2, 0), "it is what was deployed before, to the byte"


def test_a_model_that_cannot_be_loaded_is_known_by_its_deploy(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "cut-off"
    shutil.copytree(tiny_model("llama"), folder)
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    broken = run("deploy", "--model", str(folder), "--name", "cut-off", ok=False)
    assert broken.returncode != 0 and "cut-off@1 does not load" in broken.stderr, broken.stderr
    assert "load failed: the weights lack model.layers.2.input_layernorm.weight and 8 more, which" in broken.stderr
    assert "is live" not in broken.stdout
    (folder / "config.json").write_text(json.dumps(config))
    assert "cut-off@2 is live" in run("deploy", "--model", str(folder), "--name", "cut-off").stdout


REFUSED = [
    (["--model", "org/no-such-model"], 6, "nothing is fetched from there"),
    (["--model", "{bert}", "--task", "text-generation"], 6, "not made for text-generation"),
    (["--model", "{bert}", "--task", "chess"], 6, "there is no task 'chess'; there are"),
    (["--model", "{bert}", "--name", "Not A Name"], 6, "function name 'Not A Name'"),
    (["--model", "{bert}", "--max-running", "3"], 2, "--max-running means nothing for embeddings"),
    (["--model", "{llama}", "--attention", "eager"], 2, "--attention means nothing for text-generation"),
    (["--model", "{bert}", "--attention", "flash_attention_2"], 6, "error attention="),
    (["--model", "{bert}", "--engine", "tensorrt", "--gpus", "1"], 6, "error it runs on GPUs"),
    (["--model", "{bert}", "app.py"], 2, "give FILE, or --model FOLDER, not both"),
    (["{bert}"], 6, "deploy --model"),
    (["app.py", "--max-instances", "3"], 2, "--max-instances is for --model FOLDER"),
]


@pytest.mark.parametrize(("arguments", "code", "text"), REFUSED)
def test_what_cannot_be_is_refused_before_anything_goes_up(
    run: Run, arguments: list[str], code: int, text: str
) -> None:
    folders = {"bert": str(tiny_model("bert")), "llama": str(tiny_model("llama"))}
    done = run("deploy", *(argument.format(**folders) for argument in arguments), ok=False)
    assert (done.returncode, text in done.stderr) == (code, True), done.stderr
