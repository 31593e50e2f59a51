"""Texts to token ids under a limit: the context is shortened from its oldest end, the query never.

An encoder's tokenizer cuts at the right, where the query stands; a long reasoning would silently delete it. Here the
text is shortened before the tokenizer sees it, so that instruction, whole query and final special token always survive.
The context is what the template shows beside the query, or instead of it. Whatever it is, it loses its beginning: a
question, too, keeps its end.

Markers of special tokens inside a text (`<|endoftext|>`, `[SEP]`) are read as plain characters. Limit: tokens that a
tokenizer adds without declaring them special (`<think>` of Qwen3) are still recognised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentir.embed.encoder import QueryTooLongError
from agentir.embed.template import QueryTemplate
from agentir.errors import EncoderError
from agentir.records import Document, SearchQuery


@dataclass(frozen=True, slots=True)
class TokenizedQuery:
    """Token ids of a rendered query, and whether its context had to be shortened."""

    ids: list[int]
    shortened: bool


class Tokenization:
    """The way from queries and documents to token ids, for one tokenizer, template and pair of limits.

    Args:
        tokenizer: a fast tokenizer of transformers.
        template: how queries and documents are rendered.
        max_query_tokens: limit of a rendered query, special tokens included.
        max_document_tokens: limit of a document; it is cut at its end, the final special token is kept.
    """

    def __init__(
        self, tokenizer: Any, template: QueryTemplate, max_query_tokens: int, max_document_tokens: int
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.max_query_tokens = max_query_tokens
        self.max_document_tokens = max_document_tokens

    def ids(self, texts: Sequence[str], max_tokens: int | None = None) -> list[list[int]]:
        """Token ids of whole texts, special tokens added; cut at the right only if a limit is given."""
        if not texts:
            return []
        options: dict[str, Any] = {"truncation": True, "max_length": max_tokens} if max_tokens is not None else {}
        encoded = self.tokenizer(
            list(texts),
            add_special_tokens=True,
            split_special_tokens=True,
            return_attention_mask=False,
            verbose=False,
            **options,
        )
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def queries(self, queries: Sequence[SearchQuery]) -> list[TokenizedQuery]:
        """Token ids of rendered queries, none longer than the limit.

        Raises:
            QueryTooLongError: a query is longer than the limit even without any context.
            EncoderError: so is the template itself, or it shows only a question, which is missing.
        """
        whole = self.ids([self.template.render(query) for query in queries])
        return [
            TokenizedQuery(ids, False)
            if len(ids) <= self.max_query_tokens
            else TokenizedQuery(self._shortened(query), True)
            for query, ids in zip(queries, whole, strict=True)
        ]

    def _shortened(self, query: SearchQuery) -> list[int]:
        """The longest newest part of the context, from a token boundary on, with which the rendered query fits."""
        before, after = self.template.around_context(query)
        context = self.template.context(query)
        starts = self._token_starts(context)
        best: list[int] | None = None
        low, high = 0, len(starts)  # starts[high:] always fits (or nothing does), starts[:low] never
        while low < high or best is None:
            middle = (low + high) // 2
            kept = context[starts[middle] :] if middle < len(starts) else ""
            ids = self.ids([before + (kept or (self.template.empty if self.template.context_slot else "")) + after])[0]
            if len(ids) <= self.max_query_tokens:
                best, high = ids, middle
            elif middle == len(starts):
                raise self._too_long(query, len(ids))
            else:
                low = middle + 1
        return best

    def _too_long(self, query: SearchQuery, num_tokens: int) -> EncoderError:
        """What is wrong where nothing fits even without any context."""
        if not self.template.shows_query:
            return EncoderError(
                f"max_query_tokens: expected at least {num_tokens}, which the template takes alone, found "
                f"{self.max_query_tokens}"
            )
        return QueryTooLongError(
            f"query: expected at most {self.max_query_tokens} tokens with the template around it, found {num_tokens}: "
            f"{query.query[:80]!r}"
        )

    def _token_starts(self, text: str) -> list[int]:
        """Character offsets at which the tokens of a text begin."""
        if not text:
            return []
        encoded = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True, verbose=False
        )
        return sorted({start for start, end in encoded["offset_mapping"] if end > start})

    def documents(self, documents: Sequence[Document]) -> list[list[int]]:
        """Token ids of documents, cut at their end to the limit, the final special token kept."""
        return self.ids([self.template.render_document(document) for document in documents], self.max_document_tokens)
