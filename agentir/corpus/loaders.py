"""Reads documents, queries and judgements from the files that data sets are published in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentir.errors import InputError
from agentir.jsonl import Misfit, Reject, Rejects, as_id, iter_lines, iter_objects
from agentir.records import Document

DOCID_KEYS = ("docid", "id", "_id")
TEXT_KEYS = ("text", "contents")
QUERY_KEYS = ("_id", "qid", "id")
QRELS_HEADER = ["query-id", "corpus-id", "score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedDocument:
    """A document with the file and line (from 1) that it was read from."""

    document: Document
    file: str
    line: int


def corpus_file(path: str | Path) -> Path:
    """The file of documents: the path itself, or `corpus.jsonl[.gz]` of a BEIR folder.

    Raises:
        InputError: nothing is there, or the folder does not hold exactly one corpus.
    """
    return _jsonl_of(path, "corpus")


def read_sourced(path: str | Path, rejects: Rejects) -> Iterator[SourcedDocument]:
    """Yields the documents of a JSON lines file (plain or `.gz`) or BEIR folder with their lines.

    A line has an id (`docid`, `id` or `_id`; an integer becomes a string, so 7 and "007" stay different), a text (`text` or
    `contents`), and optionally `title` and `url`. All other fields become metadata; a BEIR `metadata` object is merged in.
    Docids used before are not looked for here, see `agentir.corpus.pack.write_pack`.

    Args:
        path: the file or folder.
        rejects: takes the lines that do not fit.
    """
    file = corpus_file(path)
    for line, row in iter_objects(file, rejects):
        try:
            document = _document(row)
        except Misfit as misfit:
            rejects.add(file, line, *misfit.args)
            continue
        yield SourcedDocument(document=document, file=str(file), line=line)


def repeated(sourced: SourcedDocument, first: int) -> Reject:
    """The fault of a document whose docid a line before it has; `first` is that line."""
    found = f"{sourced.document.docid!r} (first at line {first})"
    return Reject(file=sourced.file, line=sourced.line, field="docid", expected="a docid not used before", found=found)


def read_documents(path: str | Path, rejects: Rejects) -> Iterator[Document]:
    """Yields the documents of a JSON lines file or BEIR folder, see `read_sourced`."""
    return (sourced.document for sourced in read_sourced(path, rejects))


def read_beir_queries(folder: str | Path, rejects: Rejects) -> dict[str, str]:
    """The queries of a BEIR folder (`queries.jsonl[.gz]`): qid -> text."""
    file = _jsonl_of(folder, "queries")
    queries: dict[str, str] = {}
    for line, row in iter_objects(file, rejects):
        try:
            qid = _identifier(row, QUERY_KEYS)
            text = _text(row, ("text",), required=True)
            if qid in queries:
                raise Misfit("_id", "an id not used before", qid)
        except Misfit as misfit:
            rejects.add(file, line, *misfit.args)
            continue
        queries[qid] = text
    return queries


def read_beir_qrels(folder: str | Path, rejects: Rejects, split: str = "test") -> dict[str, dict[str, int]]:
    """The judgements of a BEIR folder (`qrels/<split>.tsv`): qid -> docid -> grade.

    Raises:
        InputError: the file is missing or does not begin with the header of BEIR.
    """
    file = Path(folder) / "qrels" / f"{split}.tsv"
    rows = ((line, raw.decode("utf-8", "replace").split("\t")) for line, raw in iter_lines(file))
    _, header = next(rows, (0, []))
    if header != QRELS_HEADER:
        raise InputError(
            f"{file}: expected the header {' TAB '.join(QRELS_HEADER)}, found {' TAB '.join(header) or 'nothing'}"
        )
    qrels: dict[str, dict[str, int]] = {}
    for line, row in rows:
        if len(row) != len(QRELS_HEADER):
            rejects.add(file, line, "", f"{len(QRELS_HEADER)} fields separated by tabs", "\t".join(row))
            continue
        qid, docid, raw_grade = row
        try:
            grade = int(raw_grade)
        except ValueError:
            rejects.add(file, line, "score", "an integer", raw_grade)
            continue
        if qrels.setdefault(qid, {}).setdefault(docid, grade) != grade:
            rejects.add(file, line, "score", f"one grade for {docid!r}, first {qrels[qid][docid]}", grade)
    return qrels


def _jsonl_of(path: str | Path, stem: str) -> Path:
    """The path itself unless it is a folder, else the one file of that name in it."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    if not path.is_dir():
        return path
    found = [file for file in (path / f"{stem}.jsonl", path / f"{stem}.jsonl.gz") if file.is_file()]
    if len(found) != 1:
        names = " and ".join(file.name for file in found) or "neither"
        raise InputError(
            f"{path}: expected {stem}.jsonl or {stem}.jsonl.gz in the folder, found {names}; name the file"
        )
    return found[0]


def _document(row: dict[str, Any]) -> Document:
    docid = _identifier(row, DOCID_KEYS)
    text = _text(row, TEXT_KEYS, required=True)
    title, url = _text(row, ("title",)), _text(row, ("url",))
    taken = {*DOCID_KEYS, *TEXT_KEYS, "title", "url"}
    metadata = {key: value for key, value in row.items() if key not in taken}
    if isinstance(nested := metadata.get("metadata"), dict):
        del metadata["metadata"]
        for key, value in nested.items():
            if key in metadata and metadata[key] != value:
                raise Misfit(f"metadata.{key}", f"the value of the field {key} beside it, {metadata[key]!r}", value)
            metadata[key] = value
    return Document(docid=docid, text=text, title=title, url=url, metadata=metadata)


def _identifier(row: dict[str, Any], keys: Sequence[str]) -> str:
    key, value = _aliased(row, keys)
    if (identifier := as_id(value)) is None:
        raise Misfit(key, "an id (a text or an integer)", value)
    return identifier


def _text(row: dict[str, Any], keys: Sequence[str], required: bool = False) -> str:
    key, value = _aliased(row, keys, required)
    if value is None and not required:
        return ""
    if not isinstance(value, str):
        raise Misfit(key, "a string", value)
    return value


def _aliased(row: dict[str, Any], keys: Sequence[str], required: bool = True) -> tuple[str, Any]:
    """The key that is present and its value; several keys must agree."""
    present = [key for key in keys if key in row]
    if not present:
        if required:
            raise Misfit(
                keys[0], "this field" + (f" (or {', '.join(keys[1:])})" if keys[1:] else ""), "<no such field>"
            )
        return keys[0], None
    first, *others = present
    for key in others:
        if type(row[key]) is not type(row[first]) or row[key] != row[first]:
            raise Misfit(key, f"the same value as {first}, {row[first]!r}", row[key])
    return first, row[first]
