"""Sliding windows: a list longer than a model ranks at once, ranked part by part from its back to its front.

As in RankGPT (Sun et al., 2023): the window moves to the front by a step smaller than itself, so that the best of each
window meet the documents before them. A right oracle brings the true best `window - step` documents to the front, in order;
what stays behind is ordered within its window only. So the last of a ranking are the losers of the window at the list's
back: documents that the oracle did put last, among those that it saw beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentir.records import Vote


def window_bounds(num: int, window: int, step: int) -> list[tuple[int, int]]:
    """The windows over a list as (start, end), the one at its back first; the last one begins at 0.

    All windows have the same size (a shorter list has one window over all of it), so the last step may be smaller than
    the others, and no part is shown twice for lack of a whole step.

    Args:
        num: the length of the list; an empty one has no windows.
        window: the size of a window, 2 or more.
        step: how far it moves, from 1 to less than its size.
    """
    assert 1 <= step < window, f"expected 1 <= step < window, found step {step}, window {window}"
    if num == 0:
        return []
    starts = [*range(num - window, 0, -step), 0]
    return [(start, min(start + window, num)) for start in starts]


class WindowedRanking:
    """The ranking of a list while its windows are answered one after the other.

    Args:
        shown: the positions of the candidates, one or more, in the order in which they are shown at first.
        window: the size of a window; None: one window over all of them.
        step: how far it moves; default is half of the window, as in RankGPT (20 and 10). Without a window it says nothing.

    Attributes:
        bounds: the windows, in the order in which they must be answered.
        order: the candidates' positions as ranked so far.
    """

    def __init__(self, shown: Sequence[int], window: int | None = None, step: int | None = None) -> None:
        self.shown = tuple(shown)
        self.order = list(shown)
        self.bounds = [(0, len(self.shown))]
        if window is not None:
            self.bounds = window_bounds(len(self.shown), window, window // 2 if step is None else step)
        self._unranked: set[int] = set()

    def place(self, bounds: tuple[int, int], answer: Vote) -> None:
        """Puts what a window shows into the order that was answered for it.

        Args:
            bounds: the window.
            answer: its ranking, by place within the window.
        """
        start, end = bounds
        placed = [self.order[start + place] for place in answer.order]
        self.order[start:end] = placed
        self._unranked.update(placed[answer.ranked_count :])

    def vote(self, response: str) -> Vote:
        """The whole ranking, once every window was answered.

        A candidate counts as ranked only if every window that showed it named it. The others, wherever they had got to,
        stand at the end in the order in which they were shown at first, so that none of them can be taken for one that the
        oracle ranked last. So everything was ranked if and only if every window was ranked as a whole.

        Args:
            response: what the vote keeps as the oracle's answer.
        """
        ranked = [position for position in self.order if position not in self._unranked]
        rest = [position for position in self.shown if position in self._unranked]
        return Vote(order=(*ranked, *rest), ranked_count=len(ranked), parsed=bool(ranked), response=response)
