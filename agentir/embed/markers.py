"""Prompts that begin with a special token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentir.embed.template import QueryTemplate
from agentir.embed.tokens import Tokenization, TokenizedQuery
from agentir.records import Document, SearchQuery


class MarkedTokenization(Tokenization):
    """Tokenization for models whose prompts begin with a marker token, such as ColBERT's `[unused0]` or PyLate's `[Q] `.

    Markers of special tokens inside a text are read as plain characters; that of the model's own prompt is put in by its
    id, behind the tokens that open every text.

    Args:
        tokenizer: a fast tokenizer of transformers.
        template: how queries and documents are rendered, markers included.
        max_query_tokens: limit of a rendered query, special tokens and marker included.
        max_document_tokens: limit of a document, likewise.
    """

    def __init__(
        self, tokenizer: Any, template: QueryTemplate, max_query_tokens: int, max_document_tokens: int
    ) -> None:
        super().__init__(tokenizer, template, max_query_tokens, max_document_tokens)
        special = set(tokenizer.all_special_ids)
        opening = tokenizer("a")["input_ids"]
        self._place = next(place for place, token in enumerate(opening) if token not in special)
        self._query_marker, instruction = split_marker(tokenizer, template.instruction)
        self._document_marker, document_instruction = split_marker(tokenizer, template.document_instruction)
        self._bare = Tokenization(
            tokenizer,
            replace(template, instruction=instruction, document_instruction=document_instruction),
            max_query_tokens - len(self._query_marker),
            max_document_tokens - len(self._document_marker),
        )

    def queries(self, queries: Sequence[SearchQuery]) -> list[TokenizedQuery]:
        """Token ids of rendered queries, see `Tokenization.queries`."""
        tokenized = self._bare.queries(queries)
        return [replace(each, ids=self._marked(each.ids, self._query_marker)) for each in tokenized]

    def documents(self, documents: Sequence[Document]) -> list[list[int]]:
        """Token ids of documents, see `Tokenization.documents`."""
        return [self._marked(ids, self._document_marker) for ids in self._bare.documents(documents)]

    def _marked(self, ids: list[int], marker: list[int]) -> list[int]:
        return ids[: self._place] + marker + ids[self._place :]


def split_marker(tokenizer: Any, prompt: str) -> tuple[list[int], str]:
    """The special token that a prompt begins with, as ids (none or one), and the rest of the prompt."""
    markers = [token for token in tokenizer.all_special_tokens if prompt.startswith(token)]
    marker = max(markers, key=len, default="")
    return [tokenizer.convert_tokens_to_ids(marker)] if marker else [], prompt.removeprefix(marker)
