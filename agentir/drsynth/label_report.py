"""Counts of what an oracle's answers came to, and what they took, taken one outcome at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from agentir.drsynth.oracle import LabelOutcome
from agentir.records import Ranking, Usage


class LabelReport:
    """Counts outcomes as they pass."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._usage = Usage()
        self._agreement = 0.0

    def take(self, outcome: LabelOutcome) -> Ranking:
        """Counts an outcome; returns its ranking."""
        ranking, counts = outcome.ranking, self._counts
        counts["rankings"] += ranking.ranked_count > 0
        counts["rerank_failed"] += ranking.ranked_count == 0
        counts["partly_ranked"] += 0 < ranking.ranked_count < len(ranking.candidates)
        counts["votes"] += len(ranking.votes)
        counts["dropped_votes"] += sum(not vote.parsed for vote in ranking.votes)
        counts["with_unparsable_votes"] += outcome.failure == "unparsable"
        counts["context_overflow"] += outcome.failure == "context_overflow"
        counts["repaired"] += outcome.num_repaired
        counts["lists_with_gold_first"] += ranking.num_gold_first > 0
        counts["lists_without_gold"] += all(one.source != "gold" for one in ranking.candidates)
        counts["gold_not_in_index"] += outcome.num_gold_not_in_index
        counts["gold_cut"] += outcome.num_gold_cut
        counts["same_text"] += outcome.num_same_text
        counts["requests"] += outcome.num_requests
        if ranking.agreement is not None:
            counts["with_agreement"] += 1
            self._agreement += ranking.agreement
        self._usage += outcome.usage
        return ranking

    def as_dict(self) -> dict[str, Any]:
        """The counts, as a manifest holds them."""
        counts = self._counts
        names = ("rankings", "rerank_failed", "partly_ranked", "votes", "dropped_votes", "with_unparsable_votes")
        more = ("lists_with_gold_first", "lists_without_gold", "gold_not_in_index", "gold_cut", "same_text", "requests")
        agreed = counts["with_agreement"]
        return {
            **{name: counts[name] for name in (*names, "context_overflow", "repaired")},
            "mean_agreement": round(self._agreement / agreed, 4) if agreed else None,
            **{name: counts[name] for name in more},
            "usage": asdict(self._usage),
        }
