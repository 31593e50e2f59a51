"""A late-interaction model from data to measured: trained, saved, opened, and used over a first stage."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import MultiVectorEncoder

from agentir.cli import run
from agentir.embed.load import load_encoder
from agentir.embed.multi_vector import load_token_encoder
from agentir.errors import ConfigError, EncoderError
from agentir.jsonl import write_jsonl
from agentir.records import QAItem, SearchQuery, SubQuery, TrainingExample

CITIES = ["Lima", "Oslo", "Rome", "Kyiv", "Bern", "Doha", "Baku", "Riga"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("multi")
    write_jsonl(folder / "corpus.jsonl", [{"docid": city, "text": f"{city} is a capital city."} for city in CITIES])
    rows = [
        TrainingExample(
            subquery=SubQuery(
                qid=f"q{number}",
                turn=0,
                call=0,
                question=f"Which country has the capital {city}?",
                reasoning=f"I must find out about {city}.",
                query="which capital city",
            ),
            positive_docids=(city,),
            negative_docids=(CITIES[number - 1],),
            oracle_order=(city, CITIES[number - 1]),
        )
        for number, city in enumerate(CITIES)
    ]
    write_jsonl(folder / "train.jsonl", rows)
    write_jsonl(
        folder / "questions.jsonl",
        [
            QAItem(
                qid=row.subquery.qid, question=row.subquery.question, answers=("x",), gold_docids=row.positive_docids
            )
            for row in rows
        ],
    )
    return folder


def arguments(data: Path, model: Path, out: Path, *more: str) -> list[str]:
    return [
        "train", "--examples", str(data / "train.jsonl"), "--corpus", str(data / "corpus.jsonl"), "--model", str(model),
        "--kind", "multi-vector", "--dim", "8", "--device", "cpu", "--batch-size", "4", "--num-negatives", "1",
        "--max-query-tokens", "64", "--max-document-tokens", "32", "--temperature", "0.05", "--learning-rate", "1e-3",
        "--out", str(out), *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def trained(data: Path, tiny_qwen3: Path) -> Path:
    run(arguments(data, tiny_qwen3, data / "model", "--dev-fraction", "0.4", "--epochs", "2", "--eval-steps", "1"))
    return data / "model" / "seed-1"


def test_trained_model_is_measured_and_opens_everywhere(trained: Path) -> None:
    figures = json.loads((trained.parent / "seed-1.json").read_text())
    assert {"dev_nDCG@10", "dev_nDCG@10 without reasoning", "dev_nDCG@10 wrong reasoning"} <= figures.keys()
    ours = load_token_encoder(str(trained))
    query = SearchQuery(query="which capital city", reasoning="I must find out about Lima.")
    vectors = ours.encode_queries([query]).texts[0]
    assert vectors.shape[1] == 8
    template = ours.tokenization.template
    plain = MultiVectorEncoder(str(trained), device="cpu")
    expected = plain.encode_query([template.render(query).removeprefix(template.instruction)])[0]
    np.testing.assert_allclose(vectors, np.asarray(expected), atol=1e-5)
    with pytest.raises(EncoderError, match="a multi-vector model, which has no single vector"):
        load_encoder(str(trained))


def test_it_orders_what_a_first_stage_found(data: Path, trained: Path) -> None:
    run(["index", "build", "--corpus", str(data / "corpus.jsonl"), "--out", str(data / "words")])
    given = [
        "eval", "retrieval", "--examples", str(data / "train.jsonl"), "--questions", str(data / "questions.jsonl"),
        "--index", str(data / "words"), "--searcher", "bm25", "--k", "8",
    ]  # fmt: skip
    run([*given, "--system", "words", "--out", str(data / "by-words")])
    run([*given, "--system", "reranked", "--reranker", str(trained), "--out", str(data / "reranked")])
    first, reranked = (
        [line.split() for line in (data / name / "run.txt").read_text().splitlines()]
        for name in ("by-words", "reranked")
    )
    assert {(line[0], line[2]) for line in first} == {(line[0], line[2]) for line in reranked}
    assert [line[4] for line in first] != [line[4] for line in reranked]
    assert json.loads((data / "reranked" / "manifest.json").read_text())["inputs"].keys() >= {"reranker", "index"}


def test_frozen_passages_have_no_token_vectors(data: Path, tiny_qwen3: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a multi-vector model encodes its passages"):
        run(arguments(data, tiny_qwen3, tmp_path / "m", "--passages", "frozen"))
