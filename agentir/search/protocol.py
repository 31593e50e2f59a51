"""What every searcher offers, and the order in which all of them give their hits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from agentir.errors import RequestError
from agentir.records import Hit, SearchQuery


class Searcher(Protocol):
    """Finds documents for queries; may be asked by many threads at once.

    Equal questions get equal answers, alone or among others: hits come with the highest score first, equal scores in the
    order of their docids, also where the cut at k runs through them.
    """

    def search(self, queries: Sequence[SearchQuery], k: int) -> list[list[Hit]]:
        """The best hits of each query, at most k and never more than there are documents; nothing is filled up.

        Raises:
            RequestError: k is less than 1.
        """
        ...


def check_k(k: int) -> None:
    """Raises:
    RequestError: k is less than 1.
    """
    if k < 1:
        raise RequestError("k", f"expected at least 1, found {k}")


def best_places(scores: npt.NDArray[np.float32], docid_ranks: npt.NDArray[np.int64], k: int) -> npt.NDArray[np.intp]:
    """Places of the k highest scores, best first.

    Args:
        scores: of candidates, in any order.
        docid_ranks: the candidates' places in the order of all docids, see `agentir.corpus.pack.CorpusPack`.
        k: how many are wanted.
    """
    places = np.arange(len(scores))
    if len(scores) > k:
        places = np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])
    return places[np.lexsort((docid_ranks[places], -scores[places]))][:k]
