"""Inputs of the wrong kind end in one error text and exit status 2, never in a traceback or an empty result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentir.artifacts import fingerprint
from agentir.cli import run
from agentir.errors import AgentirError, ArtifactError, ConfigError, InputError
from agentir.jsonl import Rejects, iter_objects
from agentir.rerank import parse_listwise


def agentir(*arguments: str, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "agentir", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"docid": "a", "text": "cats and dogs"}\n{"docid": "b", "text": "birds"}\n')
    return path


def test_pipes_and_devices_are_no_inputs(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(InputError, match="expected a file, found a pipe or device"):
            list(iter_objects(path, Rejects()))
        with pytest.raises(InputError, match="found a pipe or device"):
            fingerprint(path)
    with pytest.raises(InputError, match="found a pipe or device"):
        run(["index", "build", "--corpus", str(pipe), "--out", str(tmp_path / "index")])


@pytest.mark.parametrize("content", ["{", "[]", '{"kind": "index"}', '{"kind": 1, "config": 2, "inputs": 3}'])
def test_damaged_unfinished_artifact_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "t.jsonl").write_text('{"qid": "1", "messages": []}\n')
    (tmp_path / "q.jsonl").write_text('{"qid": "1", "question": "?", "answer": "a"}\n')
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "unfinished.json").write_text(content)
    given = ["--trajectories", str(tmp_path / "t.jsonl"), "--questions", str(tmp_path / "q.jsonl")]
    with pytest.raises(ArtifactError, match=r"unfinished\.json: damaged .*; delete the folder"):
        run(["synth", "extract", *given, "--out", str(tmp_path / "out")])


def test_manifest_without_its_parts_is_none(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"schema_version": 1, "kind": "subqueries", "files": {}}))
    with pytest.raises(ArtifactError, match="not a manifest"):
        run(["synth", "label", "--subqueries", str(tmp_path), "--out", str(tmp_path / "out")])


@pytest.mark.parametrize(
    "option",
    [("--learning-rate", "inf"), ("--epochs", "inf"), ("--temperature", "nan"), ("--weight-decay", "nan"), ("--seeds", "-1"),
     ("--search.learning-rates", "inf"), ("--search.temperatures", "0"), ("--search.epochs", "-1")],
)  # fmt: skip
def test_numbers_that_cannot_be_trained_with_are_refused(option: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        run(["train", "--examples", "x", "--model", "m", "--out", "o", *option])


def test_texts_that_no_file_name_can_hold_are_refused(tmp_path: Path) -> None:
    for text, config in (
        ('out = "o\\u0000"', "nul.toml"),
        ("x = " + "[" * 5000, "deep.toml"),
        ("\ufeffout = 'x'\nno = 1", "bom.toml"),
    ):
        (tmp_path / config).write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=config):
            run(["index", "build", "--corpus", "c", "--config", str(tmp_path / config)])
    with pytest.raises(ConfigError, match="UTF-8 without NUL"):
        run(["index", "build", "--corpus", "c\udcff", "--out", "o"])


def test_damaged_texts_of_an_index_are_named(corpus: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    run(["index", "build", "--corpus", str(corpus), "--out", str(index)])
    texts = index / (index / "CURRENT").read_text().strip() / "pack" / "texts.bin"
    texts.write_bytes(b"\xff" * texts.stat().st_size)
    with pytest.raises(AgentirError, match="damaged"):
        run(["index", "search", "--index", str(index), "--query", "cats"])
    (index / "CURRENT").write_bytes(b"\xff\xfe")
    with pytest.raises(AgentirError):
        run(["index", "search", "--index", str(index), "--query", "cats"])


def test_what_the_system_refuses_is_one_error_text(corpus: Path, tmp_path: Path) -> None:
    for arguments in (
        ("index", "verify", "--index", "x" * 300),
        ("demo", "--small", "true", "--out", str(corpus)),
        ("index", "build", "--corpus", str(corpus), "--out", str(corpus / "below a file")),
    ):
        done = agentir(*arguments, cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.startswith("error: ") and "Traceback" not in done.stderr


def test_long_answers_are_parsed_in_little_time() -> None:
    answer = " > ".join(f"[{number}]" for number in range(1, 20_001))
    assert parse_listwise(answer, 20_000).vote.ranked_count == 20_000
