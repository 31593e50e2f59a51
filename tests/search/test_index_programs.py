import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentir.cli import run
from agentir.errors import ArtifactError, ConfigError
from agentir.search.index import Index

CASES = Path(__file__).parents[1] / "data" / "cases"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rows = [
        {"docid": "a b", "title": "Foxes \u001b[31m", "text": "The fox\nlives in a den.\u0007"},
        {"docid": "007", "text": "A hill."},
        {"docid": "e", "text": " "},
        {"docid": "a b", "text": "again"},
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.filterwarnings("ignore:BM25 will find nothing")
def test_build_reports_what_went_in_and_what_was_left_out(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "index"
    argv = [
        "index",
        "build",
        "--corpus",
        str(corpus),
        "--out",
        str(out),
        "--on-bad-line",
        "set_aside",
        "--chunk-words",
        "3",
    ]
    run(argv)
    lines = capsys.readouterr().out.splitlines()
    with Index.open(out) as index:
        version = index.version
    assert lines[:5] == [
        "3 documents",
        "1 of them have no text: 'e'",
        f"1 lines set aside: {out / version / 'rejected.jsonl'}",
        "5 chunks",
        "5 terms in BM25",
    ]
    assert lines[5].startswith("seconds: pack 0.")
    assert lines[6:] == [f"{out}: version {version} is current"]
    run(argv)
    assert capsys.readouterr().out.startswith("nothing to do: this corpus was indexed with these settings before\n")
    run([*argv, "--chunk-words", "0"])
    assert (
        f"older versions are kept for their readers, delete what nobody has open: {version}" in capsys.readouterr().out
    )


def test_build_without_an_encoder_loads_neither_torch_nor_faiss(tmp_path: Path, corpus: Path) -> None:
    code = (
        "import sys; from agentir.cli import run; run(sys.argv[1:]); "
        "assert not {'torch', 'faiss', 'transformers'} & sys.modules.keys()"
    )
    argv = ["index", "build", "--corpus", str(corpus), "--out", str(tmp_path / "index"), "--on-bad-line", "set_aside"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, *argv], env=environment, check=True, capture_output=True)


@pytest.mark.parametrize("option", ["--max-tokens", "--chunk-words"])
def test_build_refuses_negative_limits(tmp_path: Path, corpus: Path, option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}: expected greater than or equal to"):
        run(["index", "build", "--corpus", str(corpus), "--out", str(tmp_path / "index"), option, "-1"])


def test_verify_says_ok_or_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "index"
    run(["index", "build", "--corpus", str(CASES / "I07" / "corpus.jsonl"), "--out", str(out)])
    capsys.readouterr()
    run(["index", "verify", "--index", str(out)])
    assert capsys.readouterr().out.startswith("OK: 14 files, 7 documents, version ")
    with Index.open(out) as index:
        texts = index.folder / "pack" / "texts.bin"
    texts.write_bytes(b"X" + texts.read_bytes()[1:])
    with pytest.raises(ArtifactError, match=r"texts.bin: expected sha256"):
        run(["index", "verify", "--index", str(out)])


def test_search_prints_hits_without_control_characters(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "index"
    run(["index", "build", "--corpus", str(corpus), "--out", str(out), "--on-bad-line", "set_aside"])
    capsys.readouterr()
    run(["index", "search", "--index", str(out), "--query", "fox dens", "--reasoning", "It lives."])
    printed = capsys.readouterr()
    first, second, last = printed.out.splitlines()
    assert first.split() == ["1", first.split()[1], "a", "b", "Foxes", "[31m"]
    assert second.strip() == "The fox lives in a den."
    assert last.startswith("1 documents, index version ")
    assert "reasoning is ignored" in printed.err
