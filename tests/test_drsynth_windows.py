import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentir.drsynth.windows import WindowedRanking, window_bounds
from agentir.records import Vote


@pytest.mark.parametrize(
    ("num", "window", "step", "bounds"),
    [
        (0, 4, 2, []),
        (1, 4, 2, [(0, 1)]),
        (4, 4, 2, [(0, 4)]),
        (5, 4, 2, [(1, 5), (0, 4)]),
        (6, 4, 2, [(2, 6), (0, 4)]),
        (7, 4, 2, [(3, 7), (1, 5), (0, 4)]),
        (50, 20, 10, [(30, 50), (20, 40), (10, 30), (0, 20)]),
        (55, 20, 10, [(35, 55), (25, 45), (15, 35), (5, 25), (0, 20)]),
        (10, 9, 1, [(1, 10), (0, 9)]),
    ],
)
def test_windows_move_from_the_back_to_the_front(
    num: int, window: int, step: int, bounds: list[tuple[int, int]]
) -> None:
    assert window_bounds(num, window, step) == bounds


def test_windows_are_right_at_every_size() -> None:
    for num in range(1, 61):
        for window in range(2, num + 3):
            for step in range(1, window):
                bounds = window_bounds(num, window, step)
                assert bounds[0][1] == num and bounds[-1][0] == 0
                assert all(end - start == min(window, num) for start, end in bounds)
                assert len(set(bounds)) == len(bounds)
                for (later, _), (earlier, earlier_end) in pairwise(bounds):
                    assert 1 <= later - earlier <= step
                    assert earlier_end - later >= window - step
                assert len(bounds) == 1 + max(0, -(-(num - window) // step))


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int]:
    num, window = draw(st.integers(1, 60)), draw(st.integers(2, 62))
    return num, window, draw(st.integers(1, window - 1))


def right_answer(ranking: WindowedRanking, bounds: tuple[int, int], worth: list[int], num_named: int) -> Vote:
    """What an oracle that knows the worth of all says of a window, if it names so many; the rest stays as shown."""
    shown = ranking.order[bounds[0] : bounds[1]]
    best = sorted(range(len(shown)), key=lambda place: worth[shown[place]])[:num_named]
    rest = [place for place in range(len(shown)) if place not in best]
    return Vote(order=(*best, *rest), ranked_count=len(best), parsed=True, response="")


@given(sizes(), st.randoms(use_true_random=False))
def test_a_right_oracle_brings_the_best_to_the_front(size: tuple[int, int, int], draws: random.Random) -> None:
    num, window, step = size
    worth = draws.sample(range(num), num)
    ranking = WindowedRanking(draws.sample(range(num), num), window, step)
    for bounds in ranking.bounds:
        ranking.place(bounds, right_answer(ranking, bounds, worth, window))
    vote = ranking.vote("said")
    assert sorted(vote.order) == list(range(num))
    assert (vote.ranked_count, vote.parsed, vote.response) == (num, True, "said")
    sure = num if num <= window else window - step
    assert [worth[position] for position in vote.order[:sure]] == list(range(sure))


@given(sizes(), st.randoms(use_true_random=False))
def test_ranked_is_what_every_window_named_that_showed_it(size: tuple[int, int, int], draws: random.Random) -> None:
    num, window, step = size
    worth = draws.sample(range(num), num)
    shown = draws.sample(range(num), num)
    ranking = WindowedRanking(shown, window, step)
    unnamed: set[int] = set()
    for bounds in ranking.bounds:
        answer = right_answer(ranking, bounds, worth, draws.randint(1, bounds[1] - bounds[0]))
        unnamed |= {ranking.order[bounds[0] + place] for place in answer.order[answer.ranked_count :]}
        ranking.place(bounds, answer)
    vote = ranking.vote("")
    assert sorted(vote.order) == list(range(num))
    assert set(vote.order[: vote.ranked_count]) == set(range(num)) - unnamed
    assert vote.order[vote.ranked_count :] == tuple(position for position in shown if position in unnamed)
    assert vote.parsed == (vote.ranked_count > 0)


def test_a_window_that_was_ranked_in_part_leaves_the_rest_of_it_unranked() -> None:
    ranking = WindowedRanking(range(6), 4, 2)
    assert ranking.bounds == [(2, 6), (0, 4)]
    ranking.place((2, 6), Vote(order=(3, 0, 1, 2), ranked_count=1, parsed=True, response=""))
    assert ranking.order == [0, 1, 5, 2, 3, 4]
    ranking.place((0, 4), Vote(order=(3, 2, 1, 0), ranked_count=4, parsed=True, response=""))
    vote = ranking.vote("")
    assert (vote.order, vote.ranked_count) == ((5, 1, 0, 2, 3, 4), 3)


def test_without_a_window_the_whole_list_is_one() -> None:
    assert WindowedRanking(range(50)).bounds == [(0, 50)]
    assert WindowedRanking(range(1)).bounds == [(0, 1)]
    assert WindowedRanking(range(50), 20).bounds == window_bounds(50, 20, 10)
