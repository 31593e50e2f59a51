"""The index folder: everything a search needs, in versions that are swapped as a whole.

    CURRENT         the name of the version to open
    <version>/      an artifact: manifest.json, pack/, vectors.npy (one row a document), bm25/
    building/       a version that is being made, see `agentir.search.builder`

The data files of a version never change once they are there, so whoever has it open keeps reading it after a swap.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from agentir.artifacts import CURRENT, read_manifest, verify_files
from agentir.corpus.pack import CorpusPack, map_array
from agentir.embed.encoder import Encoder, Vectors
from agentir.errors import ArtifactError
from agentir.search.bm25 import Bm25Searcher

if TYPE_CHECKING:
    from agentir.search.dense import DenseSearcher

KIND = "index"
BUILDING = "building"
PACK, VECTORS, BM25 = "pack", "vectors.npy", "bm25"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexReport:
    """What a build put into an index and what it left out.

    Attributes:
        num_documents: documents in the index.
        num_set_aside: input lines that did not fit and were set aside.
        num_empty: documents whose text is empty or blank.
        empty_docids: the first of these.
        num_chunks: chunks, 0 if none were asked for.
        num_terms: different terms of the BM25 index, None without one.
        num_zero_vectors: documents whose vector is zero, None without vectors.
        kept: what a build that was continued took over from the one before.
        seconds: how long each stage took in the process that finished the build.
    """

    num_documents: int
    num_set_aside: int
    num_empty: int
    empty_docids: tuple[str, ...]
    num_chunks: int
    num_terms: int | None
    num_zero_vectors: int | None
    kept: tuple[str, ...]
    seconds: dict[str, float]


class Index:
    """An opened index; close it, or use it as a context manager, to release its files."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        """The folder of the version."""
        self.manifest = manifest
        """The manifest of the version."""
        self.pack = CorpusPack.open(folder / PACK)
        """The documents."""
        self._vectors = _map_vectors(folder, len(self.pack), self.encoder) if VECTORS in manifest["files"] else None

    @classmethod
    def open(cls, path: str | Path) -> Index:
        """Opens the current version of an index folder; nothing is read as a whole, and sums are not checked.

        Raises:
            ArtifactError: there is no finished index, or its files are missing, cut off or disagree about their counts.
        """
        folder = current_version(path)
        return cls(folder, read_manifest(folder, KIND))

    @staticmethod
    def verify(path: str | Path) -> list[str]:
        """Compares all files of the current version with their sums; returns one text a difference.

        Raises:
            ArtifactError: there is no finished index.
        """
        return verify_files(current_version(path))

    @property
    def version(self) -> str:
        """Identifies the content of the index."""
        return self.folder.name

    @property
    def report(self) -> IndexReport:
        """What the build reported."""
        return read_report(self.manifest)

    @property
    def encoder(self) -> dict[str, Any] | None:
        """What the encoder of the documents said of itself (`Encoder.describe`), None without vectors."""
        description: dict[str, Any] | None = self.manifest["report"].get("encoder")
        return description

    @property
    def encoder_name(self) -> str:
        """The model that encoded the documents: the absolute path of a folder, else as it was named.

        Raises:
            ArtifactError: the index holds no vectors.
        """
        return str(self._described_encoder()["name"])

    @property
    def has_vectors(self) -> bool:
        """Whether dense search is possible."""
        return self._vectors is not None

    @property
    def has_bm25(self) -> bool:
        """Whether lexical search is possible."""
        return any(name.startswith(f"{BM25}/") for name in self.manifest["files"])

    @property
    def vectors(self) -> Vectors:
        """The document vectors, memory-mapped, one a row of the pack.

        Raises:
            ArtifactError: the index holds none.
        """
        self._described_encoder()
        assert self._vectors is not None
        return self._vectors

    def bm25(self) -> Bm25Searcher:
        """A searcher by words.

        Raises:
            ArtifactError: the index was built without BM25.
        """
        if not self.has_bm25:
            raise ArtifactError(f"{self.folder.parent}: this index has no BM25; build it with bm25 = true")
        return Bm25Searcher.open(self.folder / BM25, self.pack)

    def dense(self, encoder: Encoder, num_threads: int = 1) -> DenseSearcher:
        """A searcher by vectors.

        Args:
            encoder: encodes the queries.
            num_threads: see `agentir.search.dense.DenseSearcher`.

        Raises:
            ArtifactError: the index holds no vectors.
            EncoderError: the encoder does not fit them.
        """
        from agentir.search.dense import DenseSearcher

        where = str(self.folder.parent)
        return DenseSearcher(self.pack, self.vectors, encoder, self._described_encoder(), where, num_threads)

    def _described_encoder(self) -> dict[str, Any]:
        if self.encoder is None:
            advice = "build it with an encoder, or search with bm25"
            raise ArtifactError(f"{self.folder.parent}: this index has no vectors; {advice}")
        return self.encoder

    def close(self) -> None:
        """Releases the files; searchers made from this index cannot be used afterwards."""
        self.pack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def current_version(path: str | Path) -> Path:
    """The folder of the version that an index folder names as current.

    Raises:
        ArtifactError: there is none.
    """
    path = Path(path)
    if not (path / CURRENT).is_file():
        if (path / BUILDING).is_dir():
            raise ArtifactError(
                f"{path}: this index is unfinished; run the same agentir index build again to finish it"
            )
        raise ArtifactError(
            f"{path}: expected an index folder with {CURRENT}, found none; make one with agentir index build"
        )
    name = (path / CURRENT).read_text(encoding="utf-8", errors="replace").strip()
    if not name or Path(name).name != name:
        raise ArtifactError(f"{path / CURRENT}: expected the name of a folder beside it, found {name!r}")
    return path / name


def read_report(manifest: dict[str, Any]) -> IndexReport:
    """The report in an index manifest."""
    stored: dict[str, Any] = manifest["report"]
    values = {field.name: stored[field.name] for field in fields(IndexReport)}
    return IndexReport(**values | {"empty_docids": tuple(stored["empty_docids"]), "kept": tuple(stored["kept"])})


def _map_vectors(folder: Path, num_documents: int, encoder: dict[str, Any] | None) -> Vectors:
    """The mapped vectors, once their shape fits the documents and the encoder."""
    vectors = map_array(folder / VECTORS)
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise ArtifactError(f"{folder / VECTORS}: expected a float32 matrix, found {vectors.dtype} {vectors.shape}")
    if len(vectors) != num_documents:
        raise ArtifactError(f"{folder}: {VECTORS} holds {len(vectors)} vectors, {PACK} holds {num_documents} documents")
    if encoder is None or encoder["dim"] != vectors.shape[1]:
        expected = "no encoder" if encoder is None else f"{encoder['name']}/{encoder['dim']}"
        raise ArtifactError(
            f"{folder / VECTORS}: vectors of {vectors.shape[1]} dimensions, the manifest names {expected}"
        )
    return vectors
