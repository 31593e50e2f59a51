"""Training examples in the columns of sentence-transformers: `anchor`, `positive`, `negative_1` and so on."""

from __future__ import annotations

from collections.abc import Mapping

from agentir.embed.template import QueryTemplate
from agentir.records import Document, SearchQuery, TrainingExample

TEMPLATE = QueryTemplate()
"""Renders anchors and documents; an instruction, where a model has one, is put before the anchor by the trainer."""


def column_rows(
    example: TrainingExample, documents: Mapping[str, Document], num_negatives: int
) -> list[dict[str, str]]:
    """The rows of an example: one for each positive; none where it has fewer negatives, since all rows need all columns.

    Args:
        example: what becomes rows.
        documents: the texts of its documents, by docid.
        num_negatives: how many columns of negatives there are.
    """
    if len(example.negative_docids) < num_negatives:
        return []
    subquery = example.subquery
    anchor = TEMPLATE.render(
        SearchQuery(query=subquery.query, reasoning=subquery.reasoning, question=subquery.question)
    )
    negatives = {
        f"negative_{number}": TEMPLATE.render_document(documents[docid])
        for number, docid in enumerate(example.negative_docids[:num_negatives], start=1)
    }
    return [
        {"anchor": anchor, "positive": TEMPLATE.render_document(documents[docid]), **negatives}
        for docid in example.positive_docids
    ]
