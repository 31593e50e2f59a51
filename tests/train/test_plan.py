"""The order of a run: which rows make a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentir.errors import ConfigError
from agentir.train.plan import PlannedBatch, num_left_out, plan_batches


def random_lengths(num: int) -> list[int]:
    """Lengths as of reasoning: many of some 90 tokens, a few of 500."""
    return [int(length) for length in np.random.default_rng(0).lognormal(4.5, 0.6, num)]


def epochs_of(plan: Sequence[PlannedBatch]) -> list[list[tuple[int, ...]]]:
    """The batches of each epoch."""
    assert [batch.epoch for batch in plan] == sorted(batch.epoch for batch in plan)
    return [[batch.rows for batch in plan if batch.epoch == epoch] for epoch in range(plan[-1].epoch + 1)]


def padded(batches: Sequence[Sequence[int]], lengths: Sequence[int]) -> float:
    """Tokens with padding, as a multiple of those without."""
    whole = sum(len(rows) * max(lengths[row] for row in rows) for rows in batches)
    return whole / sum(lengths[row] for rows in batches for row in rows)


def left_out(plan: Sequence[PlannedBatch], num_rows: int) -> np.ndarray:
    """Bool (epochs, rows): the rows that an epoch leaves out."""
    missing = np.ones((plan[-1].epoch + 1, num_rows), dtype=bool)
    for batch in plan:
        missing[batch.epoch, list(batch.rows)] = False
    return missing


def plan_of(questions: Sequence[str], lengths: Sequence[int], **changes: Any) -> list[PlannedBatch]:
    return plan_batches(questions, lengths, **({"batch_size": 32, "epochs": 2, "seed": 1} | changes))


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 50)), min_size=4, max_size=150),
    batch_size=st.integers(1, 4),
    batch_tokens=st.none() | st.integers(100, 400),
    exclusive=st.booleans(),
    seed=st.integers(0, 3),
)
def test_batches_of_random_rows_keep_to_the_limits(
    rows: list[tuple[str, int]], batch_size: int, batch_tokens: int | None, exclusive: bool, seed: int
) -> None:
    rows = rows + [(f"question of row {number}", 10) for number in range(2 * batch_size)]  # so that there is a batch
    questions, lengths = [question for question, _ in rows], [length for _, length in rows]
    options: dict[str, Any] = {
        "batch_size": batch_size, "epochs": 2, "seed": seed, "batch_tokens": batch_tokens, "exclusive": exclusive,
    }  # fmt: skip
    plan = plan_batches(questions, lengths, **options)
    assert plan == plan_batches(questions, lengths, **options)
    for batches in epochs_of(plan):
        used = Counter(row for batch in batches for row in batch)
        assert max(used.values()) == 1 and set(used) <= set(range(len(rows)))
        for batch in batches:
            if batch_tokens is None:
                assert len(batch) == batch_size
            else:
                assert min(2, batch_size) <= len(batch) <= batch_size
                assert len(batch) * max(lengths[row] for row in batch) <= batch_tokens
            assert not exclusive or len({questions[row] for row in batch}) == len(batch)
        if not exclusive:
            assert len(rows) - used.total() <= (len(rows) % batch_size if batch_tokens is None else 1)


def test_order_is_another_each_epoch_and_seed() -> None:
    lengths = random_lengths(515)
    first, second = epochs_of(plan_of(["q"] * 515, lengths))
    assert len(first) == len(second) == 16
    assert {frozenset(rows) for rows in first} != {frozenset(rows) for rows in second}
    (other,) = epochs_of(plan_of(["q"] * 515, lengths, seed=2, epochs=1))
    assert {frozenset(rows) for rows in other} != {frozenset(rows) for rows in first}


def test_short_texts_do_not_come_first() -> None:
    lengths = random_lengths(256)
    for batches in epochs_of(plan_of(["q"] * 256, lengths)):
        longest = [max(lengths[row] for row in rows) for rows in batches]
        assert len(longest) == 8 and longest not in (sorted(longest), sorted(longest, reverse=True))


def test_longer_run_begins_as_the_shorter_one() -> None:
    lengths = random_lengths(515)
    plan = plan_of(["q"] * 515, lengths, epochs=3)
    assert plan_of(["q"] * 515, lengths, epochs=2) == plan[:32]
    assert plan_of(["q"] * 515, lengths, epochs=1.5) == plan[:24]


@pytest.mark.parametrize(
    ("epochs", "num_batches"), [(0.001, [1]), (0.25, [4]), (1, [16]), (1.5, [16, 8]), (2.0, [16, 16]), (2.01, [16, 16])]
)
def test_epochs_may_end_in_the_middle(epochs: float, num_batches: list[int]) -> None:
    plan = plan_of(["q"] * 515, random_lengths(515), epochs=epochs)
    assert [len(batches) for batches in epochs_of(plan)] == num_batches


@pytest.mark.parametrize(
    "options",
    [{}, {"exclusive": True}, {"batch_size": 64, "exclusive": True}, {"batch_tokens": 1600}],
    ids=["plain", "exclusive", "large exclusive", "tokens"],
)
def test_rows_of_similar_length_share_a_batch(options: dict[str, Any]) -> None:
    lengths, questions = random_lengths(2000), [f"q{row // 6}" for row in range(2000)]
    (batches,) = epochs_of(plan_of(questions, lengths, epochs=1, **options))
    order = np.random.default_rng(1).permutation([row for rows in batches for row in rows])
    random_batches = np.split(order, np.cumsum([len(rows) for rows in batches])[:-1])
    more, more_at_random = padded(batches, lengths) - 1, padded(random_batches, lengths) - 1
    assert more < 0.4 * more_at_random


def test_token_budget_is_filled() -> None:
    lengths = random_lengths(1000)
    (batches,) = epochs_of(plan_of(["q"] * 1000, lengths, epochs=1, batch_tokens=2000))
    filled = [len(rows) * max(lengths[row] for row in rows) / 2000 for rows in batches if len(rows) < 32]
    assert np.mean(filled) > 0.8
    assert np.ptp([len(rows) for rows in batches]) > 10, "batches of short texts hold more"


@pytest.mark.parametrize(
    ("num_rows", "options", "most"),
    [
        (515, {}, 3),
        (125, {"batch_size": 16}, 13),
        (515, {"exclusive": True}, 2 * 32 + 3),
        (515, {"exclusive": True, "batch_size": 16}, 2 * 16 + 3),
        (125, {"exclusive": True, "batch_size": 16}, 2 * 16 + 13),
        (3600, {"exclusive": True, "batch_size": 64}, 2 * 64 + 16),
        (515, {"batch_tokens": 1300}, 1),
        (60, {"batch_tokens": 1300}, 1),
        (515, {"batch_tokens": 1300, "exclusive": True}, 1),
    ],
)
def test_few_rows_are_left_out_of_an_epoch_others_each_time_and_not_the_longest(
    num_rows: int, options: dict[str, Any], most: int
) -> None:
    lengths, questions = random_lengths(num_rows), [f"q{row // 6}" for row in range(num_rows)]
    missing = left_out(plan_of(questions, lengths, epochs=24, **options), num_rows)
    assert missing.sum(axis=1).max() <= most
    share = missing.mean(axis=0)
    assert share.max() < 0.8, "no row is left out nearly always"
    longest = np.argsort(lengths)[-num_rows // 10 :]
    assert share[longest].mean() < 3 * share.mean() + 2 / num_rows


def test_question_with_more_rows_than_there_are_batches_is_left_out_in_part() -> None:
    questions = ["often"] * 40 + [f"q{row}" for row in range(60)]
    plan = plan_of(questions, random_lengths(100), batch_size=10, epochs=60, exclusive=True)
    missing = left_out(plan, 100)
    assert all(sum(questions[row] == "often" for row in batch.rows) <= 1 for batch in plan)
    assert not missing.all(axis=0).any(), "each row has its turn"
    assert missing[:, 40:].mean() < 0.1


@pytest.mark.parametrize("seed", range(3))
def test_batch_of_one_row_is_allowed(seed: int) -> None:
    for batch_tokens in (None, 10):
        (batches,) = epochs_of(
            plan_of("abc", [5, 500, 50], batch_size=1, batch_tokens=batch_tokens, seed=seed, epochs=1)
        )
        assert sorted(batches) == [(0,), (1,), (2,)]


def test_token_budget_allows_more_rows_a_batch_than_there_are() -> None:
    ((rows,),) = epochs_of(plan_of("abc", [5, 6, 7], batch_size=1000, batch_tokens=1000, epochs=1))
    assert sorted(rows) == [0, 1, 2]


@pytest.mark.parametrize(
    ("questions", "lengths", "options", "text"),
    [
        (
            "abc",
            [1, 1, 1],
            {"batch_size": 4},
            r"batch_size: expected at most the number of training rows \(3\), found 4",
        ),
        ("", [], {"batch_size": 1}, r"number of training rows \(0\), found 1"),
        ("", [], {"batch_tokens": 9}, "expected at least one whole batch, found none in 0 rows"),
        ("aaab", [1] * 4, {"batch_size": 3, "exclusive": True}, "batch_size 3, .* found none in 4 rows of 2 questions"),
        (
            "aaa",
            [1] * 3,
            {"batch_tokens": 9, "exclusive": True},
            "batch_tokens 9: .* found none in 3 rows of 1 questions",
        ),
        ("a", [1], {"batch_tokens": 9}, "found none in 1 rows"),
        (
            "abc",
            [9, 30, 5],
            {"batch_tokens": 59},
            "batch_tokens: expected at least 60, .* found 59; .*max_query_tokens",
        ),
    ],
)
def test_rows_that_make_no_batch_are_refused(
    questions: str, lengths: list[int], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        plan_of(questions, lengths, **options)


@pytest.mark.parametrize(("epochs", "expected"), [(1, 3), (2, 3), (0.5, 0)])
def test_rows_that_fill_no_batch_are_counted_where_the_run_has_whole_epochs(epochs: float, expected: int) -> None:
    plan = plan_of(["q"] * 515, random_lengths(515), epochs=epochs)
    assert num_left_out(plan, 515, epochs) == expected
