"""Artifact folders: resumed, refused, locked, verified, finished last."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentir.artifacts import (
    MANIFEST,
    UNFINISHED,
    Artifact,
    FolderLock,
    fingerprint,
    read_manifest,
    sha256_json,
    verify_files,
)
from agentir.config import RUNTIME, Field, ProgramConfig
from agentir.errors import ArtifactError, InputError, LockedError
from agentir.jsonl import Rejects, iter_objects, read_records
from agentir.records import Hit


class Config(ProgramConfig):
    """A program's configuration."""

    source: Path
    """What is read."""
    num_negatives: int = 7
    """A value that decides what is made."""
    num_threads: int = Field(default=1, json_schema_extra=RUNTIME)
    """A value that does not."""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    source = tmp_path / "source.jsonl"
    source.write_text('{"docid": "d", "score": 1.0}\n')
    return Config(out=tmp_path / "out", source=source)


def begin(config: Config, kind: str = "hits") -> Artifact:
    return Artifact(config.out, kind, config, inputs={"source": config.source})


def make(config: Config) -> None:
    with begin(config) as artifact:
        artifact.write("hits.jsonl", read_records(config.source, Hit))
        artifact.write_text("note.txt", "made\n")
        artifact.finish(report={"num_hits": 1})


# Making


def test_a_finished_artifact_says_what_it_is(config: Config) -> None:
    make(config)
    manifest = read_manifest(config.out, "hits")
    assert sorted(path.name for path in config.out.iterdir()) == [".lock", "hits.jsonl", MANIFEST, "note.txt"]
    assert manifest["schema_version"] == 1
    assert manifest["config"] == {"num_negatives": 7, "on_bad_line": "stop"}
    assert manifest["report"] == {"num_hits": 1}
    assert manifest["inputs"] == {"source": {"path": str(config.source), "fingerprint": fingerprint(config.source)}}
    assert {name: entry["size"] for name, entry in manifest["files"].items()} == {"hits.jsonl": 29, "note.txt": 5}
    assert verify_files(config.out) == []


def test_files_in_folders_are_listed_one_by_one(config: Config) -> None:
    with begin(config) as artifact:
        folder = artifact.include("model")
        (folder / "sub").mkdir(parents=True)
        (folder / "a.bin").write_bytes(b"a")
        (folder / "sub" / "b.bin").write_bytes(b"b")
        artifact.include("ids.txt").write_text("1\n")
        artifact.finish(report={})
    assert list(read_manifest(config.out)["files"]) == ["ids.txt", "model/a.bin", "model/sub/b.bin"]


def test_lines_set_aside_are_kept_and_counted(config: Config) -> None:
    config.source.write_text('{"docid": 1}\n{"docid": "d", "score": 1.0}\n')
    rejects = Rejects(set_aside=True)
    with begin(config) as artifact:
        artifact.write("hits.jsonl", read_records(config.source, Hit, rejects))
        artifact.finish(report={}, rejects=rejects)
    assert read_manifest(config.out)["report"] == {"rejected_lines": {str(config.source): 1}}
    assert [row for _, row in iter_objects(config.out / "rejected.jsonl", Rejects())] == [
        {"file": str(config.source), "line": 1, "field": "docid", "expected": "a valid string", "found": "1"},
        {"file": str(config.source), "line": 1, "field": "score", "expected": "a value", "found": "<nothing>"},
    ]
    assert "rejected.jsonl" in read_manifest(config.out)["files"]


def test_spaces_and_unicode_in_the_folder_name(config: Config, tmp_path: Path) -> None:
    config = config.model_copy(update={"out": tmp_path / "Ordner für Ümläute" / "日本 1"})
    make(config)
    assert verify_files(config.out) == []


# Continuing


def test_an_interrupted_program_continues(config: Config) -> None:
    with begin(config) as artifact, artifact.append_to("hits.jsonl") as hits:
        assert not artifact.complete
        hits.append(Hit(docid="d0", score=1.0))
    with open(config.out / "hits.jsonl", "ab") as torn:
        torn.write(b'{"docid": "d1", "sc')
    with pytest.raises(ArtifactError, match="this hits artifact is unfinished; run the program that makes it again"):
        read_manifest(config.out, "hits")

    with begin(config) as artifact:
        assert not artifact.complete
        with artifact.append_to("hits.jsonl") as hits:
            assert hits.num_cut == 19
            hits.append(Hit(docid="d1", score=2.0))
        artifact.finish(report={})
    assert [hit.docid for hit in read_records(config.out / "hits.jsonl", Hit)] == ["d0", "d1"]


def test_a_finished_artifact_is_not_made_again(config: Config) -> None:
    make(config)
    before = (config.out / MANIFEST).read_bytes()
    with begin(config) as artifact:
        assert artifact.complete
    assert (config.out / MANIFEST).read_bytes() == before


@pytest.mark.parametrize("finished", [False, True], ids=["unfinished", "finished"])
def test_runtime_values_and_moved_inputs_may_change(config: Config, tmp_path: Path, finished: bool) -> None:
    if finished:
        make(config)
    else:
        with begin(config):
            pass
    moved = config.source.rename(tmp_path / "moved.jsonl")
    with begin(config.model_copy(update={"num_threads": 8, "source": moved})) as artifact:
        assert artifact.complete == finished


@pytest.mark.parametrize(
    ("finished", "state"), [(False, "was begun"), (True, "was made")], ids=["unfinished", "finished"]
)
def test_another_configuration_is_refused_by_name(config: Config, finished: bool, state: str) -> None:
    if finished:
        make(config)
    else:
        with begin(config):
            pass
    config.source.write_text("{}\n")
    changed = config.model_copy(update={"num_negatives": 5})
    with pytest.raises(ArtifactError) as caught:
        begin(changed)
    assert str(caught.value).splitlines() == [
        f"{config.out}: {state} differently:",
        "  num_negatives: before 7, now 5",
        "  input source: its content changed",
        "name another out folder, or delete this one to make it anew",
    ]
    with pytest.raises(ArtifactError, match="kind: before 'hits', now 'rankings'"):
        begin(config, kind="rankings")


def test_a_refusal_holds_no_lock(config: Config) -> None:
    make(config)
    with pytest.raises(ArtifactError):
        begin(config, kind="rankings")
    with begin(config) as artifact:
        assert artifact.complete


def test_a_failure_before_anything_was_made_does_not_bind_the_next_try(config: Config) -> None:
    with pytest.raises(RuntimeError), begin(config):
        raise RuntimeError
    with begin(config.model_copy(update={"num_negatives": 5})) as artifact:
        artifact.write("hits.jsonl", [])
    with pytest.raises(ArtifactError, match="num_negatives: before 5, now 7"):
        begin(config)


def test_a_maker_may_remove_what_it_began(config: Config) -> None:
    with pytest.raises(RuntimeError, match="its own"), begin(config):
        shutil.rmtree(config.out)
        raise RuntimeError("its own")
    make(config)


def test_a_folder_of_another_origin_is_refused(config: Config) -> None:
    config.out.mkdir()
    (config.out / "thesis.tex").write_text("years of work")
    with pytest.raises(ArtifactError, match=r"holds files of another origin \(thesis\.tex\); name a new folder"):
        begin(config)


def test_a_file_in_the_place_of_the_folder_is_refused(config: Config) -> None:
    config.out.write_text("")
    with pytest.raises(ArtifactError, match="expected a folder to write to, found: File exists"):
        begin(config)


def test_a_missing_input_is_refused_before_anything_is_made(config: Config) -> None:
    config.source.unlink()
    with pytest.raises(InputError, match=r"source\.jsonl: no such file or folder"):
        begin(config)
    assert not config.out.exists()


# Inputs


def test_an_artifact_as_input_is_known_by_its_files(config: Config, tmp_path: Path) -> None:
    make(config)
    before = fingerprint(config.out)
    config.out.rename(tmp_path / "elsewhere")
    assert fingerprint(tmp_path / "elsewhere") == before
    make(config.model_copy(update={"num_threads": 4}))
    assert fingerprint(config.out) == before


def test_an_unfinished_artifact_is_no_input(config: Config, tmp_path: Path) -> None:
    with begin(config):
        pass
    following = Config(out=tmp_path / "next", source=config.out)
    with pytest.raises(ArtifactError, match="is unfinished; run the program that makes it again"):
        begin(following)
    assert not following.out.exists()


def test_any_folder_is_known_by_its_files_and_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    (folder / "qrels" / "test.tsv").write_text("1\n")
    prints = [fingerprint(folder)]
    (folder / "qrels" / "test.tsv").write_text("2\n")
    prints.append(fingerprint(folder))
    (folder / "qrels" / "test.tsv").rename(folder / "test.tsv")
    prints.append(fingerprint(folder))
    assert len(set(prints)) == 3


def test_json_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert (
        sha256_json({"a": 1, "b": [1, 2]}) == sha256_json({"b": [1, 2], "a": 1}) != sha256_json({"a": 1, "b": [2, 1]})
    )


# Damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda out: (out / "hits.jsonl").unlink(), "hits.jsonl: expected 29 bytes, found no file"),
        (lambda out: os.truncate(out / "hits.jsonl", 12), "hits.jsonl: expected 29 bytes, found 12"),
        (lambda out: (out / MANIFEST).write_text("{"), "manifest.json: not a manifest: "),
        (lambda out: (out / MANIFEST).write_text("[]"), "manifest.json: not a manifest: "),
        (lambda out: (out / MANIFEST).write_text("{}"), "manifest.json: not a manifest: KeyError('schema_version')"),
        (
            lambda out: (out / MANIFEST).write_text('{"schema_version": 1, "kind": "hits", "files": {"a": 5}}'),
            "manifest.json: not a manifest: ",
        ),
        (lambda out: (out / MANIFEST).write_bytes(b"\xff"), "manifest.json: not a manifest: "),
        (
            lambda out: (out / MANIFEST).write_text('{"schema_version": 99, "kind": "hits", "files": {}}'),
            "manifest.json: expected schema version 1, found 99",
        ),
        (lambda out: (out / MANIFEST).unlink(), ": expected a finished hits artifact with manifest.json, found none"),
    ],
)
def test_damage_that_opening_finds(config: Config, damage: Callable[[Path], object], message: str) -> None:
    make(config)
    damage(config.out)
    with pytest.raises(ArtifactError) as caught:
        read_manifest(config.out, "hits")
    assert str(caught.value).removeprefix(str(config.out)).removeprefix("/").startswith(message)


def test_an_altered_byte_is_found_by_verification(config: Config) -> None:
    make(config)
    with open(config.out / "hits.jsonl", "r+b") as file:
        file.seek(12)
        file.write(b"X")
    read_manifest(config.out)
    (fault,) = verify_files(config.out)
    assert fault.startswith(f"{config.out / 'hits.jsonl'}: expected sha256 ")


def test_another_kind_is_refused(config: Config) -> None:
    make(config)
    with pytest.raises(ArtifactError, match="expected a rankings artifact, found hits"):
        read_manifest(config.out, "rankings")


# Two writers, and a killed one

HOLD = """
import sys, time
from agentir.artifacts import FolderLock
lock = FolderLock(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of `out`."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_writer_is_refused_until_the_first_is_gone(config: Config, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(LockedError) as caught:
        begin(config)
    assert str(caught.value) == f"{config.out}: another process (pid {holder.pid}) is writing here; wait for it"
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    make(config)


def test_a_second_writer_of_the_same_process_is_refused(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    with pytest.raises(LockedError):
        FolderLock(tmp_path)
    lock.release()
    FolderLock(tmp_path).release()


WRITE_MANY = """
import sys, time
from pathlib import Path
from agentir.artifacts import Artifact
from agentir.config import ProgramConfig

config = ProgramConfig(out=Path(sys.argv[1]))
with Artifact(config.out, "numbers", config, inputs={}) as artifact:
    if not artifact.complete:
        for part in range(40):
            artifact.write(f"part-{part}.jsonl", ({"n": n} for n in range(200)))
            time.sleep(0.005)
        artifact.finish(report={"num_parts": 40})
"""


def test_kill_9_at_any_moment_never_leaves_a_false_manifest(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", WRITE_MANY, str(out)]
    num_unfinished = 0
    for num_parts in (0, 1, 5, 15, 25, 39):
        process = subprocess.Popen(command)
        wanted = out / (f"part-{num_parts}.jsonl" if num_parts else UNFINISHED)
        deadline = time.monotonic() + 30
        while not wanted.exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.0005)
        process.kill()
        process.wait()
        if not (out / MANIFEST).exists():
            num_unfinished += 1
            assert json.loads((out / UNFINISHED).read_text())["kind"] == "numbers"
            with pytest.raises(ArtifactError, match="unfinished"):
                read_manifest(out)
            for path in out.glob("part-*.jsonl"):
                assert sum(1 for _ in iter_objects(path, Rejects())) == 200, "a file in place is whole"
                path.unlink()
    assert num_unfinished >= 3
    subprocess.run(command, check=True)
    assert len(read_manifest(out, "numbers")["files"]) == 40
    assert verify_files(out) == []
    assert not (out / UNFINISHED).exists()


@pytest.mark.parametrize("left", [[], [".lock"], [".lock", f"{UNFINISHED}.part"]])
def test_a_kill_in_the_first_moments_blocks_nothing(config: Config, left: list[str]) -> None:
    config.out.mkdir()
    for name in left:
        (config.out / name).write_text("{")
    make(config)
    assert verify_files(config.out) == []


def test_a_kill_between_manifest_and_tidying_leaves_a_finished_artifact(config: Config) -> None:
    with begin(config):
        unfinished = (config.out / UNFINISHED).read_bytes()
    make(config)
    (config.out / UNFINISHED).write_bytes(unfinished)
    read_manifest(config.out, "hits")
    with begin(config) as artifact:
        assert artifact.complete


# Where it comes from


def test_a_manifest_tells_how_its_inputs_and_theirs_were_made(config: Config, tmp_path: Path) -> None:
    make(config)
    for number, source in enumerate((config.out, tmp_path / "out0", tmp_path / "out1")):
        later = Config(out=tmp_path / f"out{number}", source=source, num_negatives=number)
        with Artifact(later.out, f"kind{number}", later, {"source": source}, {"prompt_sha256": "p"}) as artifact:
            artifact.finish({})
    manifest = read_manifest(tmp_path / "out2")
    assert manifest["config"]["prompt_sha256"] == "p"
    found = []
    while manifest := manifest["upstream"].get("source"):
        found.append((manifest["kind"], manifest["config"]["num_negatives"]))
        assert manifest["inputs"]["source"]["fingerprint"]
    assert found == [("kind1", 1), ("kind0", 0), ("hits", 7)]


def test_other_facts_do_not_continue_a_folder(config: Config) -> None:
    inputs = {"source": config.source}
    with Artifact(config.out, "hits", config, inputs, {"prompt_sha256": "p"}) as artifact:
        artifact.write_text("note.txt", "begun\n")
    with pytest.raises(ArtifactError, match="prompt_sha256: before 'p', now 'r'"):
        Artifact(config.out, "hits", config, inputs, {"prompt_sha256": "r"})
