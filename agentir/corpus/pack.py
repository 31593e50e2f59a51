"""The corpus pack: a folder that serves a whole corpus from memory-mapped files.

    texts.bin          the texts, one after the other, in UTF-8
    offsets.npy        where each text begins; one more for the end
    docids.bin, docid_offsets.npy    the docids likewise
    docid_order.npy    the rows in the order of their docids, so that a docid is found by halving
    docid_ranks.npy    the place of each row in that order, which settles equal scores
    chunks.npy         (row, start, end) of every chunk, in characters; only where chunks were asked for
    metadata.sqlite    titles, URLs and metadata a row, and what fields the metadata has
    pack.json          counts

A row is the place of a document in the corpus, from 0. Opening reads none of the files as a whole.
"""

from __future__ import annotations

import json
import mmap
import sqlite3
import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from agentir.corpus.chunker import chunk_bounds
from agentir.corpus.loaders import SourcedDocument, repeated
from agentir.errors import ArtifactError
from agentir.jsonl import Rejects
from agentir.records import Chunk, Document

Integers = npt.NDArray[np.int64]
MAX_EMPTY_SHOWN = 20
"""How many docids of empty texts the report names; it counts all."""
ROWS_AT_ONCE = 10_000
_SCHEMA = """
CREATE TABLE docs (row INTEGER PRIMARY KEY, title TEXT NOT NULL, url TEXT NOT NULL, metadata TEXT NOT NULL);
CREATE TABLE facets (field TEXT NOT NULL, type TEXT NOT NULL, num_docs INTEGER NOT NULL, num_values INTEGER NOT NULL);
"""
_FILL_FACETS = """
INSERT INTO facets
SELECT key, kind, count(*), count(DISTINCT value) FROM (
  SELECT item.key AS key, item.value AS value,
         CASE item.type WHEN 'true' THEN 'boolean' WHEN 'false' THEN 'boolean' ELSE item.type END AS kind
  FROM docs, json_each(docs.metadata) AS item WHERE item.type != 'null')
GROUP BY key, kind ORDER BY key, kind
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """What went into a pack; `empty_docids` are the first of the documents whose text is empty or blank."""

    num_documents: int
    num_empty: int
    empty_docids: tuple[str, ...]
    num_chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """A metadata field: how many documents have it with this JSON type, and how many different values it has."""

    field: str
    type: str
    num_docs: int
    num_values: int


def write_pack(
    folder: str | Path, documents: Iterable[SourcedDocument], rejects: Rejects, chunk_words: int = 0
) -> PackReport:
    """Writes a pack of all documents; of those with the same docid the first stays and the others go to `rejects`.

    Args:
        folder: a new folder.
        documents: in the order of their rows.
        rejects: takes docids used before; whether they stop the work is for the caller to `check`.
        chunk_words: the most words of a chunk; 0 stores no chunks.
    """
    folder = Path(folder)
    folder.mkdir(parents=True)
    lines: dict[str, int] = {}
    offsets = array("q", [0])
    chunks = array("q")
    num_empty, empty_docids = 0, []
    with open(folder / "texts.bin", "wb") as texts, closing(_new_database(folder / "metadata.sqlite")) as database:
        for sourced in documents:
            document, row = sourced.document, len(lines)
            if (first := lines.get(document.docid)) is not None:
                rejects.items.append(repeated(sourced, first))
                continue
            lines[document.docid] = sourced.line
            offsets.append(offsets[-1] + texts.write(document.text.encode("utf-8")))
            metadata = json.dumps(document.metadata, ensure_ascii=False)
            database.execute("INSERT INTO docs VALUES (?, ?, ?, ?)", (row, document.title, document.url, metadata))
            if not document.text.strip():
                num_empty += 1
                if num_empty <= MAX_EMPTY_SHOWN:
                    empty_docids.append(document.docid)
            if chunk_words:
                for start, end in chunk_bounds(document.text, chunk_words):
                    chunks.extend((row, start, end))
        database.execute(_FILL_FACETS)
        database.commit()
    np.save(folder / "offsets.npy", np.frombuffer(offsets, dtype=np.int64))
    if chunk_words:
        np.save(folder / "chunks.npy", np.array(chunks, dtype=np.int64).reshape(-1, 3))
    _write_docids(folder, [docid.encode("utf-8") for docid in lines])
    report = PackReport(
        num_documents=len(lines), num_empty=num_empty, empty_docids=tuple(empty_docids), num_chunks=len(chunks) // 3
    )
    (folder / "pack.json").write_text(json.dumps(asdict(report), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    return report


def _new_database(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + _SCHEMA)
    return database


def _write_docids(folder: Path, docids: Sequence[bytes]) -> None:
    (folder / "docids.bin").write_bytes(b"".join(docids))
    order = np.array(sorted(range(len(docids)), key=docids.__getitem__), dtype=np.int64)
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    np.save(folder / "docid_offsets.npy", np.cumsum([0, *map(len, docids)], dtype=np.int64))
    np.save(folder / "docid_order.npy", order)
    np.save(folder / "docid_ranks.npy", ranks)


def map_array(path: Path) -> npt.NDArray[Any]:
    """A `.npy` file as a read-only memory-mapped array.

    Raises:
        ArtifactError: the file is missing, cut off or no array.
    """
    try:
        # a plain view: indexing numpy's own class of mapped arrays takes several times as long
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except FileNotFoundError:
        raise ArtifactError(f"{path}: no such file; the folder is incomplete") from None
    except (ValueError, EOFError) as error:
        raise ArtifactError(f"{path}: cut off or not an array file: {error}") from None


class CorpusPack:
    """An opened pack; any number of threads may read it at once.

    Row numbers out of range raise IndexError, negative ones too.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._offsets: Integers = map_array(folder / "offsets.npy")
        self._docid_offsets: Integers = map_array(folder / "docid_offsets.npy")
        self._docid_order: Integers = map_array(folder / "docid_order.npy")
        self.docid_ranks: Integers = map_array(folder / "docid_ranks.npy")
        """The place of each row in the order of docids (by code points)."""
        self._chunks: Integers | None = map_array(folder / "chunks.npy") if (folder / "chunks.npy").exists() else None
        self._texts = _map_bytes(folder / "texts.bin")
        self._docids = _map_bytes(folder / "docids.bin")
        self.report = _read_report(folder / "pack.json")
        self._lock = threading.Lock()
        uri = f"{(folder / 'metadata.sqlite').absolute().as_uri()}?mode=ro&immutable=1"
        try:
            self._database = sqlite3.connect(uri, uri=True, check_same_thread=False)
            [(last_row,)] = self._database.execute("SELECT max(row) FROM docs")
        except sqlite3.Error as error:
            raise ArtifactError(f"{folder / 'metadata.sqlite'}: not a readable database: {error}") from None
        self._check_counts(num_rows=0 if last_row is None else last_row + 1)

    @classmethod
    def open(cls, folder: str | Path) -> CorpusPack:
        """Maps the files of a pack.

        Raises:
            ArtifactError: a file is missing or cut off, or two of them disagree; the text names both numbers.
        """
        return cls(Path(folder))

    def _check_counts(self, num_rows: int) -> None:
        for name, what, found in (
            ("offsets.npy", "texts", len(self._offsets) - 1),
            ("docid_offsets.npy", "docids", len(self._docid_offsets) - 1),
            ("docid_order.npy", "docids", len(self._docid_order)),
            ("docid_ranks.npy", "docids", len(self.docid_ranks)),
            ("metadata.sqlite", "rows", num_rows),
        ):
            if found != len(self):
                raise ArtifactError(f"{self.folder / name}: expected {len(self)} {what} as in pack.json, found {found}")
        for name, offsets, blob in (
            ("texts.bin", self._offsets, self._texts),
            ("docids.bin", self._docid_offsets, self._docids),
        ):
            if offsets[-1] != len(blob):
                raise ArtifactError(f"{self.folder / name}: expected {offsets[-1]} bytes, found {len(blob)}")

    def __len__(self) -> int:
        return self.report.num_documents

    def docid(self, row: int) -> str:
        """The docid of a row."""
        return _decode(self._docid_bytes(self._in_range(row)))

    def row(self, docid: str) -> int | None:
        """The row of a docid, None where the corpus has no such document."""
        key = docid.encode("utf-8", "surrogatepass")
        at = bisect_left(self._docid_order, key, key=self._docid_bytes)
        if at == len(self) or self._docid_bytes(row := self._docid_order[at]) != key:
            return None
        return int(row)

    def text(self, row: int) -> str:
        """The text of a row."""
        row = self._in_range(row)
        return _decode(self._texts[self._offsets[row] : self._offsets[row + 1]])

    def title(self, row: int) -> str:
        """The title of a row, empty where it has none."""
        return self.titles([row])[0]

    def titles(self, rows: Sequence[int]) -> list[str]:
        """The titles of rows, in the order given."""
        wanted = json.dumps([self._in_range(row) for row in rows])
        found: dict[int, str] = dict(
            self._select("SELECT row, title FROM docs WHERE row IN (SELECT value FROM json_each(?))", wanted)
        )
        return [found[row] for row in rows]

    def document(self, row: int) -> Document:
        """The whole document of a row."""
        return self.documents(self._in_range(row), row + 1)[0]

    def documents(self, start: int, stop: int) -> list[Document]:
        """The documents of the rows from `start` to before `stop`, or to the end."""
        rows = self._select(
            "SELECT row, title, url, metadata FROM docs WHERE row >= ? AND row < ? ORDER BY row", start, stop
        )
        return [
            Document(docid=self.docid(row), text=self.text(row), title=title, url=url, metadata=json.loads(metadata))
            for row, title, url, metadata in rows
        ]

    def names(self) -> Iterator[tuple[str, str, str]]:
        """Docid, title and URL of every document, in the order of the rows; no text is read."""
        for start in range(0, len(self), ROWS_AT_ONCE):
            rows = self._select(
                "SELECT row, title, url FROM docs WHERE row >= ? AND row < ? ORDER BY row", start, start + ROWS_AT_ONCE
            )
            yield from ((self.docid(row), title, url) for row, title, url in rows)

    def find(self, docids: Iterable[str]) -> list[Document]:
        """The documents with these ids, each once, in the order of their rows; ids the corpus lacks are passed over."""
        rows = {row for docid in docids if (row := self.row(docid)) is not None}
        return [self.document(row) for row in sorted(rows)]

    def chunks(self, row: int) -> list[Chunk]:
        """The chunks of a row in order; empty where its text is.

        Raises:
            ArtifactError: the pack was written without chunks.
        """
        row = self._in_range(row)
        if self._chunks is None:
            raise ArtifactError(f"{self.folder}: has no chunks; build it with chunk_words above 0")
        rows = self._chunks[:, 0]
        bounds = self._chunks[bisect_left(rows, row) : bisect_left(rows, row + 1), 1:].tolist()
        docid = self.docid(row)
        return [
            Chunk(chunkid=f"{docid}#{number}", docid=docid, start=start, end=end)
            for number, (start, end) in enumerate(bounds)
        ]

    def facets(self) -> list[Facet]:
        """The metadata fields of the corpus, by name and JSON type."""
        rows = self._select("SELECT field, type, num_docs, num_values FROM facets")
        return [
            Facet(field=field, type=type_, num_docs=num_docs, num_values=num_values)
            for field, type_, num_docs, num_values in rows
        ]

    def _docid_bytes(self, row: int) -> bytes:
        return self._docids[self._docid_offsets[row] : self._docid_offsets[row + 1]]

    def _in_range(self, row: int) -> int:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of a corpus of {len(self)} documents")
        return row

    def _select(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._database.execute(sql, values).fetchall()

    def close(self) -> None:
        """Releases the files; nothing can be read afterwards."""
        with self._lock:  # closed under a thread that reads, such as that of a cancelled search, it crashes the process
            self._database.close()
        for blob in (self._texts, self._docids):
            if isinstance(blob, mmap.mmap):
                blob.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _map_bytes(path: Path) -> mmap.mmap | bytes:
    """A file's bytes, mapped; an empty file cannot be mapped."""
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
    except FileNotFoundError:
        raise ArtifactError(f"{path}: no such file; the folder is incomplete") from None


def _read_report(path: Path) -> PackReport:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        values["empty_docids"] = tuple(values["empty_docids"])
        return PackReport(**{field.name: values[field.name] for field in fields(PackReport)})
    except FileNotFoundError:
        raise ArtifactError(f"{path}: no such file; expected a finished corpus pack") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path}: not the counts of a corpus pack: {error!r}") from None


def _decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(
            f"corpus pack: expected UTF-8, found {error}; the files are damaged, see index verify"
        ) from None
