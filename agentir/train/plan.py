"""Which rows make a batch: the whole order of a run, fixed by the seed before the first step.

A run that was stopped continues with the next batch of the same plan; several processes read the same plan and share the
work of each batch.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from agentir.errors import ConfigError

POOL_BATCHES = 8
"""Batches that are filled together from rows of similar length."""


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch: the epoch it belongs to and the numbers of its rows."""

    epoch: int
    rows: tuple[int, ...]


def check_size(num_rows: int, batch_size: int) -> None:
    """Raises:
    ConfigError: there are fewer rows than one batch.
    """
    if num_rows < batch_size:
        raise ConfigError(
            f"batch_size: expected at most the number of training rows ({num_rows}), found {batch_size}; smaller batches are "
            "left out, so there would be nothing to train on"
        )


def plan_batches(
    questions: Sequence[str],
    lengths: Sequence[int],
    *,
    batch_size: int,
    epochs: float,
    seed: int,
    batch_tokens: int | None = None,
    exclusive: bool = False,
) -> list[PlannedBatch]:
    """All batches of a run, in order.

    Each epoch puts the rows into random order, then sorts them by length within pools of a few batches (less padding,
    the same data), and shuffles the batches. Rows that do not fill a batch are left out of the epoch, others each time.

    Args:
        questions: the question of each row.
        lengths: the tokens of each row.
        batch_size: rows of a batch.
        epochs: passes over the rows; may end inside one.
        seed: of the order.
        batch_tokens: close a batch before it would hold more tokens than this, padding included; batches then differ in
            size, and a row that finds no second one is left out.
        exclusive: no two rows of the same question in a batch.

    Raises:
        ConfigError: there are fewer rows than one batch, or a row is too long for any.
    """
    if batch_tokens is None:
        check_size(len(questions), batch_size)
    if batch_tokens is not None and batch_size > 1 and 2 * max(lengths, default=0) > batch_tokens:
        raise ConfigError(
            f"batch_tokens: expected at least {2 * max(lengths)}, room for two of the longest query, found {batch_tokens}; "
            "longer queries would never be trained on: raise it, or shorten them by max_query_tokens"
        )
    plan: list[PlannedBatch] = []
    first = _epoch(questions, lengths, batch_size, batch_tokens, exclusive, seed, 0)
    if not first:
        raise ConfigError(
            f"batch_size {batch_size}, batch_tokens {batch_tokens}: expected at least one whole batch, found none in "
            f"{len(questions)} rows of {len(set(questions))} questions; make batches smaller, or let rows of a question "
            "share them"
        )
    whole, part = int(epochs), epochs - int(epochs)
    for epoch in range(whole + (part > 0)):
        batches = first if epoch == 0 else _epoch(questions, lengths, batch_size, batch_tokens, exclusive, seed, epoch)
        kept = batches if epoch < whole else batches[: max(round(part * len(batches)), int(epoch == 0))]
        plan += [PlannedBatch(epoch, tuple(batch)) for batch in kept]
    return plan


def num_left_out(plan: Sequence[PlannedBatch], num_rows: int, epochs: float) -> int:
    """Rows of the first epoch that are in no batch; 0 where the run ends inside it."""
    return num_rows - sum(len(batch.rows) for batch in plan if batch.epoch == 0) if epochs >= 1 else 0


def _epoch(
    questions: Sequence[str],
    lengths: Sequence[int],
    batch_size: int,
    batch_tokens: int | None,
    exclusive: bool,
    seed: int,
    epoch: int,
) -> list[list[int]]:
    rng = random.Random(f"{seed}\x00{epoch}")
    rows = list(range(len(lengths)))
    rng.shuffle(rows)
    if batch_tokens is None:
        if exclusive:
            rows = _at_most(len(rows) // batch_size, rows, questions)
        rows = rows[: len(rows) // batch_size * batch_size]  # before sorting: otherwise the longest would be left out
    fill = partial(
        _fill,
        questions=questions,
        lengths=lengths,
        batch_size=batch_size,
        batch_tokens=batch_tokens,
        exclusive=exclusive,
    )
    pool_size = batch_size * POOL_BATCHES
    batches = []
    waiting: list[int] = []  # rows of earlier pools that found no batch
    for start in range(0, len(rows), pool_size):
        pool = sorted(waiting + rows[start : start + pool_size], key=lengths.__getitem__)
        whole, waiting = fill(pool)
        if waiting and start + pool_size >= len(rows):
            # those left over are the longest: fill from both ends, so that rows of another length are left each time
            middle = rng.randrange(len(pool) + 1)
            (shorter, below), (longer, above) = fill(pool[:middle]), fill(pool[middle:][::-1])
            between, waiting = fill(sorted(below + above, key=lengths.__getitem__))
            whole = shorter + longer + between
        batches += whole
    rng.shuffle(batches)
    return batches


def _at_most(num_batches: int, rows: Sequence[int], questions: Sequence[str]) -> list[int]:
    """The first rows of each question; more than there are batches find no place, and would always be the same ones."""
    seen: Counter[str] = Counter()
    kept = []
    for row in rows:
        seen[questions[row]] += 1
        if seen[questions[row]] <= num_batches:
            kept.append(row)
    return kept


def _fill(
    pool: Sequence[int],
    *,
    questions: Sequence[str],
    lengths: Sequence[int],
    batch_size: int,
    batch_tokens: int | None,
    exclusive: bool,
) -> tuple[list[list[int]], list[int]]:
    """Puts rows, sorted by length either way, into the first open batch that takes them; gives whole batches and the rest."""
    open_batches: list[list[int]] = []
    closed: list[list[int]] = []
    for row in pool:
        for batch in open_batches:
            if exclusive and any(questions[other] == questions[row] for other in batch):
                continue
            if batch_tokens is not None and max(lengths[batch[0]], lengths[row]) * (len(batch) + 1) > batch_tokens:
                continue
            batch.append(row)
            break
        else:
            open_batches.append([row])
        closed += [batch for batch in open_batches if len(batch) == batch_size]
        open_batches = [batch for batch in open_batches if len(batch) < batch_size]
    if batch_tokens is not None:
        closed += [batch for batch in open_batches if len(batch) >= 2]
        open_batches = [batch for batch in open_batches if len(batch) < 2]
    return closed, [row for batch in open_batches for row in batch]
