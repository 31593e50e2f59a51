"""From token ids to the vectors of a whole batch: parts of similar length, little memory, and several processes.

A batch is encoded in parts, each of texts of similar length, so that little is padded. With a cache (GradCache) only the
vectors are kept of all parts but the last, which are encoded once more in the backward pass: the same loss and gradients
whatever the batch size, in the memory of one part. Several processes encode a share each and exchange vectors; each
computes the whole loss, and its gradients reach its own share, so that their sum is that of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from agentir.embed.model import pad_batch, token_batches
from agentir.train.memory import HEAP

CPU_PART_TOKENS, GPU_PART_TOKENS = 2048, 65536
"""Tokens of a part, padding included, where no cache is asked for: small parts stay in a processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLimits:
    """How large the parts are that a batch is encoded in.

    Attributes:
        size: texts of a part, None for no limit.
        tokens: tokens of a part, padding included, None for no limit; one text is always encoded whole.
        cached: keep the vectors only and encode all parts but the last again in the backward pass (GradCache).
    """

    size: int | None = None
    tokens: int | None = None
    cached: bool = False


Scoring = Callable[[nn.Module, dict[str, Any], dict[str, Any], bool], torch.Tensor]
"""Scores (queries, documents) of a batch by model, queries, documents and whether activations are cached."""
WHOLE = PartLimits()
"""A batch is one part."""


def split(lengths: Sequence[int], limits: PartLimits) -> list[list[int]]:
    """Groups texts of similar length into parts within the limits, the longest last.

    The last is the one whose activations a cache keeps, so the longest is the one that is not encoded twice.
    """
    parts = token_batches(lengths, limits.tokens or sum(lengths) * len(lengths) + 1)
    size = limits.size or len(lengths)
    return [part[start : start + size] for part in parts for start in range(0, len(part), size)][::-1]


def shares(lengths: Sequence[int], num_processes: int) -> list[list[int]]:
    """Deals texts out to processes, by length, so that each gets as many and about as long ones."""
    order = sorted(range(len(lengths)), key=lambda text: -lengths[text])
    dealt: list[list[int]] = [[] for _ in range(num_processes)]
    for number, text in enumerate(order):
        turn, process = divmod(number, num_processes)
        dealt[process if turn % 2 == 0 else num_processes - 1 - process].append(text)
    return dealt


def texts_of_process(
    ids: Sequence[list[int]], tokenizer: Any, limits: PartLimits, rank: int = 0, num_processes: int = 1
) -> dict[str, Any]:
    """What a process encodes of a batch's texts, as tensors.

    All processes get the same number of parts, since the frameworks that shard a model need as many forward passes in
    each: where one has fewer, a text is repeated whose vectors do not count.

    Args:
        ids: token ids of all texts of the batch.
        tokenizer: pads on its own side.
        limits: of the parts.
        rank: of this process.
        num_processes: that share the work.

    Returns:
        `parts` (a list of `input_ids` and `attention_mask`, int64 (texts, tokens)), `num_repeated` (how many of the
        first parts do not count), `order` (int64: where the vectors of all processes, one process after the other,
        belong in the batch), `sizes` (texts of each process).
    """
    lengths = [len(each) for each in ids]
    grouped = []
    for dealt in shares(lengths, num_processes):
        grouped.append([[dealt[at] for at in part] for part in split([lengths[text] for text in dealt], limits)])
    own = grouped[rank]
    num_repeated = max(len(parts) for parts in grouped) - len(own)
    shortest = min(range(len(ids)), key=lambda text: lengths[text])
    parts = []
    for part in [[shortest]] * num_repeated + own:
        input_ids, mask = pad_batch([ids[text] for text in part], tokenizer.pad_token_id, tokenizer.padding_side)
        parts.append({"input_ids": torch.from_numpy(input_ids), "attention_mask": torch.from_numpy(mask)})
    return {
        "parts": parts,
        "num_repeated": num_repeated,
        "order": torch.tensor([text for process in grouped for part in process for text in part]),
        "sizes": [sum(len(part) for part in process) for process in grouped],
    }


def encode(model: nn.Module, texts: dict[str, Any], cached: bool, *, keep_last: bool = True) -> torch.Tensor:
    """Unit vectors (texts, dim) of all texts of a batch, in its order; gradients flow into this process's own.

    Args:
        model: a sentence-transformers model, or its distributed wrapper.
        texts: see `texts_of_process`.
        cached: keep no activations but those of the last part.
        keep_last: keep those; not where further texts are encoded before the backward pass.
    """
    parts = [(part["input_ids"], part["attention_mask"]) for part in texts["parts"]]
    num_twice = len(parts) - keep_last if cached else 0
    vectors = [checkpoint(_encode, model, *part, use_reentrant=False) for part in parts[:num_twice]]
    vectors += [_encode(model, *part) for part in parts[num_twice:]]
    repeated, own = torch.cat(vectors).tensor_split([texts["num_repeated"]])  # a repeated part holds one text
    if len(repeated):  # they must take part in the backward pass too
        own = own + 0 * repeated.sum()
    gathered = gather(own, texts["sizes"])
    inverse = torch.empty_like(texts["order"])
    inverse[texts["order"]] = torch.arange(len(inverse), device=inverse.device)
    return nn.functional.normalize(gathered.float(), dim=-1)[inverse]


def dot_scores(model: nn.Module, queries: dict[str, Any], documents: dict[str, Any], cached: bool) -> torch.Tensor:
    """Dot products of unit vectors, (queries, documents), of all texts of a batch; see `encode`."""
    return encode(model, queries, cached, keep_last=False) @ encode(model, documents, cached).T


def _encode(model: nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if ids.device.type == "cpu":
        HEAP.trim_after(ids.numel())
    vectors: torch.Tensor = model({"input_ids": ids, "attention_mask": mask})["sentence_embedding"]
    return vectors


def gather(own: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """The vectors of all processes, one process after the other; only this process's own carry gradients."""
    if len(sizes) == 1:
        return own
    rank = torch.distributed.get_rank()
    room = own.new_zeros((max(sizes), *own.shape[1:]))
    padded = torch.cat([own.detach(), room[len(own) :]])
    received = [torch.empty_like(padded) for _ in sizes]
    torch.distributed.all_gather(received, padded)
    return torch.cat([own if other == rank else received[other][:size] for other, size in enumerate(sizes)])
