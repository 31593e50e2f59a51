"""Builds an index folder, so that it can be stopped at any moment.

A version is made in `building/`, stage by stage. Each stage writes under another name, syncs, and renames, so what stands
under its own name is whole: a build that is started again takes it over. The manifest comes last, then `building/` gets
its version's name, then `CURRENT` is swapped. The same documents and settings give the same bytes, interrupted or not.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped]

from agentir.artifacts import (
    CURRENT,
    LOCK,
    MANIFEST,
    UNFINISHED,
    Artifact,
    FolderLock,
    read_manifest,
    sha256_json,
    sync_folder,
    write_text_atomically,
)
from agentir.config import Section
from agentir.corpus.loaders import corpus_file, read_sourced
from agentir.corpus.pack import CorpusPack, map_array, write_pack
from agentir.embed.encoder import Encoder, Vectors
from agentir.errors import ArtifactError, ConfigError, EncoderError, InputError
from agentir.jsonl import Reject, Rejects, read_records, write_jsonl
from agentir.search.bm25 import ANALYSIS, SETTINGS, build_bm25
from agentir.search.dense import unit_vectors
from agentir.search.index import BM25, BUILDING, KIND, PACK, VECTORS, IndexReport, current_version, read_report

SHARD_DOCUMENTS = 2048
"""How many vectors are kept at once; the most encoding that is lost when a build is stopped."""
_REJECTED = "rejected.jsonl"
_DECIDES_VECTORS = ("space", "dim", "backend", "max_document_tokens")
"""What of an encoder's description the document vectors depend on; the rest is its name and its way with queries."""


class _Recipe(Section):
    """Everything besides the corpus that decides what an index holds; the manifest keeps it as `config`."""

    on_bad_line: Literal["stop", "set_aside"]
    chunk_words: int
    bm25: str | None
    """How text becomes terms, None without BM25."""
    encoder: dict[str, Any] | None
    """Of what the encoder says of itself that which decides the vectors, None without vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIndex:
    """The version that is current after a build; `is_new` is false where it was there before."""

    folder: Path
    is_new: bool
    report: IndexReport


def build_index(
    out: str | Path,
    corpus: str | Path,
    *,
    encoder: Encoder | None = None,
    chunk_words: int = 0,
    bm25: bool = True,
    on_bad_line: Literal["stop", "set_aside"] = "stop",
) -> BuiltIndex:
    """Makes an index the current version of a folder, continuing a build that was stopped.

    A version that was built before of the same corpus and settings is made current again, without work, also if the encoder
    is another by name or query template only; it takes over its description. Other versions stay, for whoever reads them.

    Args:
        out: the index folder.
        corpus: a JSON lines file or BEIR folder, see `agentir.corpus.loaders`.
        encoder: encodes the documents; None builds for lexical search only.
        chunk_words: the most words of a chunk stored in the pack; 0 stores none.
        bm25: whether to build for lexical search.
        on_bad_line: whether corpus lines that do not fit stop the build or are set aside; so are repeated docids.

    Raises:
        InputError: the corpus is missing or has lines that do not fit.
        ArtifactError: a build that was begun differently lies in the folder, or files that are no index.
        LockedError: another process builds here.
        EncoderError: the encoder cannot encode documents.
    """
    source = corpus_file(corpus)
    if encoder is None and not bm25:
        raise ConfigError("nothing to search with: name an encoder, or set bm25 = true")
    if encoder is not None and not encoder.encodes_documents:
        raise EncoderError(
            f"{encoder.name}: tuned to encode queries against the vectors of another model (space {encoder.space[:12]}); "
            "build the index with that model, then search it with this one"
        )
    description = _describe(encoder)
    recipe = _Recipe(
        on_bad_line=on_bad_line,
        chunk_words=chunk_words,
        bm25=ANALYSIS if bm25 else None,
        encoder=description and {key: description[key] for key in _DECIDES_VECTORS if key in description},
    )
    out = Path(out)
    lock = FolderLock(out)
    try:
        versions = _versions(out)
        with Artifact(out / BUILDING, KIND, recipe, inputs={"corpus": source}) as artifact:
            version = _same_version(versions, artifact.folder)
            is_new = version is None
            if is_new and not artifact.complete:
                _Build(artifact, source, recipe, encoder).run()
        if version is None:
            version = _publish(artifact.folder)
        else:
            _discard(artifact.folder)
        _redescribe(version, description)
        if not (out / CURRENT).is_file() or current_version(out) != version:
            write_text_atomically(out / CURRENT, version.name + "\n")
        return BuiltIndex(folder=version, is_new=is_new, report=read_report(read_manifest(version, KIND)))
    finally:
        lock.release()


def _describe(encoder: Encoder | None) -> dict[str, Any] | None:
    """What an encoder says of itself; a local model by its absolute path, so that it is found from any working folder."""
    if encoder is None:
        return None
    description = encoder.describe()
    name = Path(description["name"])
    return {**description, "name": str(name.absolute())} if name.is_dir() else description


def _redescribe(version: Path, description: dict[str, Any] | None) -> None:
    """Writes the encoder's description into a version whose vectors were made under another name or query template."""
    manifest = read_manifest(version, KIND)
    if manifest["report"].get("encoder") != description:
        manifest["report"]["encoder"] = description
        write_text_atomically(version / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")


def _versions(out: Path) -> list[Path]:
    """The folders of the versions."""
    others = [path for path in out.iterdir() if path.name not in (LOCK, CURRENT, f"{CURRENT}.part", BUILDING)]
    if foreign := sorted(path.name for path in others if not (path / MANIFEST).is_file()):
        raise ArtifactError(f"{out}: holds files of another origin ({', '.join(foreign[:5])}); name a new folder")
    return others


def _same_version(versions: list[Path], building: Path) -> Path | None:
    """The version that was made of the same corpus and settings as the one that is being built."""
    wanted = _origin(building)
    for folder in versions:
        try:
            read_manifest(folder, KIND)
        except ArtifactError:  # damaged, so it is made anew
            continue
        if _origin(folder) == wanted:
            return folder
    return None


def _origin(folder: Path) -> dict[str, Any]:
    """Kind, configuration and fingerprints of inputs of an artifact, finished or not."""
    if (folder / MANIFEST).is_file():
        manifest = read_manifest(folder)
        inputs = {name: entry["fingerprint"] for name, entry in manifest["inputs"].items()}
        return {"kind": manifest["kind"], "config": manifest["config"], "inputs": inputs}
    origin: dict[str, Any] = json.loads((folder / UNFINISHED).read_text(encoding="utf-8"))
    return origin


def _discard(building: Path) -> None:
    """Deletes a version that is not finished, what says how it was begun last, so that this may be stopped too."""
    for path in building.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != UNFINISHED:
            path.unlink()
    shutil.rmtree(building)


def _publish(building: Path) -> Path:
    """Gives a finished version its name."""
    files = read_manifest(building, KIND)["files"]
    folder = building.with_name(sha256_json([_origin(building), files])[:16])
    if folder.exists():  # of the same files, but damaged
        shutil.rmtree(folder)
    (building / LOCK).unlink(missing_ok=True)
    os.rename(building, folder)
    sync_folder(folder.parent)
    return folder


@dataclass(slots=True)
class _Build:
    """The stages of one build."""

    artifact: Artifact
    source: Path
    recipe: _Recipe
    encoder: Encoder | None
    kept: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        rejects = self._write_pack()
        with CorpusPack.open(self.artifact.include(PACK)) as pack:
            num_terms = self._write_bm25(pack) if self.recipe.bm25 else None
            num_zero = self._write_vectors(pack, self.encoder) if self.encoder is not None else None
            counts = asdict(pack.report)
        report = IndexReport(
            **counts,
            num_set_aside=len(rejects.items),
            num_terms=num_terms,
            num_zero_vectors=num_zero,
            kept=tuple(self.kept),
            seconds=self.seconds,
        )
        self.artifact.finish({**asdict(report), "encoder": _describe(self.encoder)}, rejects)

    def _write_pack(self) -> Rejects:
        rejects = Rejects(set_aside=self.recipe.on_bad_line == "set_aside")
        rejected = self.artifact.folder / _REJECTED
        if self._keep(PACK):
            rejects.items.extend(read_records(rejected, Reject) if rejected.exists() else [])
            return rejects
        try:
            with self._stage(PACK) as part:
                documents = tqdm(read_sourced(self.source, rejects), desc="read", unit="doc")
                write_pack(part, documents, rejects, self.recipe.chunk_words)
                rejects.check()
                if rejects.items:
                    write_jsonl(rejected, rejects.items)
        except InputError:  # nothing is worth keeping, and once the lines are mended, going on would be refused
            _discard(self.artifact.folder)
            raise
        return rejects

    def _write_bm25(self, pack: CorpusPack) -> int:
        folder = self.artifact.include(BM25)
        if not self._keep(BM25):
            with self._stage(BM25) as part:
                build_bm25(pack, part)
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        return int(settings["num_terms"])

    def _write_vectors(self, pack: CorpusPack, encoder: Encoder) -> int:
        """Encodes what is not encoded yet, and joins the shards; returns the number of zero vectors."""
        path = self.artifact.include(VECTORS)
        starts = range(0, len(pack), SHARD_DOCUMENTS)
        shards = [_Shard(path, start, min(start + SHARD_DOCUMENTS, len(pack)), encoder.dim) for start in starts]
        if not self._keep(VECTORS):
            with self._stage(VECTORS) as part:
                self._encode(pack, encoder, shards)
                _join(shards, part, (len(pack), encoder.dim))
        for shard in shards:
            shard.path.unlink(missing_ok=True)
        vectors = map_array(path)
        blocks = (vectors[at : at + SHARD_DOCUMENTS] for at in range(0, len(vectors), SHARD_DOCUMENTS))
        return sum(int((~block.any(axis=1)).sum()) for block in blocks)

    def _encode(self, pack: CorpusPack, encoder: Encoder, shards: list[_Shard]) -> None:
        missing = [shard for shard in shards if not shard.is_there()]
        if len(missing) < len(shards):
            self.kept.append(f"{len(shards) - len(missing)} of {len(shards)} shards of vectors")
        done = len(pack) - sum(shard.stop - shard.start for shard in missing)
        with tqdm(total=len(pack), initial=done, desc="encode", unit="doc") as progress:
            for shard in missing:
                vectors = encoder.encode_documents(pack.documents(shard.start, shard.stop))
                if vectors.shape != shard.shape:
                    raise EncoderError(
                        f"{encoder.name}: expected vectors of shape {shard.shape}, found {vectors.shape}"
                    )
                shard.write(unit_vectors(vectors, f"{encoder.name}, documents from row {shard.start}"))
                progress.update(len(vectors))

    def _keep(self, name: str) -> bool:
        """Whether an earlier start finished the stage that makes this file or folder."""
        if there := (self.artifact.folder / name).exists():
            self.kept.append(name)
        return there

    @contextmanager
    def _stage(self, name: str) -> Iterator[Path]:
        """Gives the path to write to; what was written is synced and gets its own name when the block ends well."""
        part = self.artifact.folder / f"{name}.part"
        if part.is_dir():
            shutil.rmtree(part)
        began = time.monotonic()
        yield part
        _move_into_place(part, self.artifact.folder / name)
        self.seconds[name] = round(time.monotonic() - began, 3)


@dataclass(frozen=True, slots=True)
class _Shard:
    """The vectors of the rows from `start` to before `stop`, in a file of their own until all are there."""

    joined: Path
    start: int
    stop: int
    dim: int

    @property
    def path(self) -> Path:
        return self.joined.with_name(f"{self.joined.stem}-{self.start // SHARD_DOCUMENTS:05d}.npy")

    @property
    def shape(self) -> tuple[int, int]:
        return (self.stop - self.start, self.dim)

    def is_there(self) -> bool:
        return self.path.exists() and map_array(self.path).shape == self.shape

    def write(self, vectors: Vectors) -> None:
        part = self.path.with_name(f"{self.path.name}.part")
        with open(part, "wb") as file:
            np.save(file, vectors, allow_pickle=False)
        _move_into_place(part, self.path)


def _join(shards: list[_Shard], part: Path, shape: tuple[int, int]) -> None:
    with open(part, "wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for shard in shards:
            map_array(shard.path).tofile(file)


def _move_into_place(part: Path, path: Path) -> None:
    """Syncs a file, or all files of a folder, and renames it."""
    for each in [*part.rglob("*"), part] if part.is_dir() else [part]:
        if each.is_dir():
            sync_folder(each)
        else:
            with open(each, "rb") as file:
                os.fsync(file.fileno())
    os.rename(part, path)
    sync_folder(path.parent)
