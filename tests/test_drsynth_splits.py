import random

import pytest

from agentir.drsynth.splits import question_components, split_questions
from agentir.errors import InputError
from agentir.records import QAItem


def item(qid: str, *gold: str, split: str | None = None) -> QAItem:
    return QAItem(qid=qid, question="?", answers=(), gold_docids=gold, split=split)


CHAIN = [item("a", "1", "2"), item("b", "2", "3"), item("c", "3"), item("d", "4"), item("e"), item("f", "4", "5")]


def test_questions_that_share_gold_over_others_are_one_component() -> None:
    components = [[one.qid for one in component] for component in question_components(CHAIN)]
    assert sorted(components) == [["a", "b", "c"], ["d", "f"], ["e"]]


def test_given_splits_are_kept_and_followed() -> None:
    items = [
        item("a", "1", split="heldout"),
        item("b", "1", "2"),
        item("c", "2"),
        item("d", "3", split="train"),
        item("e", "4"),
    ]
    assert split_questions(items) == {"a": "heldout", "b": "heldout", "c": "heldout", "d": "train", "e": "train"}


@pytest.mark.parametrize(
    "items",
    [
        [item("a", "1", "7", split="train"), item("b", "7", split="heldout")],
        [item("a", "1", split="train"), item("b", "1", "7"), item("c", "7", split="heldout")],
        [item("a", "7", split="dev"), item("b", "7", split="train")],
    ],
)
def test_gold_on_two_sides_is_refused_and_named(items: list[QAItem]) -> None:
    with pytest.raises(InputError, match=r"found 1 on several: 7 \((train|dev) \w, (heldout|train) \w\)"):
        split_questions(items)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(InputError, match="expected one of train, dev, heldout, or none, found 'test'"):
        split_questions([item("a", split="test")])


def test_drawn_splits_share_no_gold_and_are_fixed_by_the_seed() -> None:
    rng = random.Random(0)
    items = [item(f"q{n}", *(f"d{rng.randrange(400)}" for _ in range(2))) for n in range(200)]
    splits = split_questions(items, heldout_fraction=0.2, dev_fraction=0.25, seed=1)
    sides = [splits[one.qid] for one in items]
    assert (sides.count("heldout"), sides.count("dev"), sides.count("train")) == (40, 40, 120)
    by_side = {
        side: {docid for one in items if splits[one.qid] == side for docid in one.gold_docids} for side in set(sides)
    }
    assert by_side["train"].isdisjoint(by_side["heldout"] | by_side["dev"])
    assert by_side["dev"].isdisjoint(by_side["heldout"])
    assert splits == split_questions(items[::-1], heldout_fraction=0.2, dev_fraction=0.25, seed=1)
    assert splits != split_questions(items, heldout_fraction=0.2, dev_fraction=0.25, seed=2)


def test_development_questions_are_cut_from_training_only() -> None:
    items = [item(f"t{n}", f"t{n}", split="train") for n in range(10)] + [item("h", "h", split="heldout")]
    splits = split_questions(items, heldout_fraction=0.9, dev_fraction=0.3)
    assert splits["h"] == "heldout"
    assert sorted(splits.values()) == ["dev"] * 3 + ["heldout"] + ["train"] * 7
