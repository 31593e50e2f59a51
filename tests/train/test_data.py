"""Training rows from every layout, and what is wrong with those that do not fit."""

import json
from pathlib import Path

import pytest

from agentir.corpus.loaders import read_documents
from agentir.embed.template import template_for
from agentir.errors import InputError
from agentir.jsonl import Rejects
from agentir.records import Document
from agentir.train.data import TrainingRow, parse_query, read_rows, refuse_dangling

CASES = Path(__file__).parents[1] / "data" / "cases"


def read(path: Path, rejects: Rejects | None = None) -> tuple[list[TrainingRow], dict[str, Document]]:
    documents: dict[str, Document] = {}
    collected = rejects if rejects is not None else Rejects()
    rows = read_rows(path, collected, documents)
    collected.check()
    return rows, documents


def test_rows_with_no_one_and_nine_negatives() -> None:
    rows, documents = read(CASES / "T09" / "train.jsonl")
    assert [(len(row.positives), len(row.negatives)) for row in rows] == [(1, 0), (1, 1), (2, 9)]
    assert [documents[docid].text for docid in rows[2].positives] == ["p3a", "p3b"]


def test_bad_line_among_good_ones_stops_naming_file_and_line() -> None:
    with pytest.raises(InputError, match=r"train\.jsonl:4: expected a JSON object"):
        read(CASES / "T13" / "train.jsonl")
    rejects = Rejects(set_aside=True)
    rows, _ = read(CASES / "T13" / "train.jsonl", rejects)
    assert [row.query.query for row in rows] == ["q1", "q2", "q4"]
    assert sum(rejects.counts().values()) == 1


def test_bare_string_is_no_list_of_texts() -> None:
    with pytest.raises(InputError) as error:
        read(CASES / "S13" / "pairs.jsonl")
    assert "pairs.jsonl:1: pos: expected a list of texts, found 'Basalt is a volcanic rock.'" in str(error.value)
    assert "pairs.jsonl:2: neg: expected a list of texts" in str(error.value)


def test_document_ids_are_texts_and_dangling_ones_are_named() -> None:
    documents = {document.docid: document for document in read_documents(CASES / "T17" / "corpus.jsonl", Rejects())}
    rows = read_rows(CASES / "T17" / "train.jsonl", Rejects(), documents)
    assert rows[0].positives == ("12",) and rows[0].negatives == ("13", "013")
    with pytest.raises(InputError, match=r"1 document ids .* '13' \(row line1\)"):
        refuse_dangling(rows, documents, "corpus.jsonl")


def test_tevatron_rows_are_grouped_by_question(tmp_path: Path) -> None:
    line = {
        "query_id": "w7_turn2",
        "query": "Reasoning: Empty\n\nQuery: q",
        "positive_passages": [{"docid": 5, "text": "p", "title": "T"}],
        "negative_passages": [{"docid": "6", "text": "n"}],
    }
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(line) + "\n")
    rows, documents = read(path)
    assert rows[0].question == "w7" and rows[0].positives == ("5",)
    assert documents["5"] == Document(docid="5", text="p", title="T")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ({"query": " ", "pos": ["p"]}, "query: expected a text that is not blank"),
        ({"query": "q"}, "positive: expected a list of texts, found None"),
        ({"query": "q", "pos": []}, "positive: expected at least one positive"),
        ({"query": "q", "pos": ["p", 3]}, r"pos\.1: expected a text that is not blank, found 3"),
        ({"query": "q", "positive_ids": [True]}, r"positive_ids\.0: expected a document id .*, found True"),
        (
            {"query": "q", "positive_passages": [{"text": "t"}]},
            r"positive_passages\.0: expected a passage with docid and text",
        ),
        ({"subquery": {"qid": 1}}, r"subquery\.qid: expected a valid string"),
    ],
)
def test_row_that_does_not_fit_is_named(tmp_path: Path, line: dict[str, object], text: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(InputError, match=r"rows\.jsonl:1: " + text):
        read(path)


@pytest.mark.parametrize(
    ("text", "reasoning", "query"),
    [
        ("Reasoning: first this\n\nthen that\n\nQuery: capital of peru", "first this\n\nthen that", "capital of peru"),
        ("Reasoning: Empty\n\nQuery: q", "", "q"),
        ("Reasoning: about\n\nQuery: syntax\n\nQuery: q", "about\n\nQuery: syntax", "q"),
        ("plain", "", "plain"),
        ("Reasoning: without a query", "", "Reasoning: without a query"),
        ("Query: q", "", "Query: q"),
    ],
)
def test_rendered_query_is_taken_apart_and_rendered_once(text: str, reasoning: str, query: str) -> None:
    parsed = parse_query(text)
    assert (parsed.reasoning, parsed.query) == (reasoning, query)
    if text.startswith("Reasoning: ") and "Query" in text:
        assert template_for("reasoning+query").render(parsed) == text


def test_columns_of_sentence_transformers(tmp_path: Path) -> None:
    line = {"anchor": "q", "positive": "p", "negative_2": "n2", "negative_1": "n1"}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(line) + "\n" + json.dumps({"anchor": "r", "positive": 5}) + "\n")
    rejects = Rejects(set_aside=True)
    rows, documents = read(path, rejects)
    assert [documents[docid].text for docid in (*rows[0].positives, *rows[0].negatives)] == ["p", "n1", "n2"]
    assert [(item.line, item.field) for item in rejects.items] == [(2, "positive.0")]


def test_repeated_ids_and_texts_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    def line(query_id: object, text: str) -> str:
        passages = [{"docid": "d", "text": text}]
        return json.dumps({"query_id": query_id, "query": "q", "positive_passages": passages}) + "\n"

    path = tmp_path / "rows.jsonl"
    path.write_text(line("a", "t") + line("a", "t") + line("b", "other") + line(None, "t"))
    with pytest.raises(InputError) as error:
        read(path)
    for text in (
        ":2: query_id: expected an id of its own (line 1",
        ":3: docid: expected the text",
        ":4: query_id: expected an id",
    ):
        assert text in str(error.value)
