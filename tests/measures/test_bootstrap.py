"""The paired bootstrap over questions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agentir.errors import InputError
from agentir.measures.bootstrap import paired_bootstrap

CASES = Path(__file__).parent.parent / "data" / "cases"


def test_systems_are_paired_by_id_and_the_unpaired_are_reported() -> None:  # case E29
    values = {name: json.loads((CASES / "E29" / f"{name}.json").read_text()) for name in ("a", "b")}
    result = paired_bootstrap(values, {qid: qid for qid in values["a"]}, [("b", "a")])
    assert set(result.ids) == {"q1", "q3"}
    assert result.unpaired == {"a": ("q2",), "b": ()}
    difference = result.differences["b", "a"]
    assert (difference.mean, difference.low, difference.high) == pytest.approx((0.1, 0.1, 0.1))
    assert result.systems["a"].mean == pytest.approx(0.3)


def test_the_mean_weighs_sub_queries_and_not_questions() -> None:
    values = {"s": {"a1": 1.0, "b1": 0.0, "b2": 0.0, "b3": 0.0}}
    result = paired_bootstrap(values, {"a1": "a", "b1": "b", "b2": "b", "b3": "b"})
    interval = result.systems["s"]
    assert interval.mean == 0.25
    # of two questions, both, only a, or only b are drawn: the resampled mean is .25, 1 or 0
    assert (interval.low, interval.high, result.num_clusters) == (0.0, 1.0, 2)


def test_intervals_equal_a_plain_loop_over_resamples() -> None:
    rng = np.random.default_rng(5)
    ids = [f"s{i}" for i in range(60)]
    clusters = {id_: f"q{rng.integers(12)}" for id_ in ids}
    values = {name: {id_: float(rng.random()) for id_ in ids} for name in ("a", "b")}
    result = paired_bootstrap(values, clusters, [("a", "b")], num_resamples=4000, seed=1)

    names = sorted(set(clusters.values()))
    draws = np.random.default_rng(99)
    differences = []
    for _ in range(4000):
        drawn = [id_ for name in draws.choice(names, len(names)) for id_ in ids if clusters[id_] == name]
        differences.append(np.mean([values["a"][id_] - values["b"][id_] for id_ in drawn]))
    low, high = np.percentile(differences, [2.5, 97.5])
    found = result.differences["a", "b"]
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.012)
    assert found.mean == pytest.approx(np.mean([values["a"][id_] - values["b"][id_] for id_ in ids]))


def test_all_systems_see_the_same_resamples() -> None:
    rng = np.random.default_rng(3)
    one = {f"s{i}": float(rng.random()) for i in range(50)}
    values = {"a": {id_: value + 0.1 for id_, value in one.items()}, "b": one}
    found = paired_bootstrap(values, {id_: id_ for id_ in one}, [("a", "b")]).differences["a", "b"]
    assert (found.low, found.high) == pytest.approx((0.1, 0.1))


def test_the_seed_decides_the_numbers_and_the_order_of_ids_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    one = {f"s{i:02}": float(rng.random()) for i in range(40)}
    turned = dict(reversed(one.items()))
    clusters = {id_: f"q{int(id_[1:]) % 9}" for id_ in one}
    first, again, other = (
        paired_bootstrap({"s": table}, clusters, seed=seed, num_resamples=500).systems["s"]
        for table, seed in ((one, 0), (turned, 0), (one, 1))
    )
    assert (first.mean, first.low, first.high) == pytest.approx((again.mean, again.low, again.high))
    assert (first.low, first.high) != (other.low, other.high)


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(InputError, match="no sub-query that all of a, b have"):
        paired_bootstrap({"a": {"x": 1.0}, "b": {"y": 1.0}}, {"x": "x", "y": "y"})
    with pytest.raises(InputError, match="unknown system 'c'"):
        paired_bootstrap({"a": {"x": 1.0}}, {"x": "x"}, [("a", "c")])
    with pytest.raises(InputError, match="at least one system"):
        paired_bootstrap({}, {})
