"""Sub-queries: the searches inside trajectories, each with the reasoning that led to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from agentir.config import Field, Section
from agentir.drsynth.trajectories import has_accepted_answer
from agentir.records import QAItem, SubQuery, ToolCall, Trajectory, Turn


class ExtractionOptions(Section):
    """How sub-queries are taken; the defaults are AgentIR's (texttron/AgentIR, tool_search.py)."""

    search_tools: tuple[str, ...] = ("search",)
    """Names of the tools that search; their argument `query` is a text or a list of texts."""
    parallel_reasoning: Literal["share", "first"] = "share"
    """Which queries of one turn get its reasoning: all of them, or the first only."""
    failed_reasoning: Literal["drop", "keep"] = "drop"
    """What becomes of a reasoning that follows a failed call, or a message of the loop ("Your last message was cut off"),
    and so speaks of that."""
    empty_reasoning: Literal["keep", "filter"] = "keep"
    """Whether sub-queries without a reasoning are kept; their training text says `Empty` in its place."""
    max_turns: int | None = Field(default=None, ge=1)
    """How many turns of each trajectory are used, counted from its beginning; all by default."""
    trajectories_used: Literal["all", "answered", "correct"] = "all"
    """Which trajectories are used: all but the failed ones, those with an answer, or those whose answer holds an accepted
    one."""


def extract(
    trajectories: Iterable[Trajectory], questions: Mapping[str, QAItem], options: ExtractionOptions
) -> tuple[list[SubQuery], Counter[str]]:
    """Takes the sub-queries out of trajectories.

    `SubQuery.call` numbers the queries of a turn over all its searches; one that cannot be used keeps its number, so
    that ids do not depend on it. Turns that were cut, calls that were not run, and trajectories whose model failed are
    not used.

    Args:
        trajectories: one a question.
        questions: by qid.
        options: how they are taken.

    Returns:
        The sub-queries, and how many of everything there were and were left out.
    """
    subqueries: list[SubQuery] = []
    counts: Counter[str] = Counter(
        dict.fromkeys(
            (
                "trajectories",
                "trajectories_of_unknown_questions",
                "failed_trajectories",
                "trajectories_without_answer",
                "trajectories_with_other_answer",
                "trajectories_without_searches",
                "cut_turns",
                "turns_after_max_turns",
                "calls_of_other_tools",
                "calls_with_bad_arguments",
                "calls_not_run",
                "blank_queries",
                "reasonings_dropped_after_failure",
                "reasonings_dropped_after_nudge",
                "reasonings_given_to_first_only",
                "empty_reasonings",
                "filtered_empty_reasonings",
            ),
            0,
        )
    )
    for trajectory in trajectories:
        counts["trajectories"] += 1
        item = questions.get(trajectory.qid)
        if item is None:
            counts["trajectories_of_unknown_questions"] += 1
            continue
        if (reason := _left_out(trajectory, item, options)) is not None:
            counts[reason] += 1
            continue
        found = list(_subqueries(trajectory, item.question, options, counts))
        counts["trajectories_without_searches"] += not found
        for subquery in found:
            counts["empty_reasonings"] += not subquery.reasoning
            if subquery.reasoning or options.empty_reasoning == "keep":
                subqueries.append(subquery)
            else:
                counts["filtered_empty_reasonings"] += 1
    counts["subqueries"] = len(subqueries)
    return subqueries, counts


def _left_out(trajectory: Trajectory, item: QAItem, options: ExtractionOptions) -> str | None:
    """What a trajectory that is not used is counted as."""
    if trajectory.status == "failed":
        return "failed_trajectories"
    if options.trajectories_used == "answered" and not trajectory.answer.strip():
        return "trajectories_without_answer"
    if options.trajectories_used == "correct" and not has_accepted_answer(trajectory, item):
        return "trajectories_with_other_answer"
    return None


def _subqueries(
    trajectory: Trajectory, question: str, options: ExtractionOptions, counts: Counter[str]
) -> Iterator[SubQuery]:
    before: Turn | None = None
    used = trajectory.turns[: options.max_turns]
    counts["turns_after_max_turns"] += len(trajectory.turns) - len(used)
    for turn in used:
        if turn.finish == "length":
            counts["cut_turns"] += 1
            continue
        queries = _queries(turn, options, counts)
        reasoning = turn.reasoning
        if queries and reasoning and options.failed_reasoning == "drop" and (reason := _speaks_of(turn, before)):
            counts[f"reasonings_dropped_after_{reason}"] += 1
            reasoning = ""
        for place, (call, query) in enumerate(queries):
            if place and options.parallel_reasoning == "first" and reasoning:
                counts["reasonings_given_to_first_only"] += 1
                reasoning = ""
            yield SubQuery(
                qid=trajectory.qid,
                turn=turn.index,
                call=call,
                question=question,
                reasoning=reasoning,
                query=query,
            )
        before = turn if turn.calls else before


def _queries(turn: Turn, options: ExtractionOptions, counts: Counter[str]) -> list[tuple[int, str]]:
    """The usable queries of a turn with their numbers."""
    number = 0
    not_run = {result.call_id for result in turn.results if not result.run}
    queries: list[tuple[int, str]] = []
    for call in turn.calls:
        if call.name and call.name not in options.search_tools:
            counts["calls_of_other_tools"] += 1
            continue
        texts = _texts(call)
        if texts is None:
            counts["calls_with_bad_arguments"] += 1
            number += 1
            continue
        if call.call_id in not_run:
            counts["calls_not_run"] += 1
            number += len(texts)
            continue
        for text in texts:
            if text.strip():
                queries.append((number, text))
            else:
                counts["blank_queries"] += 1
            number += 1
    return queries


def _texts(call: ToolCall) -> list[str] | None:
    """The queries of a search call, None where its arguments hold none; a call without a name could not be read.

    Numbers are texts, as for the tools of `agentir.tools`.
    """
    given: Any = (call.arguments or {}).get("query") if call.name else None
    texts = given if isinstance(given, list) else [given]
    if texts and all(isinstance(text, str | int | float) and not isinstance(text, bool) for text in texts):
        return [str(text) for text in texts]
    return None


def _speaks_of(turn: Turn, before: Turn | None) -> Literal["nudge", "failure"] | None:
    """What a turn's reasoning answers besides results: the loop's own message, or the failure of the last call.

    A user's message in a transcript (whose turns do not say how they ended) is part of the conversation.
    """
    if turn.prompted and turn.finish:
        return "nudge"
    return "failure" if before is not None and _failed(before) else None


def _failed(turn: Turn) -> bool:
    """Whether the last call of a turn failed, as in AgentIR; a call whose arguments could not be read has failed."""
    last = turn.calls[-1]
    return last.arguments is None or any(result.error for result in turn.results if result.call_id == last.call_id)
