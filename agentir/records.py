"""The record types that travel between programs.

Records are frozen; ids are strings; lists are tuples. They are validated once, where a line is read (see
`agentir.jsonl.read_records`): unknown fields are refused, and so are values of another type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ConfigDict

STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class QAItem:
    """A question with its accepted answers; `metadata` holds what slices are made of (data set, number of hops).

    Gold documents that are known by title or URL only get their docids from a corpus, see
    `agentir.drsynth.gold.resolve_gold`.
    """

    __pydantic_config__ = STRICT

    qid: str
    question: str
    answers: tuple[str, ...]
    gold_docids: tuple[str, ...] = ()
    gold_titles: tuple[str, ...] = ()
    gold_urls: tuple[str, ...] = ()
    split: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text of the corpus; `metadata` holds any further fields of its source, as JSON values."""

    __pydantic_config__ = STRICT

    docid: str
    text: str
    title: str = ""
    url: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A part of a document; `start` and `end` are character offsets into its text, `chunkid` is `docid#n`."""

    __pydantic_config__ = STRICT

    chunkid: str
    docid: str
    start: int
    end: int
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSearch:
    """An earlier search of the same episode."""

    __pydantic_config__ = STRICT

    query: str
    reasoning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """What a searcher is asked: the agent's query with its reasoning, and for ablations the question and what the same
    episode searched for before (oldest first), where known."""

    __pydantic_config__ = STRICT

    query: str
    reasoning: str = ""
    question: str = ""
    history: tuple[PastSearch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A document that a search found, with the searcher's own score (higher is better)."""

    __pydantic_config__ = STRICT

    docid: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that an agent made; `arguments` is None where the model's text was not a JSON object."""

    __pydantic_config__ = STRICT

    call_id: str
    name: str
    arguments: dict[str, Any] | None
    raw_arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What came back for a call.

    `error` says that the call failed, `run` that its tool was run at all (not so for unreadable calls, unknown tools and
    calls beyond a limit). `compact` is what remains of the content when it is cleared from the conversation.
    """

    __pydantic_config__ = STRICT

    call_id: str
    content: str
    docids: tuple[str, ...] = ()
    error: bool = False
    run: bool = True
    compact: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message of a conversation with a model.

    An assistant's message holds its calls; `raw` is what the model's server sent, in the form in which its dialect sends it
    back. A tool's message answers the call `call_id`; `compact` is what remains of it when a context policy clears it.
    """

    __pydantic_config__ = STRICT

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    compact: str = ""
    raw: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What calls of a model took: tokens as the server counted them, and money in the unit of the prices given.

    `cached_tokens` are part of `prompt_tokens`, `reasoning_tokens` of `completion_tokens`. `num_attempts` counts requests,
    also those that failed and were sent again.
    """

    __pydantic_config__ = STRICT

    num_calls: int = 0
    num_attempts: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})

    @property
    def total_tokens(self) -> int:
        """Tokens read and written."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One generation of the agent with the results of its calls; `reasoning` is empty where none was given.

    Of an agent that was run (not read from a transcript) it also holds how the generation ended (`finish`; "length": it
    was cut, and its calls were not run), what it took, its latency in seconds, what the server sent (`raw`, see `Message`),
    what had to be mended in it (`notes`), and `prompted`: the user's message, if any, that the loop put before it.
    """

    __pydantic_config__ = STRICT

    index: int
    reasoning: str
    text: str
    calls: tuple[ToolCall, ...]
    results: tuple[ToolResult, ...]
    finish: str = ""
    usage: Usage = Usage()
    latency: float = 0.0
    raw: Any = None
    notes: tuple[str, ...] = ()
    prompted: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """An agent's whole way from a question to its answer.

    `status` of an agent that was run is "completed" (it answered), "forced" (it answered when a limit was reached),
    "incomplete" (it gave no answer) or "failed" (the model's server did; `error` says how). `prompt` is what stood before the
    first turn, `tools` the schemas that the agent was offered.
    """

    __pydantic_config__ = STRICT

    qid: str
    agent: str
    turns: tuple[Turn, ...]
    answer: str
    status: str
    error: str = ""
    question: str = ""
    usage: Usage = Usage()
    prompt: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubQuery:
    """A search inside a trajectory: the query and the reasoning that led to it.

    `turn` counts the agent's generations from 0, `call` the calls within that generation. What the agent had searched
    for before is not repeated here: it is in the lines of the same `qid` with an earlier `turn`.
    """

    __pydantic_config__ = STRICT

    qid: str
    turn: int
    call: int
    question: str
    reasoning: str
    query: str

    @property
    def subqid(self) -> str:
        """The id used in runs and qrels, unique over all trajectories of one agent."""
        return f"{self.qid}_turn{self.turn}" if self.call == 0 else f"{self.qid}_turn{self.turn}.{self.call}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A document shown to the oracle; `score` is the retriever's, None where it is not known."""

    __pydantic_config__ = STRICT

    docid: str
    source: Literal["retrieved", "gold"]
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One listwise answer of the oracle, parsed.

    `order` holds candidate positions (0-based), always a permutation; only its first `ranked_count` were truly ranked
    by the oracle, the rest follow in the order in which they were shown.
    """

    __pydantic_config__ = STRICT

    order: tuple[int, ...]
    ranked_count: int
    parsed: bool
    response: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The oracle's order of the candidates of a sub-query, as docids, best first.

    Only the first `ranked_count` of `order` were truly ranked. `num_gold_first` says how many gold documents were put in
    front of the list the oracle saw (0: the list was shuffled). `agreement` is that of several votes, from -1 to 1 (the mean
    Kendall correlation of their pairs), None where fewer than two could be read.
    """

    __pydantic_config__ = STRICT

    subquery: SubQuery
    candidates: tuple[Candidate, ...]
    votes: tuple[Vote, ...]
    order: tuple[str, ...]
    ranked_count: int
    num_gold_first: int = 0
    agreement: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingExample:
    """A sub-query with positives and hard negatives, by id.

    `oracle_order` is the truly ranked part of the ranking. `gold_docids` are all gold documents of the question, whether
    or not they were shown, ranked, or are in the corpus: none of them may be pushed away from the query.
    """

    __pydantic_config__ = STRICT

    subquery: SubQuery
    positive_docids: tuple[str, ...]
    negative_docids: tuple[str, ...]
    oracle_order: tuple[str, ...]
    num_gold_first: int = 0
    gold_docids: tuple[str, ...] = ()
    agreement: float | None = None
