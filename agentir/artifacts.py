"""Artifact folders: what one program writes and the next one reads.

An artifact is a folder with data files and `manifest.json`, which is written last: a folder without it is unfinished.
While it is being made it holds `unfinished.json` (the configuration it was begun under) and is locked against a second
writer. A program that is started again on an unfinished folder continues; under another configuration or over changed
inputs it is refused, and the error names the differing key.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentir import __version__
from agentir.appender import JsonlAppender
from agentir.config import Section, identity
from agentir.errors import ArtifactError, InputError, LockedError
from agentir.jsonl import Rejects, check_regular, write_jsonl, write_lines

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
UNFINISHED = "unfinished.json"
LOCK = ".lock"
CURRENT = "CURRENT"
"""In a folder of versions (an index): the file that names the one to read."""


def sha256_file(path: str | Path) -> str:
    """Hex digest of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """Hex digest of a JSON value in its canonical form (sorted keys, no spaces)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def fingerprint(path: str | Path) -> str:
    """What identifies an input: a file's bytes, an artifact's files, or all files below any other folder.

    A folder of versions is identified by the current one.

    Raises:
        InputError: nothing is there.
        ArtifactError: an artifact is unfinished or damaged.
    """
    path = _current(Path(path))
    if (path / MANIFEST).is_file() or (path / UNFINISHED).is_file():
        return sha256_json(read_manifest(path)["files"])
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return sha256_json({str(file.relative_to(path)): sha256_file(file) for file in files})
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    check_regular(path)
    return sha256_file(path)


def _current(path: Path) -> Path:
    """The current version of a folder of versions, any other path as it is."""
    if (path / CURRENT).is_file():
        return path / (path / CURRENT).read_text(encoding="utf-8", errors="replace").strip()
    return path


def write_text_atomically(path: str | Path, text: str) -> None:
    """Writes a file aside, syncs it, moves it into place and syncs the folder."""
    path = Path(path)
    part = path.with_name(path.name + ".part")
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_folder(path.parent)


def sync_folder(path: str | Path) -> None:
    """Makes renames and new files of a folder survive a crash of the machine."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_manifest(folder: str | Path, kind: str | None = None) -> dict[str, Any]:
    """The manifest of a finished artifact, after checking its kind and the sizes of its files.

    Raises:
        ArtifactError: no manifest, another kind or schema, or a file is missing or of another size.
    """
    folder = Path(folder)
    what = f"{kind} artifact" if kind else "artifact"
    if not (folder / MANIFEST).is_file():
        if (folder / UNFINISHED).is_file():
            raise ArtifactError(
                f"{folder}: this {what} is unfinished; run the program that makes it again to finish it"
            )
        raise ArtifactError(f"{folder}: expected a finished {what} with {MANIFEST}, found none")
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        schema, found = manifest["schema_version"], manifest["kind"]
        sizes = {name: entry["size"] for name, entry in manifest["files"].items()}
        if schema == SCHEMA_VERSION:
            _begun_of(manifest)
            manifest["report"].keys()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{folder / MANIFEST}: not a manifest: {error!r}") from None
    if schema != SCHEMA_VERSION:
        raise ArtifactError(f"{folder / MANIFEST}: expected schema version {SCHEMA_VERSION}, found {schema}")
    if kind is not None and found != kind:
        raise ArtifactError(f"{folder}: expected a {kind} artifact, found {found}")
    for name, expected in sizes.items():
        size = (folder / name).stat().st_size if (folder / name).is_file() else None
        if size != expected:
            raise ArtifactError(
                f"{folder / name}: expected {expected} bytes, found {'no file' if size is None else size}"
            )
    return manifest


def verify_files(folder: str | Path) -> list[str]:
    """Compares every file of an artifact with the sum in its manifest; returns one text a difference."""
    folder = Path(folder)
    faults = []
    for name, entry in read_manifest(folder)["files"].items():
        if (found := sha256_file(folder / name)) != entry["sha256"]:
            faults.append(f"{folder / name}: expected sha256 {entry['sha256']}, found {found}")
    return faults


def describe_files(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The manifest entries (sha256 and size) of the named files."""
    return {
        name: {"sha256": sha256_file(folder / name), "size": (folder / name).stat().st_size} for name in sorted(names)
    }


class FolderLock:
    """Lets one process at a time write to a folder; released when the process ends, however it ends.

    Raises:
        LockedError: another process holds the lock.
        ArtifactError: the folder cannot be made or written to.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ArtifactError(f"{self.folder}: expected a folder to write to, found: {error.strerror}") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._fd, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise LockedError(f"{self.folder}: another process (pid {holder}) is writing here; wait for it") from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Lets others write; the lock file stays, so that no two processes can hold locks on different files."""
        os.close(self._fd)


class Artifact:
    """An artifact folder that is being made; use as a context manager.

        with Artifact(config.out, "rankings", config, inputs={"subqueries": config.subqueries}) as artifact:
            if artifact.complete:
                return
            artifact.write("rankings.jsonl", rankings)
            artifact.finish(report={"num_rankings": len(rankings)})

    Args:
        folder: where to write.
        kind: what it holds, such as "subqueries".
        config: the program's configuration; every value that is not runtime, and not an input, must stay the same.
        inputs: name -> path of what is read; fingerprinted, and checked again on continuation.
        facts: what else decides what is made, such as the hash of a prompt; kept and checked like the configuration.

    Attributes:
        complete: whether it was finished before.
        upstream: of each input that is an artifact: kind, agentir_version, config, inputs, and its own upstream.

    Raises:
        LockedError: another process writes to the folder.
        ArtifactError: the folder was begun under another configuration, over other inputs, or holds something else.
    """

    def __init__(
        self,
        folder: str | Path,
        kind: str,
        config: Section,
        inputs: Mapping[str, str | Path],
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.kind = kind
        paths = {name: Path(path) for name, path in inputs.items()}
        prints = {name: fingerprint(path) for name, path in paths.items()}
        decided = identity(config, ignore=("out", *inputs)) | dict(facts or {})
        self._begun: dict[str, Any] = {"kind": kind, "config": decided, "inputs": prints}
        self.upstream = {name: made for name, path in paths.items() if (made := _made(_current(path)))}
        self._paths = {name: str(path) for name, path in paths.items()}
        self._files: set[str] = set()
        self._lock = FolderLock(self.folder)
        try:
            self.complete = self._resume()
        except BaseException:
            self._lock.release()
            raise

    def _resume(self) -> bool:
        finished = (self.folder / MANIFEST).exists()
        before: dict[str, Any] | None = None
        if finished:
            before = _begun_of(read_manifest(self.folder))
        elif (self.folder / UNFINISHED).exists():
            before = _read_unfinished(self.folder / UNFINISHED)
        elif others := sorted({path.name for path in self.folder.iterdir()} - {LOCK, f"{UNFINISHED}.part"}):
            raise ArtifactError(
                f"{self.folder}: holds files of another origin ({', '.join(others[:5])}); name a new folder"
            )
        if before is not None and (differences := _differences(before, self._begun)):
            state = "was made" if finished else "was begun"
            advice = "name another out folder, or delete this one to make it anew"
            raise ArtifactError(f"{self.folder}: {state} differently:\n  " + "\n  ".join(differences) + f"\n{advice}")
        if before is None:
            write_text_atomically(self.folder / UNFINISHED, json.dumps(self._begun, indent=2) + "\n")
        return finished

    @property
    def config(self) -> dict[str, Any]:
        """All that decides what is made, besides the inputs, as the manifest holds it."""
        return dict(self._begun["config"])

    @property
    def inputs(self) -> dict[str, dict[str, str]]:
        """Path and fingerprint of each input, as the manifest holds them."""
        prints = self._begun["inputs"].items()
        return {name: {"path": self._paths[name], "fingerprint": print_} for name, print_ in prints}

    def write(self, name: str, records: Iterable[Any]) -> int:
        """Writes a whole JSON lines file; returns the number of lines."""
        self._files.add(name)
        return write_jsonl(self.folder / name, records)

    def write_lines(self, name: str, lines: Iterable[bytes]) -> int:
        """Writes a whole JSON lines file of lines that are written already; returns their number."""
        self._files.add(name)
        return write_lines(self.folder / name, lines)

    def write_text(self, name: str, text: str) -> None:
        """Writes a whole text file."""
        self._files.add(name)
        write_text_atomically(self.folder / name, text)

    def append_to(self, name: str) -> JsonlAppender:
        """Opens a JSON lines file for appending, its torn tail repaired."""
        self._files.add(name)
        return JsonlAppender(self.folder / name)

    def include(self, name: str) -> Path:
        """Takes a file or folder that the caller writes into the manifest; returns its path."""
        self._files.add(name)
        return self.folder / name

    def finish(self, report: Mapping[str, Any], rejects: Rejects | None = None) -> None:
        """Writes the manifest, after which the artifact is complete.

        Args:
            report: counts of what was done, left out and set aside, stored in the manifest.
            rejects: input lines that were set aside; written to `rejected.jsonl`.
        """
        report = dict(report)
        if rejects is not None and rejects.items:
            self.write("rejected.jsonl", rejects.items)
            report["rejected_lines"] = rejects.counts()
        names = {
            str(file.relative_to(self.folder))
            for name in self._files
            for file in ([self.folder / name] if not (self.folder / name).is_dir() else (self.folder / name).rglob("*"))
            if file.is_file()
        }
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "agentir_version": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "config": self.config,
            "inputs": self.inputs,
            "upstream": self.upstream,
            "files": describe_files(self.folder, names),
            "report": report,
        }
        text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        write_text_atomically(self.folder / MANIFEST, text)
        (self.folder / UNFINISHED).unlink(missing_ok=True)
        self.complete = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        names = {path.name for path in self.folder.glob("*")}  # the maker may have removed the folder: then none
        if kind is not None and not self.complete and names == {LOCK, UNFINISHED}:
            (self.folder / UNFINISHED).unlink()  # nothing was made, so nothing binds the next try
        self._lock.release()


def _made(folder: Path) -> dict[str, Any]:
    """How an artifact was made, empty for what is none."""
    if not (folder / MANIFEST).is_file():
        return {}
    manifest = read_manifest(folder)
    told = {name: manifest.get(name) for name in ("kind", "agentir_version", "config", "inputs")}
    return {**told, "upstream": manifest.get("upstream", {})}


def _begun_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a finished artifact was begun under."""
    inputs = {name: entry["fingerprint"] for name, entry in manifest["inputs"].items()}
    return {"kind": manifest["kind"], "config": dict(manifest["config"]), "inputs": inputs}


def _read_unfinished(path: Path) -> dict[str, Any]:
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        return {"kind": before["kind"], "config": dict(before["config"]), "inputs": dict(before["inputs"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path}: damaged ({error!r}); delete the folder to make it anew") from None


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One text a key whose value differs between two beginnings of the same artifact."""
    if before["kind"] != now["kind"]:
        return [f"kind: before {before['kind']!r}, now {now['kind']!r}"]
    texts = []
    for part, label in (("config", ""), ("inputs", "input ")):
        old, new = before[part], now[part]
        for key in sorted(old.keys() | new.keys()):
            if key not in old or key not in new or old[key] != new[key]:
                was, is_ = (source.get(key, "not set") for source in (old, new))
                changed = "its content changed" if part == "inputs" else f"before {was!r}, now {is_!r}"
                texts.append(f"{label}{key}: {changed}")
    return texts
