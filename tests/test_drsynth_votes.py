import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau  # type: ignore[import-untyped]

from agentir.drsynth.votes import agreement, combine, kendall_tau
from agentir.records import Vote


def vote(*order: int, ranked: int | None = None) -> Vote:
    count = len(order) if ranked is None else ranked
    return Vote(order=order, ranked_count=count, parsed=count > 0, response="")


@given(st.integers(2, 40).flatmap(lambda num: st.permutations(range(num))))
def test_kendall_is_scipys(ranks: list[int]) -> None:
    assert kendall_tau(ranks) == pytest.approx(kendalltau(range(len(ranks)), ranks).statistic)


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ([vote(2, 0, 1)], ((2, 0, 1), 3)),
        ([vote(2, 0, 1, ranked=1)], ((2, 0, 1), 1)),
        ([vote(0, 1, 2), vote(0, 1, 2), vote(2, 1, 0)], ((0, 1, 2), 3)),
        ([vote(0, 1, 2), vote(1, 2, 0), vote(1, 0, 2)], ((1, 0, 2), 3)),
        ([vote(0, 1), vote(1, 0)], ((0, 1), 2)),
        ([vote(1, 0), vote(0, 1)], ((1, 0), 2)),
        ([vote(0, 1, 2, ranked=0), vote(2, 1, 0)], ((2, 1, 0), 3)),
        ([vote(0, 1, 2, ranked=0), vote(0, 1, 2, ranked=0)], ((0, 1, 2), 0)),
        ([vote(0, 1, 2, 3, ranked=2), vote(3, 1, 0, 2)], ((0, 1, 3, 2), 2)),
        ([vote(0, 1, 2, ranked=1), vote(2, 1, 0, ranked=1)], ((0, 1, 2), 0)),
        ([], ((0, 1, 2), 0)),
    ],
    ids=[
        "one",
        "one in part",
        "two against one",
        "mean ranks",
        "a tie",
        "a tie the other way",
        "one cannot be read",
        "none can be read",
        "what one left out is unranked",
        "nothing in common",
        "no votes",
    ],
)
def test_votes_are_joined_by_mean_rank(votes: list[Vote], expected: tuple[tuple[int, ...], int]) -> None:
    assert combine(votes, len(expected[0])) == expected


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ([vote(0, 1, 2)], None),
        ([vote(0, 1, 2), vote(0, 1, 2)], 1.0),
        ([vote(0, 1, 2), vote(2, 1, 0)], -1.0),
        ([vote(0, 1, 2), vote(0, 1, 2), vote(2, 1, 0)], -0.3333),
        ([vote(0, 1, 2), vote(0, 1, 2, ranked=0)], None),
        ([vote(0, 1, 2, ranked=1), vote(0, 1, 2)], None),
        ([vote(0, 1, 3, 2, ranked=2), vote(1, 2, 0, 3)], -1.0),
        ([], None),
    ],
)
def test_agreement_is_the_mean_over_pairs_of_what_both_ranked(votes: list[Vote], expected: float | None) -> None:
    assert agreement(votes) == expected
