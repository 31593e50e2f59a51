"""Ranking measures: reference values, and equality with trec_eval's code on random runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from agentir.errors import ConfigError, InputError
from agentir.measures.ranking import MEASURES, evaluate, measure_names
from agentir.measures.runs import fold_chunks, judged_only, read_qrels, read_run, write_run
from agentir.records import Hit

CASES = Path(__file__).parent.parent / "data" / "cases"
NEAR = 5e-7
"""Reference values are given to six decimals."""


@pytest.mark.parametrize(
    ("case", "qid", "expected"),
    [
        ("E01", "q1", {"MRR": 1.0, "nDCG@10": 1.0}),
        ("E01", "q2", {"MRR": 0.333333, "nDCG@10": 0.5, "MAP": 0.333333}),
        ("E03", "q1", {"nDCG@3": 0.39749, "nDCG@5": 0.578375, "Recall@3": 0.333333, "Recall@5": 0.666667}),
        ("E03", "q1", {"MAP": 0.333333, "MRR": 0.5, "P@5": 0.4}),
        ("E07", "q1", {"nDCG@5": 0.624051, "nDCG@3": 0.386853, "MAP": 0.45, "Judged@5": 0.6}),
        ("E09", "q1", {"MRR": 0.5}),
        ("E13", "q1", {"MRR": 1.0}),
    ],
)
def test_reference_values(case: str, qid: str, expected: dict[str, float]) -> None:
    run, qrels = read_run(CASES / case / "run.txt").run, read_qrels(CASES / case / "qrels.txt")
    values = evaluate(run, qrels, tuple(expected)).values
    assert {name: by_qid[qid] for name, by_qid in values.items()} == pytest.approx(expected, abs=NEAR)


def test_tied_queries_are_reported_and_means_are_trec_evals() -> None:  # case E01
    result = evaluate(
        read_run(CASES / "E01" / "run.txt").run, read_qrels(CASES / "E01" / "qrels.txt"), ("MRR", "nDCG@10")
    )
    assert (result.mean("MRR"), result.mean("nDCG@10")) == pytest.approx((2 / 3, 0.75))
    assert result.tied == ("q1", "q2")
    assert any("equal scores" in note for note in result.notes())


def test_the_relevance_level_leaves_ndcg_alone() -> None:  # case E03
    run, qrels = read_run(CASES / "E03" / "run.txt").run, read_qrels(CASES / "E03" / "qrels.txt")
    values = evaluate(run, qrels, ("Recall@5", "MAP", "nDCG@5"), relevance_level=2).values
    found = {name: by_qid["q1"] for name, by_qid in values.items()}
    assert found == pytest.approx({"Recall@5": 1.0, "MAP": 0.5, "nDCG@5": 0.578375}, abs=NEAR)


def test_queries_without_positives_count_zero_and_are_named() -> None:  # case E04
    result = evaluate(read_run(CASES / "E04" / "run.txt").run, read_qrels(CASES / "E04" / "qrels.txt"), ("nDCG@10",))
    assert result.values["nDCG@10"] == {"q1": 0.0, "q2": 1.0}
    assert result.mean("nDCG@10") == 0.5
    assert result.mean_over_with_positives("nDCG@10") == 1.0
    assert (result.num_evaluated, result.without_positives, result.unjudged_topics) == (2, ("q1",), ("q3",))


def test_queries_that_the_run_lacks_count_zero_and_are_named() -> None:  # case E05
    run, qrels = dict(read_run(CASES / "E05" / "run.txt").run), read_qrels(CASES / "E05" / "qrels.txt")
    for with_empty_list in (run, run | {"q2": ()}):
        result = evaluate(with_empty_list, qrels, ("nDCG@10",))
        assert result.mean("nDCG@10") == pytest.approx(1 / 3)
        assert result.mean_over_answered("nDCG@10") == 1.0
        assert (result.num_evaluated, result.missing, result.unjudged_topics) == (3, ("q2", "q3"), ("q9",))
        assert [note.split(":")[0] for note in result.notes()][1] == "missing from the run (count 0)"


def test_a_run_that_answers_nothing_has_means_of_zero() -> None:
    result = evaluate({}, {"q1": {"a": 0}, "q2": {}}, ("nDCG@10", "Judged@5"))
    assert (result.mean("nDCG@10"), result.mean("Judged@5")) == (0.0, 0.0)
    assert result.mean_over_answered("nDCG@10") is None
    assert result.mean_over_with_positives("nDCG@10") is None


def test_chunks_folded_to_documents_give_no_measure_above_one() -> None:  # case E06
    run = fold_chunks(read_run(CASES / "E06" / "run_chunks.txt").run)
    values = evaluate(run, read_qrels(CASES / "E06" / "qrels.txt"), ("R@2", "P@2", "nDCG@10")).values
    assert {name: by_qid["q1"] for name, by_qid in values.items()} == {"Recall@2": 1.0, "P@2": 0.5, "nDCG@10": 1.0}


def test_a_document_twice_or_a_score_that_is_no_number_is_refused() -> None:
    twice = {"q": [Hit(docid="p", score=2.0), Hit(docid="p", score=1.0)]}
    with pytest.raises(InputError, match="'p' twice"):
        evaluate(twice, {"q": {"p": 1}})
    with pytest.raises(InputError, match="finite score, found nan"):
        evaluate({"q": [Hit(docid="p", score=float("nan"))]}, {"q": {"p": 1}})
    with pytest.raises(InputError, match="qrels"):
        evaluate(twice, {})


def test_judged_only_is_another_run() -> None:  # case E07
    run, qrels = read_run(CASES / "E07" / "run.txt").run, read_qrels(CASES / "E07" / "qrels.txt")
    values = evaluate(judged_only(run, qrels), qrels, ("nDCG@5", "MAP")).values
    found = {name: by_qid["q1"] for name, by_qid in values.items()}
    assert found == pytest.approx({"nDCG@5": 0.919721, "MAP": 0.833333}, abs=NEAR)


def test_names_are_those_shown_to_users() -> None:
    assert measure_names(["ndcg@10", "R@5", "RR@10", "recall@5", "AP", "judged@3"]) == (
        "nDCG@10",
        "Recall@5",
        "MRR@10",
        "MAP",
        "Judged@3",
    )


@pytest.mark.parametrize("name", ["nDCG@0", "nDCG@", "nDCG@x", "P", "Judged", "hits@3", "nDCG@10 ", ""])
def test_unknown_measures_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="measure"):
        measure_names([name])
    with pytest.raises(ConfigError, match="none"):
        measure_names([])


DOCIDS = st.sampled_from([f"d{i}" for i in range(15)] + ["ü", "z", "😀"])
TIED = st.sampled_from([0.0, -0.0, 1.0, 1.00000001, 2.0, 3.5])
RUNS = st.dictionaries(
    st.sampled_from(["q1", "q2", "q3", "q4"]),
    st.dictionaries(DOCIDS, TIED | st.floats(-1e6, 1e6), min_size=1, max_size=18),
    max_size=4,
)
QRELS = st.dictionaries(
    st.sampled_from(["q1", "q2", "q3", "q5"]),
    st.dictionaries(DOCIDS, st.integers(-1, 3), min_size=1, max_size=12),
    min_size=1,
    max_size=4,
)


@settings(max_examples=300, deadline=None)
@given(RUNS, QRELS)
def test_random_runs_measure_as_trec_eval_does(
    scores: dict[str, dict[str, float]], qrels: dict[str, dict[str, int]]
) -> None:
    names = {"nDCG@10": "ndcg_cut_10", "Recall@5": "recall_5", "MAP": "map", "MRR": "recip_rank", "P@3": "P_3"}
    run = {qid: [Hit(docid=docid, score=score) for docid, score in by_doc.items()] for qid, by_doc in scores.items()}
    found = evaluate(run, qrels, (*names, "MRR@3"))

    core = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recall.5", "map", "recip_rank", "P.3"}).evaluate(
        scores
    )
    first_three = {qid: cut(by_doc, 3) for qid, by_doc in scores.items()}
    core_cut = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(first_three)
    for qid in qrels:
        for name, core_name in names.items():
            assert found.values[name][qid] == (core[qid][core_name] if qid in scores else 0.0)
        assert found.values["MRR@3"][qid] == (core_cut[qid]["recip_rank"] if qid in scores else 0.0)
    assert all(0.0 <= value <= 1.0 for by_qid in found.values.values() for value in by_qid.values())


def cut(by_doc: dict[str, float], k: int) -> dict[str, float]:
    """The first k documents in trec_eval's order: score as a 32 bit float and docid bytes, both descending."""
    order = sorted(by_doc, key=lambda docid: (np.float32(by_doc[docid]), docid.encode()), reverse=True)
    return {docid: by_doc[docid] for docid in order[:k]}


@settings(max_examples=50, deadline=None)
@given(RUNS, QRELS)
def test_a_run_measures_the_same_after_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, scores: dict[str, dict[str, float]], qrels: dict[str, dict[str, int]]
) -> None:
    run = {qid: [Hit(docid=docid, score=score) for docid, score in by_doc.items()] for qid, by_doc in scores.items()}
    path = tmp_path_factory.mktemp("run") / "run.txt"
    write_run(path, run, "t")
    assert evaluate(read_run(path).run, qrels).values == evaluate(run, qrels).values
    assert tuple(evaluate(run, qrels).values) == MEASURES
