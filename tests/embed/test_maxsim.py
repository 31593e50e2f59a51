"""Exact MaxSim against a loop over tokens."""

from collections.abc import Sequence

import numpy as np
import pytest
from sentence_transformers.util.similarity import maxsim as reference

from agentir.embed.maxsim import MultiVectorTexts, TokenVectors, maxsim, spans


def texts(lengths: Sequence[int], dim: int = 8, seed: int = 0) -> MultiVectorTexts:
    rng = np.random.default_rng(seed)
    drawn = [rng.normal(size=(length, dim)) for length in lengths]
    return MultiVectorTexts.join(
        [(each / np.linalg.norm(each, axis=1, keepdims=True)).astype(np.float32) for each in drawn], dim
    )


def loop(query: TokenVectors, document: TokenVectors) -> float:
    total = 0.0
    for token in query:
        total += max((float(np.dot(token, other)) for other in document), default=-1.0)
    return total


def test_ragged_texts_equal_a_loop_over_tokens() -> None:
    queries, documents = texts([3, 1, 40], seed=1), texts([5, 0, 1, 0, 30, 2, 0], seed=2)
    expected = [[loop(query, document) for document in documents] for query in queries]
    found = maxsim(queries, documents)
    assert found.shape == (3, 7) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert found[0, 1] == -3  # no vector: below whatever has some
    np.testing.assert_allclose(maxsim(queries, documents, normalize=True), found / [[3], [1], [40]], atol=1e-6)


def test_more_documents_than_one_block_equal_those_of_sentence_transformers() -> None:
    queries, documents = texts([300, 20], seed=3), texts([700] * 45, seed=4)  # 300 x 31500 similarities: three blocks
    expected = reference(list(queries), list(documents)).numpy()
    np.testing.assert_allclose(maxsim(queries, documents), expected, rtol=1e-5)


def test_half_precision_vectors_are_compared_in_single_precision() -> None:
    queries, documents = texts([20], seed=5), texts([30, 40], seed=6)
    half = MultiVectorTexts(vectors=documents.vectors.astype(np.float16), ends=documents.ends)
    expected = [[loop(queries[0], half[row].astype(np.float32)) for row in range(2)]]
    np.testing.assert_allclose(maxsim(queries, half), expected, atol=1e-5)


def test_nothing_to_compare() -> None:
    assert maxsim(texts([]), texts([2])).shape == (0, 1)
    assert maxsim(texts([2]), texts([])).shape == (1, 0)


def test_texts_by_their_place() -> None:
    some = texts([2, 0, 3])
    assert [len(text) for text in some] == [2, 0, 3]
    np.testing.assert_array_equal(some[-1], some.vectors[2:])
    with pytest.raises(IndexError):
        some[3]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([], []), ([9], [(0, 1)]), ([2, 2, 2], [(0, 2), (2, 3)]), ([9, 1, 3, 1], [(0, 1), (1, 3), (3, 4)])],
)
def test_spans(lengths: list[int], expected: list[tuple[int, int]]) -> None:
    assert list(spans(np.array(lengths, dtype=np.int64), 4)) == expected
