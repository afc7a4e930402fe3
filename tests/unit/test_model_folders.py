"""From a folder of weights to a project: what is read, what is refused, what is chosen, what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from samovar.bundle import code_files, pack, weight_files
from samovar.errors import DeployRefused
from samovar.models.choosing import ALIASES, choose, fits
from samovar.models.folder import ModelFolder, read_model_folder, refuse_untokenized
from samovar.models.project import (
    Wishes,
    app_code,
    default_model_name,
    example_of,
    refuse_foreign_draft,
    write_project,
)
from samovar.models.tasks import TASKS
from samovar.spec import check_name


def tensors(num_bytes: int) -> str:
    """Return a safetensors file of one tensor, as text."""
    head = json.dumps({"w": {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]}})
    return chr(len(head)) + "\0" * 7 + head + "w" * num_bytes


def folder_of(tmp_path: Path, files: dict[str, Any] | None = None, **config: Any) -> Path:
    """Return a folder with a config.json, weights and these files; a value that is no text is written as JSON."""
    folder = tmp_path / "Tiny-Model.v1"
    for name, content in {"config.json": config, "model.safetensors": tensors(100), **(files or {})}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def bert(tmp_path: Path, head: str = "Model", files: dict[str, Any] | None = None) -> Path:
    return folder_of(tmp_path, {"tokenizer.json": {}, **(files or {})}, architectures=[f"Bert{head}"])


SENTENCES = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ],
    "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
}


def test_only_what_the_model_needs_goes_up(tmp_path: Path) -> None:
    files = {
        **SENTENCES,
        "tokenizer_config.json": {},
        "chat_template.jinja": "{{ messages }}",
        "pytorch_model.bin": "p" * 50,
        "onnx/model.onnx": "o" * 30,
        "onnx/config.json": {},
        "openvino/openvino_model.xml": "x",
        "model.gguf": "g",
        "README.md": "read me",
        ".git/config": "no",
        "trainer_state.json": {},
    }
    folder = read_model_folder(str(bert(tmp_path, files=files)))
    assert folder.files == (
        "1_Pooling/config.json",
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "modules.json",
        "tokenizer.json",
        "tokenizer_config.json",
    )
    assert folder.left_out == ("model.gguf", "onnx/model.onnx", "pytorch_model.bin")
    assert folder.size_bytes(folder.left_out) == 81


def test_of_a_sharded_model_all_shards_go_up(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}}
    shards = {"model-1.safetensors": tensors(1), "model-2.safetensors": tensors(2), "other.safetensors": "3"}
    path = bert(tmp_path, files={**shards, "model.safetensors.index.json": index})
    (path / "model.safetensors").unlink()
    folder = read_model_folder(str(path))
    wanted = {"model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"}
    assert wanted < set(folder.files)
    assert folder.left_out == ("other.safetensors",)
    (path / "model-2.safetensors").unlink()
    with pytest.raises(DeployRefused, match=r"lacks model-2\.safetensors"):
        read_model_folder(str(path))


def test_a_model_in_a_module_of_its_own_is_found(tmp_path: Path) -> None:
    path = tmp_path / "old"
    inner = path / "0_Transformer"
    bert(tmp_path).rename(inner.parent.with_name("inner"))
    path.mkdir()
    (tmp_path / "inner").rename(inner)
    modules = [{"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    (path / "modules.json").write_text(json.dumps(modules))
    folder = read_model_folder(str(path))
    assert folder.architecture == "BertModel"
    assert set(folder.files) == {
        "0_Transformer/config.json",
        "0_Transformer/model.safetensors",
        "0_Transformer/tokenizer.json",
        "modules.json",
    }


def broken(tmp_path: Path, what: str) -> str:
    """Return what is given as --model."""
    path = bert(tmp_path)
    match what:
        case "hub name":
            return "sentence-transformers/all-MiniLM-L6-v2"
        case "no folder":
            return str(tmp_path / "nowhere")
        case "file":
            return str(path / "model.safetensors")
        case "one up":
            return str(tmp_path)
        case "no weights":
            (path / "model.safetensors").unlink()
        case "pickled" | "gguf":
            (path / "model.safetensors").rename(path / ("pytorch_model.bin" if what == "pickled" else "model.gguf"))
        case "adapter alone":
            (path / "config.json").unlink()
        case "gguf alone":
            (path / "config.json").rename(path / "model.gguf")
        case "shard in a list":
            (path / "model.safetensors").unlink()
    for name, content in WRITTEN.get(what, {}).items():
        (path / name).write_text(content)
    return str(path)


ADAPTER = {"adapter_config.json": '{"base_model_name_or_path": "org/base"}'}
# what stands in files of a folder that is a model's but for them
WRITTEN = {
    "no json": {"config.json": "{"},
    "a list": {"config.json": "[]"},
    "pointer": {"model.safetensors": "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"},
    "cut off": {"model.safetensors": tensors(100)[:-1]},
    "beginning": {"model.safetensors": tensors(100)[:20]},
    "nothing": {"model.safetensors": ""},
    "longer": {"model.safetensors": tensors(100) + "w"},
    "no head": {"model.safetensors": tensors(100).replace("data_offsets", "offsets")},
    "size that lies": {"model.safetensors": "\x7f" * 8 + "{}"},
    "shard in a list": {"model.safetensors.index.json": '{"weight_map": {"a": ["model.safetensors"]}}'},
    "adapter": ADAPTER,
    "adapter alone": ADAPTER,
    "modules": {"modules.json": '[{"path": 1}]'},
}


REFUSED = [
    ("hub name", "nothing is fetched from there"),
    ("no folder", "there is no folder /"),
    ("file", "takes the folder of a model"),
    ("one up", r"no config.json; did you mean .*/Tiny-Model.v1"),
    ("no weights", "neither model.safetensors nor"),
    ("pickled", "pytorch_model.bin: pickled weights run any code"),
    ("gguf", "a GGUF file, model.gguf"),
    ("gguf alone", "a GGUF file, model.gguf"),
    ("no json", "config.json is not JSON"),
    ("a list", "is not a JSON object"),
    ("pointer", "model.safetensors is only a pointer of git-lfs"),
    ("cut off", "model.safetensors is cut off: it has 171 bytes, its head tells of 172"),
    ("beginning", r"no safetensors file, or only its beginning \(20 bytes\)"),
    ("nothing", r"no safetensors file, or only its beginning \(0 bytes\)"),
    ("longer", "model.safetensors is too long"),
    ("no head", "model.safetensors is no safetensors file: its head cannot be read"),
    ("size that lies", "no safetensors file, or only its beginning"),
    ("shard in a list", "does not say which files hold the weights"),
    ("adapter", r"an adapter \(adapter_config.json\) to org/base: .* merge_and_unload"),
    ("adapter alone", "an adapter"),
    ("modules", "modules of sentence-transformers"),
]


@pytest.mark.parametrize(("what", "detail"), REFUSED)
def test_what_is_not_a_model_is_refused_with_what_to_do(tmp_path: Path, what: str, detail: str) -> None:
    with pytest.raises(DeployRefused, match=detail):
        read_model_folder(broken(tmp_path, what))


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("SmolLM2-135M-Instruct", "smollm2-135m-instruct"),
        ("Qwen2.5 (Ünï)", "qwen2-5-uni"),
        ("模型", "model"),
        ("--" + "a" * 80, "a" * 63),
    ],
)
def test_functions_are_named_like_their_folders(folder: str, name: str) -> None:
    assert default_model_name(ModelFolder(path=Path("/models") / folder, config={}, files=())) == name
    assert check_name(name) == name


def test_pickled_weights_go_up_if_they_are_trusted(tmp_path: Path) -> None:
    folder = read_model_folder(broken(tmp_path, "pickled"), allow_pickle=True)
    assert folder.files == ("config.json", "pytorch_model.bin", "tokenizer.json")


EAR = {"preprocessor_config.json": {"feature_extractor_type": "Wav2Vec2FeatureExtractor"}}
EYE = {"preprocessor_config.json": {"image_processor_type": "ViTImageProcessor"}}
# from when processors of images were feature extractors
OLD_EYE = {"preprocessor_config.json": {"feature_extractor_type": "DetrFeatureExtractor", "image_mean": [0.5] * 3}}
OLD_EAR = {"preprocessor_config.json": {"feature_size": 1, "sampling_rate": 16000}}
NEW_EYE = {"processor_config.json": {"image_processor": {"image_processor_type": "ViTImageProcessor"}}}

CHOSEN: list[tuple[str, dict[str, Any], str]] = [
    ("LlamaForCausalLM", {}, "text-generation"),
    ("GPT2LMHeadModel", {}, "text-generation"),
    ("BertModel", {}, "embeddings"),
    ("BertForMaskedLM", SENTENCES, "embeddings"),
    ("BertForSequenceClassification", {}, "text-classification"),
    ("BertForTokenClassification", {}, "token-classification"),
    ("BertForMaskedLM", {}, "fill-mask"),
    ("ViTForImageClassification", EYE, "image-classification"),
    ("ViTForImageClassification", NEW_EYE, "image-classification"),
    ("ViTModel", EYE, "image-feature-extraction"),
    ("DetrForObjectDetection", EYE, "object-detection"),
    ("SegformerForSemanticSegmentation", EYE, "image-segmentation"),
    ("GLPNForDepthEstimation", EYE, "depth-estimation"),
    ("DetrForObjectDetection", OLD_EYE, "object-detection"),
    ("OwlViTForObjectDetection", OLD_EYE, "zero-shot-object-detection"),
    ("SamModel", EYE, "mask-generation"),
    ("SuperGlueForKeypointMatching", EYE, "keypoint-matching"),
    ("VideoMAEForVideoClassification", OLD_EYE, "video-classification"),
    ("VJEPA2ForVideoClassification", {"video_preprocessor_config.json": {"do_resize": True}}, "video-classification"),
    ("CLIPModel", EYE, "zero-shot-image-classification"),
    ("ClapModel", EAR, "zero-shot-audio-classification"),
    ("Wav2Vec2ForCTC", EAR, "automatic-speech-recognition"),
    ("Wav2Vec2ForCTC", OLD_EAR, "automatic-speech-recognition"),
    ("WhisperForConditionalGeneration", EAR, "automatic-speech-recognition"),
    ("Wav2Vec2ForSequenceClassification", EAR, "audio-classification"),
    ("LlavaForConditionalGeneration", EYE, "image-text-to-text"),
    ("GitForCausalLM", EYE, "image-text-to-text"),
    ("Qwen2AudioForConditionalGeneration", EAR, "any-to-any"),
    ("Gemma3nForConditionalGeneration", NEW_EYE | EAR, "any-to-any"),
    ("MusicgenForConditionalGeneration", EAR, "text-to-audio"),
    ("VitsModel", {}, "text-to-audio"),
    ("LayoutLMForQuestionAnswering", {}, "document-question-answering"),
    ("TapasForQuestionAnswering", {}, "table-question-answering"),
    ("BertForSequenceClassification", {"README.md": "---\npipeline_tag: zero-shot-classification\n---\n"},
     "zero-shot-classification"),
    ("BertModel", {"README.md": "---\ntags: []\npipeline_tag: sentence-similarity\n---\n"}, "embeddings"),
    ("BertModel", {"README.md": "---\npipeline_tag: text-generation\n---\n"}, "embeddings"),  # it cannot do that
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "files", "task"), CHOSEN)
def test_the_folder_says_what_it_is_for(tmp_path: Path, architecture: str, files: dict[str, Any], task: str) -> None:
    choice = choose(read_model_folder(str(folder_of(tmp_path, files, architectures=[architecture]))), None)
    assert choice.task.name == task
    assert choice.why


@pytest.mark.parametrize("config", [{}, {"architectures": ["T5ForConditionalGeneration"]}, {"architectures": "no"}])
def test_a_folder_that_does_not_say_needs_a_task(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(DeployRefused, match=r"give --task, possible are .*embeddings"):
        choose(read_model_folder(str(folder_of(tmp_path, **config))), None)


UNFIT = [
    ("BertModel", "text-classification", "holds a BertModel, which is not made for text-classification"),
    ("BertForMaskedLM", "text-generation", "possible are embeddings, feature-extraction, fill-mask"),
    ("BertModel", "image-classification", "not made for image-classification"),
    ("T5ForConditionalGeneration", "summarization", "a chat model does it"),
    ("LlamaForCausalLM", "text-genration", "no task 'text-genration'; did you mean text-generation"),
    ("BertModel", "telepathy", "there is no task 'telepathy'; there are .*audio-classification"),
    ("BlipForQuestionAnswering", "vqa", "by --task image-text-to-text"),
    ("MarianMTModel", "translation_en_to_fr", "a chat model does it"),
    ("LlamaForCausalLM", "decision", "response_format"),
    ("StableDiffusion", "text-to-image", "write a function"),
    ("OmDetTurboForObjectDetection", "zero-shot-object-detection", "not made for zero-shot-object-detection"),
]


@pytest.mark.parametrize(("architecture", "wanted", "detail"), UNFIT)
def test_a_task_that_the_model_cannot_do_is_refused(
    tmp_path: Path, architecture: str, wanted: str, detail: str
) -> None:
    folder = read_model_folder(str(folder_of(tmp_path, architectures=[architecture])))
    with pytest.raises(DeployRefused, match=detail):
        choose(folder, wanted)


@pytest.mark.parametrize("wanted", ["TEXT-GENERATION", "Text-Generation "])
def test_a_task_is_named_in_any_case(tmp_path: Path, wanted: str) -> None:
    folder = read_model_folder(str(folder_of(tmp_path, architectures=["LlamaForCausalLM"])))
    assert choose(folder, wanted).task.name == "text-generation"


@pytest.mark.parametrize("name", ["tokenizer_config.json", "tokenizer.json", "vocab.txt", "spiece.model"])
def test_a_model_of_texts_without_a_tokenizer_is_refused_and_one_file_is_enough(tmp_path: Path, name: str) -> None:
    bare = read_model_folder(str(folder_of(tmp_path / "bare", {"generation_config.json": {}})))
    with pytest.raises(DeployRefused, match="has no tokenizer, which the task needs"):
        refuse_untokenized(bare)
    refuse_untokenized(read_model_folder(str(folder_of(tmp_path / "read", {name: {}}))))


def test_a_folder_without_an_architecture_is_believed(tmp_path: Path) -> None:
    folder = read_model_folder(str(folder_of(tmp_path)))
    assert choose(folder, "sentence-similarity").task.name == "embeddings"
    assert all(fits(task, folder) for task in TASKS.values())
    assert set(ALIASES.values()) <= set(TASKS)


def test_the_code_is_what_a_person_would_write(tmp_path: Path) -> None:
    folder = read_model_folder(str(bert(tmp_path, "ForSequenceClassification")))
    wishes = Wishes({"batch": {"max_size": 4}, "scaling": {"max_instances": 2}}, {"precision": "bf16"}, {"n": 1})
    assert app_code("mood", TASKS["text-classification"], folder, wishes) == (
        '"""mood: text classification with BertForSequenceClassification. Written by `samovar deploy --model`."""\n'
        "\n"
        "import samovar as sv\n"
        "from samovar_instance.engines.pipelines.texts import TextClassifier\n"
        "\n"
        "\n"
        "@sv.function(\n"
        '    name="mood",\n'
        '    task="text-classification",\n'
        '    weights=sv.Weights("weights"),\n'
        "    batch=sv.Batch(max_size=4),\n"
        "    scaling=sv.Scaling(max_instances=2),\n"
        '    precision=sv.Precision("bf16"),\n'
        '    example={"text": "tea is ready"},\n'
        ")\n"
        "class Model(TextClassifier):\n"
        '    """Clients send {"text": …}; see docs/models.md."""\n'
        "\n"
        "    n = 1\n"
    )


def test_drafts_are_written_as_an_option(tmp_path: Path) -> None:
    folder = read_model_folder(str(folder_of(tmp_path)))
    wishes = Wishes({"speculation": {"method": "draft-model", "folder": "draft"}})
    code = app_code("chat", TASKS["text-generation"], folder, wishes)
    assert '    speculation=sv.Speculation(method="draft-model", folder="draft"),\n' in code


@pytest.mark.parametrize("task", TASKS)
def test_the_code_of_every_task_is_python_with_its_example(tmp_path: Path, task: str) -> None:
    files = {"tokenizer_config.json": {"mask_token": {"content": "<m>"}}}
    folder = read_model_folder(str(folder_of(tmp_path, files)))
    code = app_code("it", TASKS[task], folder)
    compile(code, "app.py", "exec")
    assert max(map(len, code.splitlines())) <= 200
    if task == "fill-mask":
        assert example_of(TASKS[task], folder) == {"text": "tea is <m>"}


def test_without_a_mask_there_is_nothing_to_fill(tmp_path: Path) -> None:
    with pytest.raises(DeployRefused, match="no mask token"):
        app_code("it", TASKS["fill-mask"], read_model_folder(str(folder_of(tmp_path))))


def test_equal_projects_are_equal_bytes_and_weights_are_links(tmp_path: Path) -> None:
    folder = read_model_folder(str(bert(tmp_path, files=SENTENCES)))
    code = app_code(default_model_name(folder), TASKS["embeddings"], folder)
    assert 'name="tiny-model-v1"' in code
    assert str(tmp_path) not in code
    archives = []
    for name in ("one", "two"):
        app = write_project(tmp_path / name, code, folder)
        weights = (app.parent / "weights").resolve()
        archives.append(pack(code_files(app.parent, weights)))
        assert [file.name for file in code_files(app.parent, weights)] == ["app.py"]
        assert tuple(file.name for file in weight_files(weights, app.parent)) == folder.files
        assert (weights / "model.safetensors").resolve() == folder.path / "model.safetensors"
    assert archives[0] == archives[1]


def test_a_model_that_drafts_goes_up_beside_the_other(tmp_path: Path) -> None:
    def speaker(name: str, vocab: dict[str, int]) -> ModelFolder:
        files = {"tokenizer.json": {"model": {"vocab": vocab}}}
        return read_model_folder(str(folder_of(tmp_path / name, files, architectures=["LlamaForCausalLM"])))

    large, small, foreign = speaker("a", {"tea": 0}), speaker("b", {"tea": 0}), speaker("c", {"milk": 0})
    refuse_foreign_draft(large, small)
    with pytest.raises(DeployRefused, match="its tokenizer has other tokens"):
        refuse_foreign_draft(large, foreign)
    app = write_project(tmp_path / "project", "code", large, small)
    names = [file.name for file in weight_files((app.parent / "weights").resolve(), app.parent)]
    assert names == [
        "config.json",
        "draft/config.json",
        "draft/model.safetensors",
        "draft/tokenizer.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_a_folder_in_use_is_not_written_to(tmp_path: Path) -> None:
    folder = read_model_folder(str(bert(tmp_path)))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "app.py").write_text("mine")
    with pytest.raises(DeployRefused, match="is there already"):
        write_project(tmp_path / "mine", "code", folder)
    assert (tmp_path / "mine" / "app.py").read_text() == "mine"
