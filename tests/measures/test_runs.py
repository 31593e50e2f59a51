"""Runs and qrels: strict reading, trec_eval's order, and writing that every reader understands alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st

from agentir.errors import InputError
from agentir.jsonl import Rejects
from agentir.measures.runs import (
    fold_chunks,
    judged_only,
    read_qrels,
    read_run,
    tied_queries,
    trec_order,
    write_qrels,
    write_run,
)
from agentir.records import Hit

CASES = Path(__file__).parent.parent / "data" / "cases"
SCORES = st.floats(min_value=-1e30, max_value=1e30, width=64)
DOCIDS = st.text(st.characters(codec="utf-8", exclude_categories=("Z", "C")), min_size=1, max_size=3)


def hits(*pairs: tuple[str, float]) -> tuple[Hit, ...]:
    return tuple(Hit(docid=docid, score=score) for docid, score in pairs)


def docids(listed: object) -> list[str]:
    return [hit.docid for hit in listed]  # type: ignore[attr-defined]


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "file.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_equal_scores_are_ordered_by_docid_descending_and_counted() -> None:  # case E01
    file = read_run(CASES / "E01" / "run.txt")
    assert docids(file.run["q1"]) == ["d3", "d2", "d1"]
    assert file.tied == ("q1", "q2")
    assert any("2 queries: q1, q2" in text for text in file.warnings())


def test_any_white_space_and_any_number_form_is_read(tmp_path: Path) -> None:  # case E09
    file = read_run(CASES / "E09" / "run.txt")
    assert [(hit.docid, hit.score) for hit in file.run["q1"]] == [("a", 0.0015), ("b", 0.0009), ("c", -21.0)]
    assert file.warnings() == []
    crlf = written(tmp_path, b"\xef\xbb\xbfq1\tQ0\ta\t1\t1.5e-3\tr\r\n\r\n  \r\nq1 Q0 b 2 9E-4 r")
    assert docids(read_run(crlf).run["q1"]) == ["a", "b"]


def test_byte_order_mark_and_crlf_do_not_get_into_qrels(tmp_path: Path) -> None:
    path = written(tmp_path, b"\xef\xbb\xbfq1 0 a 1\r\n\r\nq1\t0\tb\t-1\r\n")
    assert read_qrels(path) == {"q1": {"a": 1, "b": -1}}


def test_scores_count_and_a_contradicting_rank_column_is_reported() -> None:  # case E13
    file = read_run(CASES / "E13" / "run.txt")
    assert docids(file.run["q1"]) == ["b", "c", "a"]
    assert file.rank_disagrees == ("q1",)
    assert any("rank column disagrees" in text for text in file.warnings())


@pytest.mark.parametrize(
    ("ranks", "disagrees"),
    [
        ((1, 2, 3), False),
        ((10, 20, 30), False),
        ((2, 1, 3), False),  # the first two are tied
        ((1, 3, 2), True),
        ((0, 0, 0), False),
        ((3, 2, 1), True),
        ((1, "x", 3), True),
    ],
)
def test_ranks_disagree_only_across_different_scores(
    tmp_path: Path, ranks: tuple[object, ...], disagrees: bool
) -> None:
    rows = zip(("a", "b", "c"), ranks, (2, 2, 1), strict=True)
    path = written(tmp_path, "".join(f"q Q0 {docid} {rank} {score} r\n" for docid, rank, score in rows))
    assert bool(read_run(path).rank_disagrees) is disagrees


@pytest.mark.parametrize(
    ("line", "field", "found"),
    [
        ("q1 Q0 d 1 nan r", "score", "'nan'"),
        ("q1 Q0 d 1 inf r", "score", "'inf'"),
        ("q1 Q0 d 1 1e999 r", "score", "'1e999'"),
        ("q1 Q0 d 1 1_0 r", "score", "'1_0'"),
        ("q1 Q0 d 1 ٣ r", "score", "'٣'"),
        ("q1 Q0 d 1 0.5", "6 columns", "5 columns"),
        ("q1 Q0 a document 1 0.5 r", "6 columns", "7 columns"),
        ("q1 Q0 a 2 0.5 r", "docid", "see line 1"),
    ],
)
def test_a_run_line_that_does_not_fit_is_refused(tmp_path: Path, line: str, field: str, found: str) -> None:
    path = written(tmp_path, f"q1 Q0 a 1 9 r\n\n{line}\nq2 Q0 a 1 9 r\n")
    with pytest.raises(InputError, match=r"file\.txt:3: ") as caught:
        read_run(path)
    assert field in str(caught.value)
    assert found in str(caught.value)


@pytest.mark.parametrize(
    ("line", "field"), [("q1 0 b 1.0", "grade"), ("q1 0 b", "4 columns"), ("q1 0 a 0", "docid"), ("q1 0 b ②", "grade")]
)
def test_a_qrels_line_that_does_not_fit_is_refused(tmp_path: Path, line: str, field: str) -> None:
    with pytest.raises(InputError, match=r"file\.txt:2: ") as caught:
        read_qrels(written(tmp_path, f"q1 0 a 1\n{line}\n"))
    assert field in str(caught.value)


def test_bytes_that_are_no_utf8_are_refused_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"file\.txt:2: expected UTF-8"):
        read_run(written(tmp_path, b"q1 Q0 a 1 1 r\nq1 Q0 \xff 2 0 r\n"))


def test_a_document_twice_is_refused_with_its_line() -> None:  # case E06
    with pytest.raises(InputError, match=r"run\.txt:2: docid: .*see line 1.*found 'p'"):
        read_run(CASES / "E06" / "run.txt")


def test_lines_can_be_set_aside_and_are_counted() -> None:
    rejects = Rejects(set_aside=True)
    file = read_run(CASES / "E06" / "run.txt", rejects)
    rejects.check()
    assert file.run["q1"] == hits(("p", 3.0), ("z", 1.0))
    assert list(rejects.counts().values()) == [1]


def test_chunks_are_folded_to_documents_by_their_best_score() -> None:  # case E06
    file = read_run(CASES / "E06" / "run_chunks.txt")
    assert fold_chunks(file.run)["q1"] == hits(("p", 3.0), ("z", 1.0))


def test_only_a_number_after_the_last_hash_is_a_chunk() -> None:
    run = {"q": hits(("C#", 1.0), ("C##3", 2.0), ("C#x", 0.5), ("a#1#0", 0.4), ("a#1#2", 0.6))}
    assert fold_chunks(run)["q"] == hits(("C#", 2.0), ("a#1", 0.6), ("C#x", 0.5))


def test_judged_only_keeps_the_hits_with_a_line_in_the_qrels() -> None:
    run = {"q": hits(("u", 3.0), ("n", 2.0), ("a", 1.0)), "other": hits(("a", 1.0))}
    assert judged_only(run, {"q": {"a": 1, "n": 0}}) == {"q": hits(("n", 2.0), ("a", 1.0)), "other": ()}


def test_scores_are_compared_as_32_bit_floats() -> None:
    near = hits(("a", 100.000001), ("b", 100.0))
    assert docids(trec_order(near)) == ["b", "a"]
    assert tied_queries({"q": near, "other": hits(("a", 100.1), ("b", 100.0))}) == ("q",)


@pytest.mark.parametrize("bad", ["a b", "a\tb", "a\u00a0b", "a\nb", "", "a\x00b"])
@pytest.mark.parametrize("place", ["qid", "docid", "tag"])
def test_ids_that_a_trec_file_cannot_carry_are_refused_by_name(tmp_path: Path, place: str, bad: str) -> None:
    given = {"qid": "q", "docid": "d", "tag": "t"} | {place: bad}
    path = tmp_path / "run.txt"
    with pytest.raises(InputError) as caught:
        write_run(path, {given["qid"]: hits((given["docid"], 1.0))}, given["tag"])
    assert f"{place} {bad!r}" in str(caught.value)
    assert not path.exists()


@pytest.mark.parametrize("score", [float("nan"), float("inf"), 1e39, -1e39])
def test_scores_that_no_32_bit_float_holds_are_not_written(tmp_path: Path, score: float) -> None:
    with pytest.raises(InputError, match="document 'd'"):
        write_run(tmp_path / "run.txt", {"q": hits(("d", score))}, "t")


def test_qrels_come_back_as_written(tmp_path: Path) -> None:
    qrels = {"q1": {"a": 1, "b/ü": 0}, "q2": {"c": -2}}
    write_qrels(tmp_path / "qrels.txt", qrels)
    assert read_qrels(tmp_path / "qrels.txt") == qrels


@given(st.dictionaries(DOCIDS, SCORES | st.sampled_from([0.0, -0.0, 1.0, 1.0000000001]), min_size=1, max_size=20))
def test_a_written_run_has_one_order_for_every_reader(
    tmp_path_factory: pytest.TempPathFactory, scores: dict[str, float]
) -> None:
    path = tmp_path_factory.mktemp("run") / "run.txt"
    listed = hits(*scores.items())
    write_run(path, {"q": listed}, "t")
    rows = [line.split(" ") for line in path.read_text().splitlines()]
    order = docids(trec_order(listed))
    assert [row[2] for row in rows] == order
    assert [row[3] for row in rows] == [str(rank) for rank in range(1, len(rows) + 1)]
    values = [float(row[4]) for row in rows]
    singles = [float(np.float32(value)) for value in values]
    assert values == sorted(set(values), reverse=True)
    assert singles == sorted(set(singles), reverse=True)
    again = read_run(path)
    assert (docids(again.run["q"]), again.tied, again.rank_disagrees) == (order, (), ())
    with open(path) as file:
        assert list(pytrec_eval.parse_run(file)["q"]) == order
