"""Several votes of an oracle on one list: the ranking they make together, and how far they agree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import mean

import numpy as np

from agentir.records import Vote


def combine(votes: Sequence[Vote], num_candidates: int) -> tuple[tuple[int, ...], int]:
    """The order of the candidates by their mean rank over the votes that could be read (Borda), and how many are ranked.

    Equal means stand in the order of the first such vote. Ranked is only what every such vote ranked: that comes first,
    the others follow by their mean rank. Without a vote that could be read the order is that of the list, and nothing is
    ranked.

    Args:
        votes: over the same candidates.
        num_candidates: how many there are.

    Returns:
        The candidates' positions, best first, and how many of them are truly ranked.
    """
    if not (parsed := [vote for vote in votes if vote.parsed]):
        return tuple(range(num_candidates)), 0
    ranks = [_ranks(vote) for vote in parsed]
    ranked = set.intersection(*(set(vote.order[: vote.ranked_count]) for vote in parsed))
    sums = [sum(rank[position] for rank in ranks) for position in range(num_candidates)]
    order = sorted(parsed[0].order, key=lambda position: (position not in ranked, sums[position]))
    return tuple(order), len(ranked)


def agreement(votes: Sequence[Vote]) -> float | None:
    """The mean Kendall correlation of the pairs of votes, each over the candidates that both ranked.

    None where no two votes ranked two candidates in common.
    """
    correlations = []
    for first, second in combinations([vote for vote in votes if vote.parsed], 2):
        in_second = _ranks(second)
        both = set(first.order[: first.ranked_count]) & set(second.order[: second.ranked_count])
        if len(both) > 1:
            correlations.append(kendall_tau([in_second[position] for position in first.order if position in both]))
    return round(mean(correlations), 4) if correlations else None


def kendall_tau(ranks: Sequence[int]) -> float:
    """Kendall's rank correlation of two orders without ties: (agreeing pairs - disagreeing pairs) / pairs.

    Args:
        ranks: the ranks in the second order of what stands in the first, in the first's order; two or more.
    """
    values = np.asarray(ranks)
    agreeing = int(np.triu(values[:, None] < values[None, :], 1).sum())
    pairs = len(ranks) * (len(ranks) - 1) // 2
    return (2 * agreeing - pairs) / pairs


def _ranks(vote: Vote) -> dict[int, int]:
    return {position: rank for rank, position in enumerate(vote.order)}
