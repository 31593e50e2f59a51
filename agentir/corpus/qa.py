"""Questions with answers and gold documents, read from the shapes that data sets publish them in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentir.jsonl import Misfit, Rejects, as_id, iter_objects
from agentir.records import QAItem

ID_KEYS = ("qid", "id", "_id", "query_id")
QUESTION_KEYS = ("question", "query")
ANSWER_KEYS = ("answer", "answers")
GOLD_KEYS = ("gold_docids", "gold_docs", "positives")
DOCID_KEYS = ("docid", "id", "_id")


def read_questions(path: str | Path, rejects: Rejects) -> list[QAItem]:
    """Reads a JSON lines file (also `.gz`) with a question a line.

    A line has an id (`qid`, `id`, `_id` or `query_id`; integers become strings, so 7 and "007" stay different), a
    question (`question` or `query`), and optionally answers (`answer` or `answers`: a text, a number, or a list of
    them), gold documents (`gold_docids`, `gold_docs` or `positives`: ids, or objects with a `docid`) and a `split`. Of
    several keys for one thing the first that is set counts. Other texts, numbers and truth values become metadata;
    lists and objects do not. A question without answers or gold documents is read; whoever needs them counts it.

    Args:
        path: the file.
        rejects: takes the lines that do not fit, among them blank questions and ids used before.
    """
    items: list[QAItem] = []
    lines: dict[str, int] = {}
    for line, row in iter_objects(path, rejects):
        try:
            item = _item(row)
        except Misfit as misfit:
            rejects.add(path, line, *misfit.args)
            continue
        if item.qid in lines:
            rejects.add(path, line, "qid", f"an id of its own (line {lines[item.qid]} has it already)", item.qid)
            continue
        lines[item.qid] = line
        items.append(item)
    return items


def _item(row: Mapping[str, Any]) -> QAItem:
    id_key, qid = _first(row, ID_KEYS)
    question_key, question = _first(row, QUESTION_KEYS)
    answer_key, answer = _first(row, ANSWER_KEYS)
    gold_key, gold = _first(row, GOLD_KEYS)
    split = row.get("split")
    if not isinstance(question, str) or not question.strip():
        raise Misfit(question_key, "a question", question)
    if split is not None and (not isinstance(split, str) or not split.strip()):
        raise Misfit("split", "a text", split)
    used = {id_key, question_key, answer_key, gold_key, "split"}
    return QAItem(
        qid=_identifier(id_key, qid),
        question=question,
        answers=tuple(dict.fromkeys(_answers(answer_key, answer))),
        gold_docids=tuple(dict.fromkeys(_docids(gold_key, gold))),
        split=split,
        metadata={
            key: text for key, value in row.items() if key not in used and (text := _metadata(value)) is not None
        },
    )


def _first(row: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, Any]:
    """The first of the keys that is set, with its value; the first key and None where none is."""
    return next(((key, row[key]) for key in keys if row.get(key) is not None), (keys[0], None))


def _identifier(key: str, value: Any) -> str:
    if (identifier := as_id(value)) is None:
        raise Misfit(key, "an id (a text or an integer)", value)
    return identifier


def _answers(key: str, value: Any) -> Iterator[str]:
    if value is None or value == "":
        return
    for answer in value if isinstance(value, list) else [value]:
        if isinstance(answer, int | float) and not isinstance(answer, bool):
            yield str(answer)
        elif isinstance(answer, str) and answer.strip():
            yield answer
        else:
            raise Misfit(key, "a text, a number or a list of them", answer)


def _docids(key: str, value: Any) -> Iterator[str]:
    if value is None:
        return
    # A bare id counts as a list of one: taken as a sequence, it would fall apart into characters.
    for entry in value if isinstance(value, list) else [value]:
        yield _identifier(key, _first(entry, DOCID_KEYS)[1] if isinstance(entry, dict) else entry)


def _metadata(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None
