"""Questions with answers and gold documents, read from the shapes that data sets publish them in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentir.corpus.json_array import is_array, iter_items
from agentir.jsonl import Misfit, Rejects, as_id, iter_objects
from agentir.records import QAItem

ID_KEYS = ("qid", "id", "_id", "query_id")
QUESTION_KEYS = ("question", "query")
ANSWER_KEYS = ("answer", "answers")
ALIASES = "answer_aliases"
GOLD_KEYS = ("gold_docids", "gold_docs", "positives")
TITLE_KEYS = ("gold_titles", "supporting_facts", "paragraphs")
URL_KEYS = ("gold_urls", "urls")
DOCID_KEYS = ("docid", "id", "_id")


def read_questions(path: str | Path, rejects: Rejects | None = None) -> list[QAItem]:
    """Reads a JSON lines file with a question a line, or one JSON array of questions (both also `.gz`).

    A question has an id (`qid`, `id`, `_id` or `query_id`; integers become strings, so 7 and "007" stay different), a
    text (`question` or `query`), and optionally answers (`answer` or `answers`: a text, a number, or a list of them;
    those of `answer_aliases` are accepted, too), gold documents and a `split`. Of several keys for one thing the first
    that is set counts. Other texts, numbers and truth values become metadata; lists and objects do not. A question
    without answers or gold documents is read; whoever needs them counts it.

    Gold documents are named by ids (`gold_docids`, `gold_docs` or `positives`: ids, or objects with a `docid`), by
    titles (`gold_titles`; the `supporting_facts` of HotpotQA and 2WikiMultihopQA, as pairs or in columns; those of
    MuSiQue's `paragraphs` that are marked as supporting) and by URLs (`gold_urls`, or WebShaper's `urls`; blank ones
    name nothing).

    Args:
        path: the file.
        rejects: takes the lines that do not fit, among them blank questions and ids used before; of an array, the
            number of the item stands for the line, and the field says so. None: they are all raised at the end.

    Raises:
        InputError: the file cannot be read, its array is broken, or lines do not fit and nothing takes them.
    """
    faults = Rejects() if rejects is None else rejects
    unit = "item" if is_array(path) else "line"
    rows = iter_items(path, faults) if unit == "item" else iter_objects(path, faults)
    items: list[QAItem] = []
    places: dict[str, int] = {}
    for place, row in rows:
        try:
            item = _item(row)
            if item.qid in places:
                raise Misfit("qid", f"an id of its own ({unit} {places[item.qid]} has it already)", item.qid)
        except Misfit as misfit:
            name, *fault = misfit.args
            faults.add(path, place, f"item {place}: {name}" if unit == "item" else name, *fault)
            continue
        places[item.qid] = place
        items.append(item)
    if rejects is None:
        faults.check()
    return items


def _item(row: Mapping[str, Any]) -> QAItem:
    id_key, qid = _first(row, ID_KEYS)
    question_key, question = _first(row, QUESTION_KEYS)
    answer_key, answer = _first(row, ANSWER_KEYS)
    gold_key, gold = _first(row, GOLD_KEYS)
    url_key, urls = _first(row, URL_KEYS)
    split = row.get("split")
    if not isinstance(question, str) or not question.strip():
        raise Misfit(question_key, "a question", question)
    if split is not None and (not isinstance(split, str) or not split.strip()):
        raise Misfit("split", "a text", split)
    answers = [*_answers(answer_key, answer), *_answers(ALIASES, row.get(ALIASES))]
    used = {id_key, question_key, answer_key, gold_key, "split", ALIASES, *TITLE_KEYS, *URL_KEYS}
    return QAItem(
        qid=_identifier(id_key, qid),
        question=question,
        answers=tuple(dict.fromkeys(answers)),
        gold_docids=tuple(dict.fromkeys(_docids(gold_key, gold))),
        gold_titles=tuple(dict.fromkeys(_titles(*_first(row, TITLE_KEYS)))),
        gold_urls=tuple(dict.fromkeys(url.strip() for url in _texts(url_key, urls) if url.strip())),
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


def _titles(key: str, value: Any) -> Iterator[str]:
    if value is None:
        return
    titles = {"gold_titles": _texts, "supporting_facts": _fact_titles, "paragraphs": _paragraph_titles}[key](key, value)
    for title in titles:
        if not title.strip():
            raise Misfit(key, "a title", title)
        yield title


def _fact_titles(key: str, value: Any) -> Iterator[str]:
    """Of pairs of title and number of a sentence, or of an object that holds both as columns."""
    if isinstance(value, dict):
        titles = value.get("title")
        if not isinstance(titles, list):
            raise Misfit(f"{key}.title", "a list of titles", titles)
        yield from _texts(f"{key}.title", titles)
        return
    if not isinstance(value, list):
        raise Misfit(key, "a list of [title, number of a sentence], or an object with lists title and sent_id", value)
    for fact in value:
        if not isinstance(fact, list) or len(fact) != 2 or not isinstance(fact[0], str) or type(fact[1]) is not int:
            raise Misfit(key, "pairs [title, number of a sentence]", fact)
        yield fact[0]


def _paragraph_titles(key: str, value: Any) -> Iterator[str]:
    """Of those marked as supporting; paragraphs of another layout have no such mark, and name no gold."""
    for paragraph in value if isinstance(value, list) else ():
        if not isinstance(paragraph, dict) or (marked := paragraph.get("is_supporting")) is None:
            continue
        if not isinstance(marked, bool):
            raise Misfit(f"{key}.is_supporting", "true or false", marked)
        if marked:
            yield from _texts(f"{key}.title", [paragraph.get("title")])


def _texts(key: str, value: Any) -> Iterator[str]:
    for text in value if isinstance(value, list) else [] if value is None else [value]:
        if not isinstance(text, str):
            raise Misfit(key, "a text or a list of texts", text)
        yield text


def _metadata(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None
