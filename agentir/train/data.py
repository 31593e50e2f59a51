"""Training rows: queries with the ids of their positives and hard negatives, from any of the field's layouts.

Read are the `examples` artifact of `agentir synth build`, Tevatron/AgentIR JSON lines (`positive_passages`,
`negative_passages`), rows of plain texts (`query`, `positive(s)` or `pos`, `negative(s)` or `neg`), and rows of ids
(`positive_ids`, `negative_ids`) beside a corpus. A bare string where a list of texts belongs is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentir.errors import InputError
from agentir.jsonl import Rejects, as_id, iter_objects
from agentir.records import Document, SearchQuery, TrainingExample


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """One query to train on.

    `question` names what the query was asked for: rows of one question are never each other's negatives. `pool` holds
    the documents the oracle ranked, where known, for evaluation.
    """

    rowid: str
    question: str
    query: SearchQuery
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    pool: tuple[str, ...] = ()


_EXAMPLE = TypeAdapter(TrainingExample)
_TEXT_KEYS = (("positive", "positives", "pos"), ("negative", "negatives", "neg"))
_ID_KEYS = (("positive_ids", "positive_document_ids"), ("negative_ids", "negative_document_ids"))
_PASSAGE_KEYS = ("positive_passages", "negative_passages")


def read_rows(path: str | Path, rejects: Rejects, documents: dict[str, Document]) -> list[TrainingRow]:
    """Reads a file of training rows.

    Args:
        path: JSON lines.
        rejects: where lines that do not fit go.
        documents: documents by docid; texts that stand in the rows themselves are added to it.
    """
    rows = []
    for number, value in iter_objects(path, rejects):
        row = _read_row(value, str(path), number, rejects, documents)
        if row is not None:
            rows.append(row)
    return rows


def _read_row(
    value: dict[str, Any], path: str, number: int, rejects: Rejects, documents: dict[str, Document]
) -> TrainingRow | None:
    if "subquery" in value:
        return _from_example(value, path, number, rejects)
    before = len(rejects.items)
    query = value.get("query", value.get("query_text"))
    if not isinstance(query, str) or not query.strip():
        rejects.add(path, number, "query", "a text that is not blank", query)
    sides: list[tuple[str, ...]] = []
    for side in (0, 1):
        if _PASSAGE_KEYS[side] in value:
            passages = _passages(value[_PASSAGE_KEYS[side]], _PASSAGE_KEYS[side], path, number, rejects)
        elif (key := next((key for key in _ID_KEYS[side] if key in value), None)) is not None:
            sides.append(_ids(value[key], key, path, number, rejects))
            continue
        else:
            key = next((key for key in _TEXT_KEYS[side] if key in value), _TEXT_KEYS[side][0])
            passages = _texts(value.get(key, [] if side else None), key, path, number, rejects)
        documents.update((document.docid, document) for document in passages)
        sides.append(tuple(document.docid for document in passages))
    if len(rejects.items) == before and not sides[0]:
        rejects.add(path, number, "positive", "at least one positive", value)
    if len(rejects.items) > before:
        return None
    assert isinstance(query, str)
    rowid = str(value.get("query_id", f"line{number}"))
    question = rowid.rsplit("_turn", 1)[0] if "query_id" in value else query
    return TrainingRow(
        rowid=rowid, question=question, query=SearchQuery(query=query), positives=sides[0], negatives=sides[1]
    )


def _from_example(value: dict[str, Any], path: str, number: int, rejects: Rejects) -> TrainingRow | None:
    try:
        example: TrainingExample = _EXAMPLE.validate_json(json.dumps(value))
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            name = ".".join(str(part) for part in problem["loc"])
            rejects.add(path, number, name, problem["msg"].removeprefix("Input should be "), problem["input"])
        return None
    return row_of_example(example)


def row_of_example(example: TrainingExample) -> TrainingRow:
    """The training row of an example made by `agentir synth build`."""
    sub = example.subquery
    return TrainingRow(
        rowid=sub.subqid,
        question=sub.qid,
        query=SearchQuery(query=sub.query, reasoning=sub.reasoning, question=sub.question),
        positives=example.positive_docids,
        negatives=example.negative_docids,
        pool=example.oracle_order,
    )


def _list(value: Any, key: str, what: str, path: str, number: int, rejects: Rejects) -> list[Any]:
    if isinstance(value, list):
        return value
    rejects.add(path, number, key, f"a list of {what}", value)
    return []


def _passages(value: Any, key: str, path: str, number: int, rejects: Rejects) -> list[Document]:
    documents = []
    for index, item in enumerate(_list(value, key, "passages with docid and text", path, number, rejects)):
        docid = as_id(item.get("docid")) if isinstance(item, dict) else None
        if docid is None or not isinstance(item.get("text"), str):
            rejects.add(path, number, f"{key}.{index}", "a passage with docid and text", item)
            continue
        documents.append(Document(docid=docid, text=item["text"], title=str(item.get("title") or "")))
    return documents


def _ids(value: Any, key: str, path: str, number: int, rejects: Rejects) -> tuple[str, ...]:
    ids = []
    for index, item in enumerate(_list(value, key, "document ids", path, number, rejects)):
        if (docid := as_id(item)) is None:
            rejects.add(path, number, f"{key}.{index}", "a document id (a text or an integer)", item)
            continue
        ids.append(docid)
    return tuple(ids)


def _texts(value: Any, key: str, path: str, number: int, rejects: Rejects) -> list[Document]:
    documents = []
    for index, item in enumerate(_list(value, key, "texts", path, number, rejects)):
        if not isinstance(item, str) or not item.strip():
            rejects.add(path, number, f"{key}.{index}", "a text that is not blank", item)
            continue
        documents.append(Document(docid=f"text-{hashlib.sha256(item.encode()).hexdigest()[:24]}", text=item))
    return documents


def dangling(rows: Iterable[TrainingRow], known: Mapping[str, Any] | set[str]) -> dict[str, list[str]]:
    """Document ids that rows name but nobody knows: docid -> ids of the rows."""
    missing: dict[str, list[str]] = {}
    for row in rows:
        for docid in (*row.positives, *row.negatives):
            if docid not in known:
                missing.setdefault(docid, []).append(row.rowid)
    return missing


def refuse_dangling(rows: Sequence[TrainingRow], known: Mapping[str, Any] | set[str], where: str) -> None:
    """Raises:
    InputError: rows name documents that are not in the corpus; the text lists them.
    """
    if missing := dangling(rows, known):
        shown = [f"{docid!r} (row {', '.join(rowids[:3])})" for docid, rowids in list(missing.items())[:20]]
        raise InputError(
            f"{where}: {len(missing)} document ids of the training rows are not in the corpus: {'; '.join(shown)}"
        )


def document_keys(documents: Iterable[Document]) -> Iterator[tuple[str, str]]:
    """(docid, key) pairs where documents with the same text, white space and case apart, share a key."""
    for document in documents:
        folded = " ".join(document.text.split()).casefold()
        yield document.docid, hashlib.sha256(folded.encode()).hexdigest()
