"""Builds that are killed: whatever the moment, the next start finishes with the same bytes as a build left alone."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hashed_encoder import HashedEncoder

from agentir.errors import ArtifactError
from agentir.search.builder import SHARD_DOCUMENTS, build_index
from agentir.search.index import Index

NUM_DOCUMENTS = SHARD_DOCUMENTS + 10
WRITING = os.O_WRONLY | os.O_RDWR


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    rows = ({"docid": f"d{row}", "text": f"fox {row % 7}. den {row % 11}.", "row": row} for row in range(NUM_DOCUMENTS))
    path.write_text("broken\n" + "".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return build(tmp_path_factory.mktemp("whole") / "index", corpus)


def build(out: Path, corpus: Path, encoder: HashedEncoder | None = None) -> dict[str, str]:
    """Builds, and gives the sum of each file."""
    encoder = encoder or HashedEncoder(dim=4)
    built = build_index(out, corpus, encoder=encoder, chunk_words=3, on_bad_line="set_aside")
    assert built.report.num_set_aside == 1
    manifest = json.loads((built.folder / "manifest.json").read_text())
    return {name: entry["sha256"] for name, entry in manifest["files"].items()}


def killed_build(out: Path, corpus: Path, step: int) -> bool:
    """Builds in a child process that kills itself before it makes its `step`-th change to files; whether it came so far."""
    if (child := os.fork()) == 0:
        steps = iter(range(step))

        def count(event: str, arguments: tuple[object, ...]) -> None:
            changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir") or (
                event == "open"
                and isinstance(arguments[2], int)
                and arguments[2] & WRITING
                and str(out) in str(arguments[0])
            )
            if changes and next(steps, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        status = 1
        try:
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            sys.addaudithook(count)
            build(out, corpus)
            status = 0
        finally:
            os._exit(status)
    _, result = os.waitpid(child, 0)
    assert os.WIFSIGNALED(result) or os.WEXITSTATUS(result) == 0
    return os.WIFSIGNALED(result)


def moments(out: Path, corpus: Path) -> Iterator[Path]:
    """Folders of builds that were killed before their 1st, 4th, 7th, ... change."""
    for step in range(0, 1000, 3):
        folder = out / str(step)
        if not killed_build(folder, corpus, step):
            return
        yield folder


def test_a_build_killed_at_any_moment_is_finished_with_the_same_bytes(
    tmp_path: Path, corpus: Path, undisturbed: dict[str, str]
) -> None:
    num_moments = 0
    for folder in moments(tmp_path, corpus):
        num_moments += 1
        if (folder / "CURRENT").exists():
            Index.open(folder).close()
        else:
            with pytest.raises(ArtifactError, match=r"unfinished|found none"):
                Index.open(folder)
        assert build(folder, corpus) == undisturbed
        assert Index.verify(folder) == []
        assert not (folder / "building").exists()
    assert num_moments >= 10


SCRIPT = """
import sys, time
from hashed_encoder import HashedEncoder
from agentir.search.builder import build_index

class Slow(HashedEncoder):
    def encode_documents(self, documents):
        vectors = super().encode_documents(documents)
        if self.num_encoded > len(documents):
            time.sleep(60)
        return vectors

build_index(sys.argv[1], sys.argv[2], encoder=Slow(dim=4), chunk_words=3, on_bad_line="set_aside")
"""


def test_another_process_goes_on_with_the_shards_that_are_done(
    tmp_path: Path, corpus: Path, undisturbed: dict[str, str]
) -> None:
    out = tmp_path / "index"
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "1"}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(out), str(corpus)], env=environment)
    try:
        for _ in range(600):
            if (out / "building" / "vectors-00000.npy").exists():
                break
            time.sleep(0.05)
            assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    encoder = HashedEncoder(dim=4)
    assert build(out, corpus, encoder) == undisturbed
    assert encoder.num_encoded == 10
    with Index.open(out) as index:
        assert index.report.kept == ("pack", "bm25", "1 of 2 shards of vectors")


def test_a_build_begun_differently_is_refused_and_names_the_key(tmp_path: Path, corpus: Path) -> None:
    out = tmp_path / "index"
    killed_build(out, corpus, 20)
    with pytest.raises(ArtifactError, match="building: was begun differently:\n  chunk_words: before 3, now 0"):
        build_index(out, corpus, encoder=HashedEncoder(dim=4), on_bad_line="set_aside")
    with pytest.raises(ArtifactError, match=r"encoder: before .*'dim': 4.* now .*'dim': 5"):
        build_index(out, corpus, encoder=HashedEncoder(dim=5), chunk_words=3, on_bad_line="set_aside")
