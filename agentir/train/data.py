"""Training rows: queries with the ids of their positives and hard negatives, from any of the field's layouts.

Read are the `examples` artifact of `agentir synth build`, Tevatron/AgentIR JSON lines (`positive_passages`,
`negative_passages`), the columns of sentence-transformers (`anchor`, `positive`, `negative`, `negative_1` ...), rows of
plain texts (`query`, `positive(s)` or `pos`, `negative(s)` or `neg`), and rows of ids (`positive_ids`, `negative_ids`)
beside a corpus. A bare string where a list of texts belongs is refused. A query that is AgentIR's rendered text is taken
apart into reasoning and query, so that it is rendered once and its reasoning may be shortened.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentir.embed.template import EMPTY
from agentir.errors import InputError
from agentir.jsonl import Rejects, add_validation_faults, as_id, iter_objects
from agentir.records import Document, SearchQuery, TrainingExample


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """One query to train on.

    `question` names what the query was asked for: rows of one question are never each other's negatives. `gold` holds
    the gold documents of the question and `pool` the documents the oracle ranked, where they are known.
    """

    rowid: str
    question: str
    query: SearchQuery
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    gold: tuple[str, ...] = ()
    pool: tuple[str, ...] = ()


_EXAMPLE = TypeAdapter(TrainingExample)
_OPENING, _BETWEEN = "Reasoning: ", "\n\nQuery: "
_NEGATIVE_COLUMN = re.compile(r"negative(?:_(\d+))?")
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
    rows: list[TrainingRow] = []
    lines: dict[str, int] = {}
    for number, value in iter_objects(path, rejects):
        row = _read_row(value, str(path), number, rejects, documents)
        if row is None:
            continue
        if row.rowid in lines:
            rejects.add(path, number, "query_id", f"an id of its own (line {lines[row.rowid]} has it)", row.rowid)
            continue
        lines[row.rowid] = number
        rows.append(row)
    return rows


def _read_row(
    value: dict[str, Any], path: str, number: int, rejects: Rejects, documents: dict[str, Document]
) -> TrainingRow | None:
    if "subquery" in value:
        return _from_example(value, path, number, rejects)
    before = len(rejects.items)
    if "anchor" in value:
        value = _from_columns(value)
    query = value.get("query", value.get("query_text"))
    if not isinstance(query, str) or not query.strip():
        rejects.add(path, number, "query", "a text that is not blank", query)
    rowid = as_id(value.get("query_id", f"line{number}"))
    if rowid is None:
        rejects.add(path, number, "query_id", "an id (a text or an integer)", value["query_id"])
    positives, negatives = (_side(value, side, path, number, rejects, documents) for side in (0, 1))
    if len(rejects.items) == before and not positives:
        rejects.add(path, number, "positive", "at least one positive", value)
    if len(rejects.items) > before:
        return None
    assert isinstance(query, str) and rowid is not None
    return TrainingRow(
        rowid=rowid,
        question=rowid.rsplit("_turn", 1)[0] if "query_id" in value else query,
        query=parse_query(query),
        positives=positives,
        negatives=negatives,
    )


def parse_query(text: str) -> SearchQuery:
    """The search that a training text stands for; AgentIR's rendered form is taken apart."""
    reasoning, between, query = text.removeprefix(_OPENING).rpartition(_BETWEEN)
    if not text.startswith(_OPENING) or not between or not query.strip():
        return SearchQuery(query=text)
    return SearchQuery(query=query, reasoning="" if reasoning == EMPTY else reasoning)


def _from_columns(value: dict[str, Any]) -> dict[str, Any]:
    """A row of sentence-transformers columns as one of plain texts."""
    found = [(key, match) for key in value if (match := _NEGATIVE_COLUMN.fullmatch(key))]
    negatives = [value[key] for key, match in sorted(found, key=lambda each: int(each[1][1] or 0))]
    return {"query": value["anchor"], "positive": [value.get("positive")], "negative": negatives}


def _side(
    value: dict[str, Any], side: int, path: str, number: int, rejects: Rejects, documents: dict[str, Document]
) -> tuple[str, ...]:
    """The docids of a row's positives (side 0) or negatives (1); texts that stand in the row are added to `documents`."""
    if (key := next((key for key in _ID_KEYS[side] if key in value), None)) is not None:
        return _ids(value[key], key, path, number, rejects)
    if _PASSAGE_KEYS[side] in value:
        passages = _passages(value[_PASSAGE_KEYS[side]], _PASSAGE_KEYS[side], path, number, rejects)
    else:
        key = next((key for key in _TEXT_KEYS[side] if key in value), _TEXT_KEYS[side][0])
        passages = _texts(value.get(key, [] if side else None), key, path, number, rejects)
    for document in passages:
        if documents.setdefault(document.docid, document) != document:
            rejects.add(path, number, "docid", "the text that an earlier row has for it", document.docid)
    return tuple(document.docid for document in passages)


def _from_example(value: dict[str, Any], path: str, number: int, rejects: Rejects) -> TrainingRow | None:
    try:
        example: TrainingExample = _EXAMPLE.validate_json(json.dumps(value))
    except ValidationError as error:
        add_validation_faults(rejects, path, number, error)
        return None
    sub = example.subquery
    return TrainingRow(
        rowid=sub.subqid,
        question=sub.qid,
        query=SearchQuery(query=sub.query, reasoning=sub.reasoning, question=sub.question),
        positives=example.positive_docids,
        negatives=example.negative_docids,
        gold=example.gold_docids,
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
