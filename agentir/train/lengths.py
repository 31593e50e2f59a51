"""How long queries and documents are in tokens, and which queries are too long to be read at all."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agentir.embed.tokens import Tokenization
from agentir.errors import InputError
from agentir.jsonl import MAX_SHOWN
from agentir.records import Document
from agentir.train.data import TrainingRow

MAX_DOCUMENTS = 1000
MAX_CHARACTERS = 1_000_000
"""Documents are drawn until there are so many, or so many characters: tokenizing these takes half a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of `num` texts with their template, before any cut, and how many of them are cut to the limit."""

    num: int
    median: int
    p90: int
    p99: int
    max: int
    limit: int
    num_cut: int

    def __str__(self) -> str:
        share = self.num_cut / self.num if self.num else 0
        return (
            f"median {self.median}, 90 % up to {self.p90}, 99 % up to {self.p99}, longest {self.max}; "
            f"{self.num_cut} of {self.num} ({share:.1%}) longer than {self.limit}"
        )


def query_lengths(rows: Sequence[TrainingRow], tokenization: Tokenization) -> Lengths:
    """Those of all rows; the cut ones lose the oldest part of their context."""
    whole = tokenization.ids([tokenization.template.render(row.query) for row in rows])
    return _lengths(whole, tokenization.max_query_tokens)


def document_lengths(documents: Mapping[str, Document], tokenization: Tokenization, seed: int = 0) -> Lengths:
    """Those of documents drawn at random, see `MAX_DOCUMENTS`."""
    docids = sorted(documents)
    random.Random(seed).shuffle(docids)
    texts: list[str] = []
    characters = 0
    for docid in docids[:MAX_DOCUMENTS]:
        if characters >= MAX_CHARACTERS:
            break
        texts.append(tokenization.template.render_document(documents[docid]))
        characters += len(texts[-1])
    return _lengths(tokenization.ids(texts), tokenization.max_document_tokens)


def _lengths(ids: Sequence[Sequence[int]], limit: int) -> Lengths:
    lengths = [len(row) for row in ids] or [0]
    median, p90, p99 = (int(value) for value in np.percentile(lengths, (50, 90, 99), method="higher"))
    return Lengths(
        num=len(ids),
        median=median,
        p90=p90,
        p99=p99,
        max=max(lengths),
        limit=limit,
        num_cut=sum(length > limit for length in lengths),
    )


def too_long(rows: Iterable[TrainingRow], tokenization: Tokenization) -> list[tuple[TrainingRow, int]]:
    """The rows whose query exceeds the limit even without any context, with its tokens."""
    rows = list(rows)
    template = tokenization.template
    empty = template.empty if template.context_slot else ""
    around = [template.around_context(row.query) for row in rows]
    bare = tokenization.ids([before + empty + after for before, after in around])
    return [(row, len(ids)) for row, ids in zip(rows, bare, strict=True) if len(ids) > tokenization.max_query_tokens]


def refuse_too_long(rows: Iterable[TrainingRow], tokenization: Tokenization) -> None:
    """Raises:
    InputError: queries exceed the limit even without any context; the text lists their rows.
    """
    if found := too_long(rows, tokenization):
        shown = [f"{row} ({num_tokens} tokens)" for row, num_tokens in found[:MAX_SHOWN]]
        raise InputError(
            f"query: expected at most {tokenization.max_query_tokens} tokens with the template around it, found {len(found)} "
            f"queries that are longer even without reasoning: {'; '.join(shown)}; raise max_query_tokens or take them out"
        )
