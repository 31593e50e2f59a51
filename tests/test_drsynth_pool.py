import json
from pathlib import Path

import pytest

from agentir.drsynth.pool import CandidatePool, candidate_pool
from agentir.records import Candidate, Document, Hit

CASES = Path(__file__).parent / "data" / "cases"


def hits(*docids: str) -> list[Hit]:
    return [Hit(docid=docid, score=float(10 - place)) for place, docid in enumerate(docids)]


def docids(pool: CandidatePool) -> list[str]:
    return [candidate.docid for candidate in pool.candidates]


@pytest.mark.parametrize(
    ("placement", "size", "expected", "num_gold_first"),
    [
        ("append", 50, ["n1", "n2", "g1", "n3", "n4", "g2"], 0),
        ("append", 4, ["n1", "n2", "g1", "g2"], 0),
        ("gold_first", 50, ["g1", "g2", "n1", "n2", "n3", "n4"], 2),
        ("gold_first", 3, ["g1", "g2", "n1"], 2),
    ],
)
def test_a_gold_document_that_was_retrieved_stands_in_the_pool_once(
    placement: str, size: int, expected: list[str], num_gold_first: int
) -> None:
    """Case S11."""
    first_stage = json.loads((CASES / "S11" / "first_stage.json").read_text(encoding="utf-8"))["hits"]
    gold = json.loads((CASES / "S11" / "gold.json").read_text(encoding="utf-8"))
    pool = candidate_pool(hits(*first_stage), gold, placement, size=size)  # type: ignore[arg-type]
    assert docids(pool) == expected
    assert (pool.num_gold_first, pool.num_same_text, pool.num_gold_cut) == (num_gold_first, 0, 0)
    by_id = {candidate.docid: candidate for candidate in pool.candidates}
    assert by_id["g1"] == Candidate(docid="g1", source="gold", score=8.0)
    assert by_id["g2"] == Candidate(docid="g2", source="gold", score=None)
    assert by_id["n1"] == Candidate(docid="n1", source="retrieved", score=10.0)


def test_a_shuffled_pool_is_fixed_by_its_seed_and_shows_no_place_of_gold() -> None:
    found = hits(*(f"n{n}" for n in range(8)))
    pools = [candidate_pool(found, ["g1", "g2"], "shuffle", seed=f"0 q_turn{n}") for n in range(40)]
    assert all(sorted(docids(pool)) == sorted(docids(pools[0])) for pool in pools)
    assert docids(pools[3]) == docids(candidate_pool(found, ["g1", "g2"], "shuffle", seed="0 q_turn3"))
    assert len({docids(pool).index("g1") for pool in pools}) > 5
    assert {pool.num_gold_first for pool in pools} == {0}


def test_of_documents_with_the_same_text_the_gold_one_stays() -> None:
    texts = {"n1": "a\n b", "g1": "A b", "n2": "c", "n3": "c ", "n4": "", "n5": "", "g2": "a  Ｂ"}
    documents = {docid: Document(docid=docid, text=text, title=docid) for docid, text in texts.items()}
    found = hits("n1", "n2", "n3", "n4", "n5", "unknown 1", "unknown 2")
    pool = candidate_pool(found, ["g1", "g2"], documents=documents)
    assert docids(pool) == ["n2", "n4", "n5", "unknown 1", "unknown 2", "g1"]
    assert pool.num_same_text == 3


def test_gold_documents_are_cut_only_by_one_another() -> None:
    pool = candidate_pool(hits("n1"), ["g1", "g2", "g3", "g1"], "gold_first", size=2)
    assert (docids(pool), pool.num_gold_first, pool.num_gold_cut) == (["g1", "g2"], 2, 1)


def test_a_pool_may_have_no_gold_or_nothing_at_all() -> None:
    assert docids(candidate_pool(hits("a", "b", "a"), [])) == ["a", "b"]
    assert docids(candidate_pool([], [])) == []
