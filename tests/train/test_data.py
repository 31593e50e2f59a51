"""Training rows from every layout, and what is wrong with those that do not fit."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentir.corpus.loaders import read_documents
from agentir.embed.history import Histories
from agentir.embed.template import template_for
from agentir.errors import InputError
from agentir.jsonl import Rejects, write_jsonl
from agentir.records import Document, PastSearch, SearchQuery, SubQuery, TrainingExample
from agentir.train.data import (
    TrainingRow,
    digest,
    parse_query,
    read_rows,
    refuse_dangling,
    refuse_shared_ids,
    with_history,
)

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
    with pytest.raises(InputError, match=r"corpus\.jsonl: 1 document ids .* '13' \([^ ]*train\.jsonl:1\)"):
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
        ({"query": "q"}, "positive: expected a text or a list of texts, found None"),
        ({"query": "q", "pos": "p"}, "pos: expected a list of texts, found 'p'"),
        ({"anchor": "q", "positive": 5}, "positive: expected a text or a list of texts, found 5"),
        ({"anchor": "q", "positive": "p", "negative_1": " "}, r"negative_1\.0: expected a text that is not blank"),
        ({"query": "q", "reasoning": 3, "positive": "p"}, "reasoning: expected a text, found 3"),
        ({"answer": "p"}, "query: expected a text that is not blank, found None"),
        ({"query": "q", "pos": []}, "positive: expected at least one positive"),
        ({"query": "q", "pos": ["p", 3]}, r"pos\.1: expected a text that is not blank, found 3"),
        ({"query": "q", "positive_ids": [True]}, r"positive_ids\.0: expected a document id .*, found True"),
        (
            {"query": "q", "positive_passages": [{"text": "t"}]},
            r"positive_passages\.0: expected a passage with docid and text",
        ),
        (
            {"query": "q", "positive_passages": {"docid": ["1"], "text": []}},
            "positive_passages: expected a list of passages with docid and text",
        ),
        ({"query": "q", "positive_passages": []}, "positive: expected at least one positive"),
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


@pytest.mark.parametrize(
    ("line", "positives", "negatives"),
    [
        ({"anchor": "q", "positive": "p", "negative_10": "n10", "negative_2": "n2"}, ["p"], ["n2", "n10"]),
        ({"query": "q", "positive": "p", "negative": "n", "negative_1": "n1"}, ["p"], ["n", "n1"]),
        ({"question": "q", "answer": "p"}, ["p"], []),
        ({"query": "q", "answer": "Lima", "positive": "p", "negative": ["n", "m"]}, ["p"], ["n", "m"]),
        ({"query": "q", "pos": ["p", "r"], "neg": ["n"]}, ["p", "r"], ["n"]),
        ({"query_text": "q", "positives": ["p", "p"], "negatives": []}, ["p"], []),
    ],
)
def test_texts_in_columns_or_lists(
    tmp_path: Path, line: dict[str, object], positives: list[str], negatives: list[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(line) + "\n")
    (row,), documents = read(path)
    assert row.query == SearchQuery(query="q") and row.question == "q"
    assert [documents[docid].text for docid in row.positives] == positives
    assert [documents[docid].text for docid in row.negatives] == negatives


def test_ids_of_the_newer_tevatron_rows_and_the_columns_beside_the_query(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    newer = {"query_id": 7, "query_text": "q", "positive_document_ids": [1, "01"], "negative_document_ids": ["2"]}
    query = "Reasoning: r\n\nQuery: a\n\nQuery: b"
    own = {"query": query, "reasoning": "r", "sub_query": "a\n\nQuery: b", "question": "Who?", "positive": "p"}
    path.write_text(json.dumps(newer) + "\n" + json.dumps(own) + "\n")
    rows, _ = read(path)
    assert (rows[0].rowid, rows[0].positives, rows[0].negatives) == ("7", ("1", "01"), ("2",))
    assert rows[1].query == SearchQuery(query="a\n\nQuery: b", reasoning="r", question="Who?")
    assert (rows[1].rowid, rows[1].question, rows[1].place) == ("rows.jsonl:2", "Who?", f"{path}:2")


@pytest.mark.parametrize(
    ("query_id", "question"),
    [("w7_turn2", "w7"), ("w7_turn2.1", "w7"), ("how_turnips_grow", "how_turnips_grow"), ("a_turn1_turn2", "a_turn1")],
)
def test_question_of_an_id(tmp_path: Path, query_id: str, question: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"query_id": query_id, "query": "q", "positive": "p"}) + "\n")
    assert read(path)[0][0].question == question


@pytest.mark.parametrize("content", ["", "\n\n", "[]"])
def test_file_without_rows_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=r"rows\.jsonl: expected training rows, found none"):
        read(path)


def example(turn: int, query: str, qid: str = "q") -> TrainingExample:
    return TrainingExample(
        subquery=SubQuery(qid=qid, turn=turn, call=0, question="Who?", reasoning=f"r{turn}", query=query),
        positive_docids=("p",),
        negative_docids=("n",),
        oracle_order=("p", "x", "n"),
        gold_docids=("g",),
    )


def test_examples_keep_gold_and_the_order_of_the_oracle_and_need_a_positive(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    write_jsonl(path, [example(0, "a"), replace(example(1, "b"), positive_docids=())])
    rejects = Rejects(set_aside=True)
    (row,), _ = read(path, rejects)
    assert (row.rowid, row.gold, row.pool) == ("q_turn0", ("g",), ("p", "x", "n"))
    assert [str(item) for item in rejects.items] == [
        f"{path}:2: positive_docids: expected at least one positive, found []"
    ]


def test_history_comes_from_the_earlier_turns_of_the_episode(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    write_jsonl(path, [example(0, "a"), example(2, "c")])
    rows, _ = read(path)
    histories = Histories([example(turn, query).subquery for turn, query in enumerate("abc")])
    filled = with_history(rows, histories)
    assert [row.query.history for row in filled] == [
        (),
        (PastSearch(query="a", reasoning="r0"), PastSearch(query="b", reasoning="r1")),
    ]
    assert [replace(row, query=replace(row.query, history=())) for row in filled] == rows


def test_rows_of_no_known_sub_query_get_no_history(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"query": "q", "positive": "p"}) + "\n")
    rows, _ = read(path)
    with pytest.raises(InputError, match=r"history: expected rows of sub-queries.*1 of 1 rows.*train\.jsonl:1"):
        with_history(rows, Histories([]))
    write_jsonl(path, [example(0, "a", qid="other")])
    with pytest.raises(InputError, match=r"'other_turn0': .* found no such sub-query"):
        with_history(read(path)[0], Histories([example(0, "a").subquery]))


def test_ids_shared_by_training_and_development_rows_are_refused(tmp_path: Path) -> None:
    sides = []
    for name, ids in (("train", ["a", "b"]), ("dev", ["b", "c"])):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"query_id": one, "query": "q", "positive": "p"}) + "\n" for one in ids))
        sides.append(read(path)[0])
    with pytest.raises(InputError, match=r"found 1 that training rows have, too: row b, .*dev\.jsonl:1;"):
        refuse_shared_ids(*sides)
    refuse_shared_ids(sides[0], sides[1][1:])


def test_digest_is_that_of_the_rows_and_their_texts_wherever_they_lie(tmp_path: Path) -> None:
    def made(folder: str, text: str) -> str:
        path = tmp_path / folder / "rows.jsonl"
        path.parent.mkdir()
        passages = [{"docid": "d", "text": text}]
        path.write_text(json.dumps({"query": "q", "positive_passages": passages}) + "\n")
        return digest(*read(path))

    assert made("a", "text") == made("b", "text") != made("c", "other")


def test_repeated_ids_and_texts_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    def line(query_id: object, text: str) -> str:
        passages = [{"docid": "d", "text": text}]
        return json.dumps({"query_id": query_id, "query": "q", "positive_passages": passages}) + "\n"

    path = tmp_path / "rows.jsonl"
    path.write_text(line("a", "t") + line("a", "t") + line("b", "other") + line(None, "t"))
    with pytest.raises(InputError) as error:
        read(path)
    for text in (
        f":2: query_id: expected an id of its own ({path}:1 has it)",
        ":3: docid: expected the text",
        ":4: query_id: expected an id",
    ):
        assert text in str(error.value)
