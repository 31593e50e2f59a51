"""Candidate pools: what an oracle is shown for a sub-query, retrieved and gold documents without doubles."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentir.corpus.text_key import text_key
from agentir.records import Candidate, Document, Hit

Placement = Literal["append", "gold_first", "shuffle"]
POOL_SIZE = 50
"""AgentIR retrieves and shows 50 (texttron/AgentIR, searchers/base.py: gold documents count within them)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePool:
    """The candidates in the order in which they are shown.

    Attributes:
        candidates: each document once; one that is gold has the source "gold", with a score where it was retrieved too.
        num_gold_first: how many gold documents were put in front.
        num_same_text: documents left out because another candidate has the same text.
        num_gold_cut: gold documents left out because there are more of them than places.
    """

    candidates: tuple[Candidate, ...]
    num_gold_first: int
    num_same_text: int
    num_gold_cut: int


def candidate_pool(
    hits: Sequence[Hit],
    gold_docids: Sequence[str],
    placement: Placement = "append",
    *,
    size: int = POOL_SIZE,
    documents: Mapping[str, Document] | None = None,
    seed: str = "",
) -> CandidatePool:
    """Joins what a retriever found with the gold documents.

    Gold documents are never cut in favour of retrieved ones, and of documents with the same text the gold one stays.

    Args:
        hits: what the retriever found, best first.
        gold_docids: the question's gold documents.
        placement: "append" leaves a retrieved gold document where it was found and adds the others at the end;
            "gold_first" is AgentIR's, all of them in front; "shuffle" mixes the whole pool, so that no place tells what
            is gold.
        size: the most candidates shown.
        documents: by docid, for finding those with the same text; one that is missing is like no other.
        seed: fixes the shuffle; give each sub-query its own.
    """
    scores = {hit.docid: hit.score for hit in reversed(hits)}
    gold = list(dict.fromkeys(gold_docids))
    first, second = (
        (gold, [hit.docid for hit in hits]) if placement == "gold_first" else ([hit.docid for hit in hits], gold)
    )
    union = list(dict.fromkeys((*first, *second)))
    docids = _without_same_texts(union, set(gold), documents or {})
    golden = [docid for docid in docids if docid in set(gold)]
    kept = {*golden[:size], *[docid for docid in docids if docid not in set(gold)][: max(size - len(golden), 0)]}
    shown = [docid for docid in docids if docid in kept]
    if placement == "shuffle":
        random.Random(seed).shuffle(shown)
    return CandidatePool(
        candidates=tuple(
            Candidate(docid=docid, source="gold" if docid in gold else "retrieved", score=scores.get(docid))
            for docid in shown
        ),
        num_gold_first=min(len(golden), size) if placement == "gold_first" else 0,
        num_same_text=len(union) - len(docids),
        num_gold_cut=max(len(golden) - size, 0),
    )


def _without_same_texts(docids: Sequence[str], gold: Collection[str], documents: Mapping[str, Document]) -> list[str]:
    """The documents without those whose text another one has: the first gold one stays, else the first."""
    keys = {docid: text_key(documents.get(docid) or Document(docid=docid, text="")) for docid in docids}
    chosen: dict[str, str] = {}
    for docid in sorted(docids, key=lambda docid: docid not in gold):
        chosen.setdefault(keys[docid], docid)
    return [docid for docid in docids if chosen[keys[docid]] == docid]
