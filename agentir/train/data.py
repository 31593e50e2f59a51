"""Training rows: queries with the ids of their positives and hard negatives, from any of the field's layouts.

Read are rows of

- `agentir synth build` (an `examples` artifact);
- Tevatron and AgentIR: `query_id`, `query`, `positive_passages`, `negative_passages` (objects with `docid`, `text` and
  perhaps `title`), or the newer `query_text`, `positive_document_ids`, `negative_document_ids` beside a corpus; also
  `positive_ids`, `negative_ids`;
- sentence-transformers: a column of queries (`query`, `anchor` or `question`), one of positives (`positive` or `answer`) and
  any number of negatives (`negative`, `negative_1` ...), each with one text a row;
- lists of texts: `positives` or `pos`, `negatives` or `neg`.

`positive`, `answer` and `negative` hold a text or a list of texts; for the others a bare text is refused, since it may be a
list that lost its brackets. A query that is AgentIR's rendered text is taken apart into reasoning and query, so that it is
rendered once and its reasoning may be shortened; `reasoning`, `sub_query` and `question` beside it count before that.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentir.embed.history import Histories
from agentir.embed.template import EMPTY
from agentir.errors import InputError
from agentir.jsonl import MAX_SHOWN, Rejects, add_validation_faults, as_id, dumps
from agentir.records import Document, SearchQuery, SubQuery, TrainingExample
from agentir.train.sources import SourceRow, iter_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """One query to train on.

    `question` names what the query was asked for: rows of one question are never each other's negatives. `gold` holds
    the gold documents of the question and `pool` the documents that the oracle truly ranked, best first, where they are
    known. `place` is the file or data set with the line or row that it was read from.
    """

    rowid: str
    question: str
    query: SearchQuery
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    gold: tuple[str, ...] = ()
    pool: tuple[str, ...] = ()
    place: str = field(default="", compare=False)

    def __str__(self) -> str:
        if f"/{self.place}".endswith(f"/{self.rowid}"):
            return self.place
        return f"row {self.rowid}" + (f", {self.place}" if self.place else "")


_EXAMPLE = TypeAdapter(TrainingExample)
_OPENING, _BETWEEN = "Reasoning: ", "\n\nQuery: "
_TURN = re.compile(r"_turn(\d+)(?:\.(\d+))?$")
_QUERY_KEYS = ("query", "query_text", "anchor", "question")
_ID_KEYS = (("positive_ids", "positive_document_ids"), ("negative_ids", "negative_document_ids"))
_PASSAGE_KEYS = ("positive_passages", "negative_passages")
_TEXT_KEYS = (("positive", "positives", "pos", "answer"), ("negative", "negatives", "neg"))
_MAY_BE_ONE_TEXT = re.compile(r"positive|answer|negative(_\d+)?")
_NUMBERED = re.compile(r"negative_(\d+)")


def read_rows(source: str | Path, rejects: Rejects, documents: dict[str, Document]) -> list[TrainingRow]:
    """Reads training rows.

    Args:
        source: a file, a folder, or a data set of the Hugging Face hub, see `agentir.train.sources.iter_rows`.
        rejects: where rows that do not fit go.
        documents: documents by docid; texts that stand in the rows themselves are added to it.

    Raises:
        InputError: there is no such source, it cannot be read, or it holds no rows at all.
    """
    rows: list[TrainingRow] = []
    places: dict[str, str] = {}
    before = len(rejects.items)
    for found in iter_rows(source, rejects):
        faults = _Faults(found, rejects)
        row = _read_row(found, faults, documents)
        if row is None:
            continue
        if row.rowid in places:
            faults.add("query_id", f"an id of its own ({places[row.rowid]} has it)", row.rowid)
            continue
        places[row.rowid] = row.place
        rows.append(row)
    if not rows and len(rejects.items) == before:
        raise InputError(f"{source}: expected training rows, found none")
    return rows


class _Faults:
    """Notes what does not fit in one row."""

    def __init__(self, row: SourceRow, rejects: Rejects) -> None:
        self.row = row
        self.rejects = rejects
        self.number = 0

    def add(self, name: str, expected: str, found: object) -> None:
        row = self.row
        self.number += 1
        self.rejects.add(
            row.file, row.number, f"{row.unit} {row.number}: {name}" if row.unit else name, expected, found
        )


def _read_row(row: SourceRow, faults: _Faults, documents: dict[str, Document]) -> TrainingRow | None:
    value, place = row.value, f"{row.file}:{row.number}"
    if "subquery" in value:
        return _from_example(row, place, faults.rejects)
    rowid = as_id(value.get("query_id", row.rowid))
    if rowid is None:
        faults.add("query_id", "an id (a text or an integer)", value["query_id"])
    query = _query(value, faults)
    positives, negatives = (_side(value, side, faults, documents) for side in (0, 1))
    if not faults.number and not positives:
        faults.add("positive", "at least one positive", value)
    if faults.number:
        return None
    assert query is not None and rowid is not None
    return TrainingRow(
        rowid=rowid,
        question=_TURN.sub("", rowid) if "query_id" in value else query.question or query.query,
        query=query,
        positives=positives,
        negatives=negatives,
        place=place,
    )


def _query(value: Mapping[str, Any], faults: _Faults) -> SearchQuery | None:
    key = next((key for key in _QUERY_KEYS if key in value), _QUERY_KEYS[0])
    text = value.get(key)
    if not isinstance(text, str) or not text.strip():
        faults.add(key, "a text that is not blank", text)
        return None
    parts = {"query": "sub_query", "reasoning": "reasoning"} | ({} if key == "question" else {"question": "question"})
    given: dict[str, str] = {}
    for name, column in parts.items():
        if not isinstance(part := value.get(column, ""), str):
            faults.add(column, "a text", part)
        elif part.strip():
            given[name] = part
    parsed = parse_query(text)
    return SearchQuery(
        query=given.get("query", parsed.query),
        reasoning=given.get("reasoning", parsed.reasoning),
        question=given.get("question", ""),
    )


def parse_query(text: str) -> SearchQuery:
    """The search that a training text stands for; AgentIR's rendered form is taken apart."""
    reasoning, between, query = text.removeprefix(_OPENING).rpartition(_BETWEEN)
    if not text.startswith(_OPENING) or not between or not query.strip():
        return SearchQuery(query=text)
    return SearchQuery(query=query, reasoning="" if reasoning == EMPTY else reasoning)


def _from_example(row: SourceRow, place: str, rejects: Rejects) -> TrainingRow | None:
    try:
        example: TrainingExample = _EXAMPLE.validate_json(json.dumps(row.value, default=str))
    except ValidationError as error:
        add_validation_faults(rejects, row.file, row.number, error)
        return None
    sub = example.subquery
    if not example.positive_docids:
        rejects.add(row.file, row.number, "positive_docids", "at least one positive", [])
        return None
    return TrainingRow(
        rowid=sub.subqid,
        question=sub.qid,
        query=SearchQuery(query=sub.query, reasoning=sub.reasoning, question=sub.question),
        positives=example.positive_docids,
        negatives=example.negative_docids,
        gold=example.gold_docids,
        pool=example.oracle_order,
        place=place,
    )


def _side(value: Mapping[str, Any], side: int, faults: _Faults, documents: dict[str, Document]) -> tuple[str, ...]:
    """The docids of a row's positives (side 0) or negatives (1); texts that stand in the row are added to `documents`."""
    if (key := next((key for key in _ID_KEYS[side] if key in value), None)) is not None:
        return tuple(dict.fromkeys(_ids(value[key], key, faults)))
    if (key := _PASSAGE_KEYS[side]) in value:
        passages = _passages(value[key], key, faults)
    else:
        passages = [document for key in _text_keys(value, side) for document in _texts(value.get(key), key, faults)]
    for document in passages:
        if documents.setdefault(document.docid, document) != document:
            faults.add("docid", "the text that an earlier row has for it", document.docid)
    return tuple(dict.fromkeys(document.docid for document in passages))


def _text_keys(value: Mapping[str, Any], side: int) -> list[str]:
    """The fields that hold texts; of the positives at least one, so that its absence is noted."""
    first = next((key for key in _TEXT_KEYS[side] if key in value), None)
    if side == 0:
        return [first or _TEXT_KEYS[side][0]]
    numbered = [(int(match[1]), key) for key in value if (match := _NUMBERED.fullmatch(key))]
    return [*([first] if first else []), *(key for _, key in sorted(numbered))]


def _list(value: Any, key: str, what: str, faults: _Faults) -> list[Any]:
    if isinstance(value, list):
        return value
    faults.add(key, what, value)
    return []


def _passages(value: Any, key: str, faults: _Faults) -> list[Document]:
    if isinstance(value, dict):  # a list of objects as `datasets` keeps it under the type Sequence
        value = _transposed(value)
    documents = []
    for index, item in enumerate(_list(value, key, "a list of passages with docid and text", faults)):
        docid = as_id(item.get("docid")) if isinstance(item, dict) else None
        if docid is None or not isinstance(item.get("text"), str):
            faults.add(f"{key}.{index}", "a passage with docid and text", item)
            continue
        documents.append(Document(docid=docid, text=item["text"], title=str(item.get("title") or "")))
    return documents


def _transposed(columns: Mapping[str, Any]) -> Any:
    """Columns as a list of objects; as they are where they are not lists of one length."""
    lists = [column for column in columns.values() if isinstance(column, list)]
    if not lists or len(lists) < len(columns) or len({len(column) for column in lists}) > 1:
        return columns
    return [dict(zip(columns, items, strict=True)) for items in zip(*lists, strict=True)]


def _ids(value: Any, key: str, faults: _Faults) -> list[str]:
    ids = []
    for index, item in enumerate(_list(value, key, "a list of document ids", faults)):
        if (docid := as_id(item)) is None:
            faults.add(f"{key}.{index}", "a document id (a text or an integer)", item)
            continue
        ids.append(docid)
    return ids


def _texts(value: Any, key: str, faults: _Faults) -> list[Document]:
    what = "a list of texts"
    if _MAY_BE_ONE_TEXT.fullmatch(key):
        what = "a text or a list of texts"
        value = [value] if isinstance(value, str) else value
    documents = []
    for index, item in enumerate(_list(value, key, what, faults)):
        if not isinstance(item, str) or not item.strip():
            faults.add(f"{key}.{index}", "a text that is not blank", item)
            continue
        documents.append(Document(docid=f"text-{hashlib.sha256(item.encode()).hexdigest()[:24]}", text=item))
    return documents


def with_history(rows: Iterable[TrainingRow], histories: Histories) -> list[TrainingRow]:
    """The rows with what the same episode searched for before.

    Args:
        rows: of sub-queries, whose ids they have.
        histories: the earlier searches of each sub-query.

    Raises:
        InputError: rows have ids that are not those of sub-queries, or of none that is listed there.
    """
    rows = list(rows)
    turns = [_TURN.search(row.rowid) for row in rows]
    if unknown := [row for row, turn in zip(rows, turns, strict=True) if turn is None]:
        raise InputError(
            f"history: expected rows of sub-queries, with ids like q1_turn2, found {len(unknown)} of {len(rows)} rows with "
            f"others: {_shown(unknown)}; train on the examples of `agentir synth build`, or without history"
        )
    filled = []
    for row, turn in zip(rows, turns, strict=True):
        assert turn is not None
        query = row.query
        subquery = SubQuery(
            qid=row.question,
            turn=int(turn[1]),
            call=int(turn[2] or 0),
            question=query.question,
            reasoning=query.reasoning,
            query=query.query,
        )
        filled.append(replace(row, query=replace(query, history=histories.before(subquery))))
    return filled


def refuse_shared_ids(rows: Iterable[TrainingRow], dev_rows: Iterable[TrainingRow]) -> None:
    """Raises:
    InputError: development rows have ids of training rows, so that they are the same or cannot be told apart.
    """
    places = {row.rowid: row.place for row in rows}
    if shared := [row for row in dev_rows if row.rowid in places]:
        raise InputError(
            f"dev: expected rows with ids of their own, found {len(shared)} that training rows have, too: "
            f"{_shown(shared)}; take these rows out of one side, or give them other ids (files of other names)"
        )


def dangling(rows: Iterable[TrainingRow], known: Collection[str]) -> dict[str, list[str]]:
    """Document ids that rows name but nobody knows: docid -> the rows, as `str` tells them."""
    missing: dict[str, list[str]] = {}
    for row in rows:
        for docid in (*row.positives, *row.negatives):
            if docid not in known:
                missing.setdefault(docid, []).append(str(row))
    return missing


def refuse_dangling(rows: Iterable[TrainingRow], known: Collection[str], where: str) -> None:
    """Raises:
    InputError: rows name documents that are not in the corpus; the text lists them.
    """
    if missing := dangling(rows, known):
        shown = [f"{docid!r} ({'; '.join(named[:3])})" for docid, named in list(missing.items())[:MAX_SHOWN]]
        raise InputError(
            f"{where}: {len(missing)} document ids of the training rows are not in the corpus: {', '.join(shown)}; give the "
            "corpus that the rows were made from"
        )


def digest(rows: Iterable[TrainingRow], documents: Mapping[str, Document]) -> str:
    """Identifies rows with the texts of their documents, for sources that are no files of this machine."""
    total = hashlib.sha256()
    named: set[str] = set()
    for row in rows:
        total.update(dumps(replace(row, place="")).encode())
        named.update((*row.positives, *row.negatives))
    for docid in sorted(named & documents.keys()):
        total.update(dumps(documents[docid]).encode())
    return total.hexdigest()


def _shown(rows: Sequence[TrainingRow]) -> str:
    more = [f"and {len(rows) - MAX_SHOWN} more"] if len(rows) > MAX_SHOWN else []
    return "; ".join([*map(str, rows[:MAX_SHOWN]), *more])
