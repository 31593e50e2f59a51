import pytest

from agentir.drsynth.failure_streak import FailureStreak

GIVES_UP = "3 episodes in a row failed, the last: {}: bad key; mend that"


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        (["refused", "refused", "refused"], ["", "", GIVES_UP.format("refused")]),
        (["connection", "tool", "refused"], ["", "", GIVES_UP.format("refused")]),
        (["refused", "refused", "worked", "refused", "refused"], [""] * 4),
        (["worked", "refused", "refused", "tool"], ["", "", GIVES_UP.format("tool")]),
        (["timeout", "refused", "refused", "server_error", "refused"], [""] * 4 + [GIVES_UP.format("refused")]),
        (["timeout", "timeout", "timeout"], [""] * 3),
    ],
)
def test_hopeless_failures_in_a_row_end_a_run(outcomes: list[str], told: list[str]) -> None:
    streak, heard = FailureStreak("episodes", 3), []
    for number, outcome in enumerate(outcomes):
        if outcome == "worked":
            streak.worked()
        else:
            heard.append(streak.failed(f"q{number}", outcome, "bad key"))
    assert heard == told


def test_those_that_may_be_left_out_do_not_count() -> None:
    streak = FailureStreak("episodes", 2, passed_over={"a", "b"})
    assert [bool(streak.failed(key, "refused", "filtered")) for key in "acbbad"] == [False] * 5 + [True]
