"""What training rows are like, and what about them is likely to spoil a model or its evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from agentir.corpus.text_key import folded, text_key
from agentir.embed.tokens import Tokenization
from agentir.measures.slices import contains, contains_title
from agentir.records import Document
from agentir.train.data import TrainingRow
from agentir.train.lengths import Lengths, document_lengths, query_lengths, too_long

MAX_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The smallest, middle and largest of some numbers; zeros where there are none."""

    min: float
    median: float
    max: float

    def __str__(self) -> str:
        return f"{self.min:g} / {self.median:g} / {self.max:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    """Counts over training rows, and development rows where the name says so.

    Documents with the same text are one; queries are what the model reads of them, before any cut. "Relevant" is a positive
    or a gold document.

    Attributes:
        ranked_per_row: documents that the oracle truly ranked, of rows where that is known.
        fewer_negatives: rows with fewer hard negatives than are taken in an epoch.
        repeated: rows with a query and a positive that an earlier row has.
        differing: queries that several rows have with no positive in common.
        positive_among_negatives: rows of which a positive is a hard negative, too; the trainer takes it for a positive.
        blank: documents without text.
        shared_questions: questions that have training and development rows.
        shared_queries: development rows with the query of a training row.
        dev_positives_trained: documents that are relevant for development rows and positives of training rows.
        dev_rows_trained: development rows that have such a one.
        dev_relevant_pushed: documents that are relevant for development rows and hard negatives of training rows.
        reasoning_holds_title: rows whose reasoning holds the title of a positive.
        reasoning_holds_answer: rows whose reasoning holds an answer; None where no answers are known.
        num_too_long: rows and development rows whose query does not fit even without context.
        too_long: the first of them.
        num_documents: documents that rows name and that have a text here; `document_tokens` are those of a sample.
    """

    num_rows: int
    num_dev_rows: int
    num_questions: int
    num_dev_questions: int
    num_documents: int
    rows_per_question: Spread
    positives_per_row: Spread
    negatives_per_row: Spread
    ranked_per_row: Spread
    fewer_negatives: int
    without_negatives: int
    repeated: int
    differing: int
    positive_among_negatives: int
    blank: int
    shared_questions: int
    shared_queries: int
    dev_positives_trained: int
    dev_rows_trained: int
    dev_relevant_pushed: int
    empty_reasonings: int
    reasoning_holds_title: int
    reasoning_holds_answer: int | None
    query_tokens: Lengths
    document_tokens: Lengths
    num_too_long: int
    too_long: tuple[str, ...]

    def lines(self) -> list[str]:
        """The report for people: sizes and lengths, then what was found; counts of 0 are left out there."""
        sizes = [
            f"training rows: {self.num_rows} of {self.num_questions} questions; "
            f"development rows: {self.num_dev_rows} of {self.num_dev_questions}",
            "smallest / median / largest number: "
            f"rows a question {self.rows_per_question}; positives {self.positives_per_row}, "
            f"hard negatives {self.negatives_per_row}, documents ranked {self.ranked_per_row} a row",
            f"query tokens: {self.query_tokens} (these lose the oldest part of their context)",
            f"document tokens: {self.document_tokens}; from {self.document_tokens.num} of {self.num_documents} documents",
        ]
        too_long = f"; {'; '.join(self.too_long)}" + (" ..." if self.num_too_long > len(self.too_long) else "")
        found: list[tuple[int | None, str]] = [
            (self.num_too_long, f"queries too long even without context{too_long}"),
            (self.shared_questions, "questions with training and development rows"),
            (self.shared_queries, "development rows with a query that a training row has"),
            (self.dev_positives_trained, "documents relevant for development rows are positives of training rows, for "
             f"{self.dev_rows_trained} development rows"),
            (self.dev_relevant_pushed, "documents relevant for development rows are hard negatives of training rows"),
            (self.repeated, "rows repeat a query with its positive"),
            (self.differing, "queries have differing positives in different rows"),
            (self.positive_among_negatives, "rows have a positive among their negatives (it is no negative then)"),
            (self.without_negatives, "rows have no hard negatives"),
            (self.fewer_negatives, "rows have fewer hard negatives than an epoch takes"),
            (self.blank, "documents have no text"),
            (self.empty_reasonings, "rows have no reasoning"),
            (self.reasoning_holds_title, "rows have the title of a positive in their reasoning"),
            (self.reasoning_holds_answer, "rows have an answer in their reasoning"),
        ]  # fmt: skip
        return sizes + [f"  {count} {what}" for count, what in found if count]


def report(
    rows: Sequence[TrainingRow],
    dev_rows: Sequence[TrainingRow],
    documents: Mapping[str, Document],
    tokenization: Tokenization,
    *,
    num_negatives: int,
    keys: Mapping[str, str] | None = None,
    answers: Mapping[str, Sequence[str]] | None = None,
) -> DataReport:
    """Counts, see `DataReport`.

    Args:
        rows: training rows, one or more.
        dev_rows: development rows.
        documents: by docid; those that rows name and that are missing here count as texts of their own.
        tokenization: how the model is given texts.
        num_negatives: hard negatives that an epoch takes of a row.
        keys: docid -> key that documents of the same text share; default: made here.
        answers: accepted answers by question.
    """
    named = {docid for row in (*rows, *dev_rows) for docid in (*row.positives, *row.negatives, *row.gold, *row.pool)}
    texts = {docid: documents[docid] for docid in named if docid in documents}
    keyed = _Keyed({docid: text_key(document) for docid, document in texts.items()} if keys is None else keys)
    queries, dev_queries = (
        [folded(tokenization.template.render(row.query)) for row in some] for some in (rows, dev_rows)
    )
    trained_queries = set(queries)
    positives = {key for row in rows for key in keyed(row.positives)}
    negatives = {key for row in rows for key in keyed(row.negatives) - keyed(row.positives)}
    relevant = [keyed((*row.positives, *row.gold)) for row in dev_rows]
    dev_relevant = {key for keys in relevant for key in keys}
    long = too_long((*rows, *dev_rows), tokenization)
    repeated, differing = _repetitions(queries, [keyed(row.positives) for row in rows])
    return DataReport(
        num_rows=len(rows),
        num_dev_rows=len(dev_rows),
        num_questions=len(_questions(rows)),
        num_dev_questions=len(_questions(dev_rows)),
        num_documents=len(texts),
        rows_per_question=_spread(Counter(row.question for row in rows).values()),
        positives_per_row=_spread(len(row.positives) for row in rows),
        negatives_per_row=_spread(len(row.negatives) for row in rows),
        ranked_per_row=_spread(len(row.pool) for row in rows if row.pool),
        fewer_negatives=sum(0 < len(row.negatives) < num_negatives for row in rows),
        without_negatives=sum(not row.negatives for row in rows),
        repeated=repeated,
        differing=differing,
        positive_among_negatives=sum(bool(keyed(row.positives) & keyed(row.negatives)) for row in rows),
        blank=sum(not document.text.strip() for document in texts.values()),
        shared_questions=len(_questions(rows) & _questions(dev_rows)),
        shared_queries=sum(query in trained_queries for query in dev_queries),
        dev_positives_trained=len(dev_relevant & positives),
        dev_rows_trained=sum(bool(keys & positives) for keys in relevant),
        dev_relevant_pushed=len(dev_relevant & negatives),
        empty_reasonings=sum(not row.query.reasoning.strip() for row in rows),
        reasoning_holds_title=sum(_holds_title(row, texts) for row in rows),
        reasoning_holds_answer=None
        if answers is None
        else sum(
            any(contains(row.query.reasoning, answer) for answer in answers.get(row.question, ())) for row in rows
        ),
        query_tokens=query_lengths(rows, tokenization),
        document_tokens=document_lengths(texts, tokenization),
        num_too_long=len(long),
        too_long=tuple(f"{row} ({num_tokens} tokens)" for row, num_tokens in long[:MAX_NAMED]),
    )


class _Keyed:
    """Docids as keys that documents of the same text share."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = keys

    def __call__(self, docids: Iterable[str]) -> set[str]:
        return {self._keys.get(docid, docid) for docid in docids}


def _questions(rows: Iterable[TrainingRow]) -> set[str]:
    return {row.question for row in rows}


def _repetitions(queries: Sequence[str], positives: Sequence[set[str]]) -> tuple[int, int]:
    """Rows that repeat the query and a positive of an earlier one, and queries of rows without a positive in common."""
    by_query: dict[str, list[set[str]]] = {}
    repeated = 0
    for query, keys in zip(queries, positives, strict=True):
        earlier = by_query.setdefault(query, [])
        repeated += any(keys & others for others in earlier)
        earlier.append(keys)
    differing = sum(not set.intersection(*groups) for groups in by_query.values() if len(groups) > 1)
    return repeated, differing


def _holds_title(row: TrainingRow, documents: Mapping[str, Document]) -> bool:
    titles = [documents[docid].title for docid in row.positives if docid in documents]
    return any(contains_title(row.query.reasoning, title) for title in titles if title.strip())


def _spread(numbers: Iterable[int]) -> Spread:
    ordered = sorted(numbers) or [0]
    return Spread(min=ordered[0], median=median(ordered), max=ordered[-1])
