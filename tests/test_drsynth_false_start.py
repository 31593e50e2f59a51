import pytest

from agentir.drsynth.false_start import FalseStart

GIVES_UP = "the first 3 episodes all failed: refused: bad key; mend that"


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        (["refused", "refused", "refused", "refused"], ["", "", GIVES_UP, ""]),
        (["connection", "connection", "refused"], ["", "", GIVES_UP]),
        (["refused", "refused", "worked", "refused", "refused", "refused"], [""] * 5),
        (["timeout", "refused", "refused", "refused", "refused"], [""] * 5),
        (["refused", "refused", "tool", "refused"], [""] * 4),
    ],
)
def test_only_the_first_failures_of_the_server_s_refusal_end_a_run(outcomes: list[str], told: list[str]) -> None:
    start, heard = FalseStart("episodes", 3), []
    for outcome in outcomes:
        if outcome == "worked":
            start.worked()
        else:
            heard.append(start.failed(outcome, "bad key"))
    assert heard == told


def test_it_can_be_told_never_to_give_up() -> None:
    start = FalseStart("episodes", None)
    assert not any(start.failed("refused", "bad key") for _ in range(100))
