"""The contrastive loss against numpy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentir.train.batches import HARD_NEGATIVE, MASKED, NEGATIVE, POSITIVE, UNRANKED
from agentir.train.loss import Distillation, MaskedInfoNCE

CASE = json.loads((Path(__file__).parents[1] / "data" / "cases" / "T01" / "batch.json").read_text())


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def contrastive(scores: np.ndarray, relations: np.ndarray, temperature: float) -> tuple[float, np.ndarray, int]:
    """The loss in float64, its gradient by the scores, and how many rows have no negative."""
    losses, gradient = [], np.zeros_like(scores)
    for row, kinds in enumerate(relations):
        (columns,) = np.nonzero(kinds != MASKED)
        if len(columns) == 1:
            continue
        target = (kinds[columns] == POSITIVE).astype(float)
        log_probabilities = log_softmax(scores[row, columns] / temperature)
        losses.append(-log_probabilities @ target)
        gradient[row, columns] = (np.exp(log_probabilities) - target) / temperature
    num_counted = max(len(losses), 1)
    return sum(losses) / num_counted, gradient / num_counted, len(relations) - len(losses)


def divergence(scores: np.ndarray, ranks: np.ndarray, rank_scale: float, temperature: float) -> float:
    """The mean of KL(teacher || student) over the rows that rank two documents or more."""
    values = []
    for row, places in enumerate(ranks):
        (columns,) = np.nonzero(places != UNRANKED)
        if len(columns) < 2:
            continue
        teacher = log_softmax(-places[columns] / rank_scale)
        student = log_softmax(scores[row, columns] / temperature)
        values.append(np.exp(teacher) @ (teacher - student))
    return sum(values) / max(len(values), 1)


def random_batch(rng: np.random.Generator, num_rows: int = 6, num_documents: int = 10) -> tuple[np.ndarray, ...]:
    """Scores (float32), relations and ranks; the first row ranks no document, the second a single one."""
    scores = rng.uniform(-1, 1, (num_rows, num_documents)).astype(np.float32)
    relations = rng.choice([MASKED, NEGATIVE, HARD_NEGATIVE], (num_rows, num_documents))
    relations[rng.integers(num_rows)] = MASKED
    relations[np.arange(num_rows), rng.integers(0, num_documents, num_rows)] = POSITIVE
    ranks = np.full(relations.shape, UNRANKED)
    for row in range(num_rows):
        places = rng.permutation(20)[: min(row, num_documents)]
        ranks[row, rng.permutation(num_documents)[: len(places)]] = places
    return scores, relations, ranks


def outcome(
    loss: MaskedInfoNCE, scores: np.ndarray, relations: np.ndarray, ranks: np.ndarray | None = None
) -> tuple[float, np.ndarray]:
    """The loss and its gradient by the scores."""
    given = torch.tensor(scores, dtype=torch.float32, requires_grad=True)
    value = loss(given, torch.tensor(relations), None if ranks is None else torch.tensor(ranks))
    value.backward()
    assert given.grad is not None
    return value.item(), given.grad.numpy()


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, 1.344038), (0.05, 4.201183), (0.01, 20.009075)])
def test_reference_values(temperature: float, expected: float) -> None:
    relations = np.full((2, 4), NEGATIVE)
    relations[range(2), CASE["positive_index"]] = POSITIVE
    relations[range(2), [2, 3]] = HARD_NEGATIVE
    scores = np.array(CASE["q"], float) @ np.array(CASE["docs"], float).T
    value, _ = outcome(MaskedInfoNCE(temperature), scores, relations)
    assert value == pytest.approx(expected, abs=1e-4)
    assert contrastive(scores, relations, temperature)[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_contrastive_term_of_random_batches_equals_numpy(seed: int) -> None:
    scores, relations, ranks = random_batch(np.random.default_rng(seed))
    loss = MaskedInfoNCE(0.5)
    value, gradient = outcome(loss, scores, relations, ranks)
    expected, expected_gradient, num_without_negative = contrastive(scores.astype(float), relations, 0.5)
    assert value == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-6)
    assert loss.num_without_negative == num_without_negative > 0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("distillation", "student_temperature"),
    [
        (Distillation(weight=1.0), 0.5),
        (Distillation(weight=0.3, rank_scale=7.0), 0.5),
        (Distillation(weight=0.7, rank_scale=1.0, temperature=0.9), 0.9),
    ],
)
def test_distillation_of_random_batches_equals_numpy(
    seed: int, distillation: Distillation, student_temperature: float
) -> None:
    scores, relations, ranks = random_batch(np.random.default_rng(seed))
    loss = MaskedInfoNCE(0.5, distillation)
    value, gradient = outcome(loss, scores, relations, ranks)
    wide = scores.astype(float)
    alone = divergence(wide, ranks, distillation.rank_scale, student_temperature)
    expected, expected_gradient, _ = contrastive(wide, relations, 0.5)
    assert alone > 0 and value == pytest.approx(expected + distillation.weight * alone, abs=1e-6)
    assert loss.divergence(torch.tensor(scores), torch.tensor(ranks)).item() == pytest.approx(alone, abs=1e-6)
    step = 1e-6
    for row, column in np.ndindex(*scores.shape):
        moved = wide.copy()
        moved[row, column] += step
        change = divergence(moved, ranks, distillation.rank_scale, student_temperature) - alone
        expected_gradient[row, column] += distillation.weight * change / step
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-5)
    np.testing.assert_array_equal(gradient[0], outcome(MaskedInfoNCE(0.5), scores, relations)[1][0])


def test_model_that_scores_as_the_oracle_ranks_has_nothing_left_to_distil() -> None:
    ranks = torch.tensor([[3, UNRANKED, 0, 9]])
    loss = MaskedInfoNCE(0.05, Distillation(weight=1, rank_scale=2, temperature=0.1))
    scores = -ranks * 0.1 / 2
    assert loss.divergence(scores, ranks).item() == pytest.approx(0, abs=1e-6)
    assert loss.divergence(-scores, ranks).item() > 1


@pytest.mark.parametrize("ranks", [[[UNRANKED] * 3, [0, UNRANKED, UNRANKED]], None])
def test_batch_that_ranks_less_than_two_documents_a_row_has_the_contrastive_term_alone(
    ranks: list[list[int]] | None,
) -> None:
    relations = np.array([[POSITIVE, NEGATIVE, MASKED], [NEGATIVE, POSITIVE, NEGATIVE]])
    scores = np.array([[0.1, 0.5, 0.2], [0.3, 0.1, 0.9]])
    value, gradient = outcome(
        MaskedInfoNCE(0.1, Distillation(weight=5)), scores, relations, None if ranks is None else np.array(ranks)
    )
    expected, expected_gradient = outcome(MaskedInfoNCE(0.1), scores, relations)
    assert value == expected
    np.testing.assert_array_equal(gradient, expected_gradient)


def test_rows_without_a_negative_are_left_out_and_counted() -> None:
    loss = MaskedInfoNCE(1.0)
    relations = np.array([[POSITIVE, MASKED], [NEGATIVE, POSITIVE]])
    for num_calls in (1, 2):
        value, gradient = outcome(loss, np.eye(2), relations)
        assert value == pytest.approx(np.log(1 + np.exp(-1)))
        assert not gradient[0].any() and gradient[1].all()
        assert loss.num_without_negative == num_calls


def test_batch_in_which_nothing_can_be_learnt_gives_zero_and_no_gradient() -> None:
    loss = MaskedInfoNCE(0.01)
    value, gradient = outcome(loss, np.eye(2), np.array([[POSITIVE, MASKED], [MASKED, POSITIVE]]))
    assert value == 0 and not gradient.any() and loss.num_without_negative == 2


@pytest.mark.parametrize("kinds", [[MASKED, MASKED, MASKED], [MASKED, POSITIVE, MASKED]])
def test_gradient_of_a_masked_row_is_exactly_zero(kinds: list[int]) -> None:
    relations = np.array([kinds, [POSITIVE, NEGATIVE, NEGATIVE]])
    value, gradient = outcome(MaskedInfoNCE(1e-4), np.array([[1, -1, 1], [-1, 1, 1]]), relations)
    assert np.isfinite(value) and np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[0], 0)
    assert gradient[1].any()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), temperature=st.sampled_from([0.01, 0.05, 1.0]), shift=st.floats(-1, 1))
def test_masked_scores_change_neither_loss_nor_gradient_and_get_none(
    seed: int, temperature: float, shift: float
) -> None:
    scores, relations, _ = random_batch(np.random.default_rng(seed))
    value, gradient = outcome(MaskedInfoNCE(temperature), scores, relations)
    masked = relations == MASKED
    np.testing.assert_array_equal(gradient[masked], 0)
    assert value >= 0 and np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient.sum(axis=1), 0, atol=1e-4 / temperature)
    moved, moved_gradient = outcome(MaskedInfoNCE(temperature), np.where(masked, shift, scores), relations)
    assert moved == value
    np.testing.assert_array_equal(moved_gradient, gradient)


SCORES = np.array([[0.5, 0.75, 0.625, 0.5, 0.25, 0.875]])
RELATIONS = np.array([[POSITIVE, NEGATIVE, NEGATIVE, NEGATIVE, NEGATIVE, HARD_NEGATIVE]])


@pytest.mark.parametrize(
    ("margin", "filtered"),
    [(None, []), (0.25, []), (0.125, [1]), (0.0, [1, 2]), (-0.125, [1, 2, 3]), (-2.0, [1, 2, 3, 4])],
)
def test_negatives_that_score_above_the_positive_by_more_than_the_margin_are_masked(
    margin: float | None, filtered: list[int]
) -> None:
    loss = MaskedInfoNCE(0.1, false_negative_margin=margin)
    value, gradient = outcome(loss, SCORES, RELATIONS)
    kept = RELATIONS.copy()
    kept[0, filtered] = MASKED
    expected, expected_gradient, _ = contrastive(SCORES, kept, 0.1)
    assert value == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-5)
    assert loss.num_filtered == len(filtered) and loss.num_without_negative == 0
    assert gradient[0, 5] > 0, "a row's own hard negative is never filtered"


def test_row_whose_negatives_are_all_filtered_is_left_out_and_counted() -> None:
    relations = np.array([[POSITIVE, NEGATIVE, MASKED], [NEGATIVE, POSITIVE, NEGATIVE]])
    scores = np.array([[0, 1, 1], [0.5, 1, 0.5]])
    loss = MaskedInfoNCE(1.0, false_negative_margin=0.5)
    value, gradient = outcome(loss, scores, relations)
    assert value == pytest.approx(np.log(1 + 2 * np.exp(-0.5)))
    assert not gradient[0].any() and loss.num_filtered == loss.num_without_negative == 1


def test_filter_leaves_the_oracles_order_alone() -> None:
    distillation = Distillation(weight=1)
    ranks = np.array([[0, 1, 2, UNRANKED, 3, 4]])
    loss = MaskedInfoNCE(0.1, distillation, false_negative_margin=-2)
    value, _ = outcome(loss, SCORES, RELATIONS, ranks)
    kept = np.where(RELATIONS == NEGATIVE, MASKED, RELATIONS)
    expected = contrastive(SCORES, kept, 0.1)[0] + divergence(SCORES, ranks, 2, 0.1)
    assert value == pytest.approx(expected, abs=1e-5)


def test_scores_in_half_precision_are_computed_in_float32() -> None:
    scores = torch.tensor([[0.75, 0.5, 0.25]], dtype=torch.bfloat16)
    value = MaskedInfoNCE(0.01)(scores, torch.tensor([[NEGATIVE, POSITIVE, NEGATIVE]]))
    assert value.dtype == torch.float32 and value.item() == pytest.approx(25, abs=1e-5)
