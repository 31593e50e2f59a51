"""The episode loop: an agent's way from a question to its answer, bounded in every direction.

An agent is a chat model, a toolset, a prompt, two policies and limits. The loop asks the model, runs its calls, answers each
of them in order, and goes on until the terminal policy ends the episode. It never asks which agent it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from pydantic import TypeAdapter

from agentir.agent.context import ContextPolicy, WholeContext, estimated_tokens
from agentir.agent.journal import Journal
from agentir.agent.terminal import AnswerPolicy, Decision, Limit, Progress, TerminalPolicy
from agentir.chat.model import AUTO, NONE, ChatModel, Generation
from agentir.errors import AgentirError, BudgetError, ChatError, ContextOverflowError
from agentir.records import Message, ToolResult, Trajectory, Turn, Usage
from agentir.tools.tool import CallContext
from agentir.tools.toolset import Toolset

LIMITS: tuple[Limit, ...] = get_args(Limit)
OVERFLOW_CHARS = 500
"""What stays of each of the last results when the conversation exceeded the model's context."""
_GENERATION = TypeAdapter(Generation)
_RESULTS: TypeAdapter[tuple[ToolResult, ...]] = TypeAdapter(tuple[ToolResult, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an episode may take before its answer is forced; the defaults are those of AgentIR's Tongyi agent.

    Attributes:
        max_turns: generations, those that are to give the forced answer not counted.
        max_context_tokens: tokens of the conversation, as the server counted it last, with what came since estimated.
        max_seconds: time since the episode began in this process; None for no limit.
    """

    max_turns: int = 100
    max_context_tokens: int | None = 108 * 1024
    max_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Everything that makes an agent.

    Attributes:
        name: as records show it.
        model: what thinks.
        toolset: what it may call.
        system: the system prompt; empty for none.
        task: the first message of the user, with `{question}` in it.
        context: what of the conversation is sent.
        terminal: when the episode ends.
        limits: what an episode may take.
    """

    name: str
    model: ChatModel
    toolset: Toolset
    system: str = ""
    task: str = "{question}"
    context: ContextPolicy = field(default_factory=WholeContext)
    terminal: TerminalPolicy = field(default_factory=AnswerPolicy)
    limits: Limits = field(default_factory=Limits)

    def prompt(self, question: str) -> tuple[Message, ...]:
        """The messages before the first turn."""
        task = Message(role="user", content=self.task.replace("{question}", question))
        return (Message(role="system", content=self.system), task) if self.system else (task,)

    async def run(self, question: str, *, qid: str = "", journal: Journal | None = None) -> Trajectory:
        """Runs one episode.

        What fails is data: an episode whose model or search could not be reached has the status "failed", and what it had
        paid for is in the journal.

        Args:
            question: what is to be answered.
            qid: its id.
            journal: takes every step, and gives back those of an earlier start.

        Raises:
            BudgetError: the budget is used up.
        """
        episode = _Episode(
            agent=self, qid=qid, question=question, journal=journal or Journal(), messages=[*self.prompt(question)]
        )
        status, answer, error = "failed", "", ""
        try:
            decision = await episode.run()
            status, answer = decision.ending or "incomplete", decision.answer
        except (
            ContextOverflowError
        ) as overflow:  # before the first turn the settings are wrong, not the episode too long
            status, error = "incomplete" if episode.turns else "failed", f"{overflow.kind}: {overflow}"
        except BudgetError:
            raise
        except AgentirError as fault:
            error = f"{fault.kind}: {fault}" if isinstance(fault, ChatError) else f"tool: {fault}"
        episode.journal.flush()
        return Trajectory(
            qid=qid,
            agent=self.name,
            turns=tuple(episode.turns),
            answer=answer,
            status=status,
            error=error,
            question=question,
            usage=sum((turn.usage for turn in episode.turns), Usage()),
            prompt=self.prompt(question),
            tools=tuple(
                {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
                for tool in self.toolset.schemas
            ),
        )


@dataclass(slots=True)
class _Episode:
    """A running episode."""

    agent: Agent
    qid: str
    question: str
    journal: Journal
    messages: list[Message]
    turns: list[Turn] = field(default_factory=list)
    num_empty: int = 0
    limit: Limit | None = None
    num_forced: int = 0
    seconds_before: float = 0.0
    """What the generations of earlier starts took."""
    began: float = field(default_factory=lambda: time.monotonic())
    context_tokens: int = 0
    """Tokens of the conversation as the server counted them last."""
    num_counted: int = 0
    """How many messages that count covers."""

    async def run(self) -> Decision:
        """Turns until the end."""
        decision, terminal = Decision(), self.agent.terminal
        while True:
            if self.limit is None and (limit := self._limit_reached()):
                decision = self._enter_limit(limit)
            try:
                generation = await self._generate(decision)
            except ContextOverflowError:
                if self.limit is not None or not self._cut_last_results():
                    raise
                decision = self._enter_limit(self._decided(lambda: "overflow") or "overflow")
                continue
            if generation.calls:
                await self._run_calls(generation, decision.tool_choice)
            self.num_empty = 0 if generation.calls or generation.answer else self.num_empty + 1
            self.num_forced += self.limit is not None
            progress = Progress(num_empty=self.num_empty, limit=self.limit, num_forced=self.num_forced)
            decision = terminal.after(self.turns[-1], generation.answer, progress)
            if decision.ending is not None:
                return decision

    async def _generate(self, decision: Decision) -> Generation:
        """The next turn, without its results."""
        sent = [*self.messages]
        if decision.message:
            sent.append(Message(role="user", content=decision.message))
        view = self.agent.context.view(sent, self._num_tokens(sent))
        model, schemas = self.agent.model, self.agent.toolset.schemas
        is_replayed = self.journal.num_recorded > 0
        try:
            generation = await self.journal.step(
                "generation", _GENERATION, lambda: model.generate(view, schemas, tool_choice=decision.tool_choice)
            )
        except ChatError as error:
            if error.usage is not None:
                self.journal.spent(error.usage)
            raise
        self.seconds_before += generation.latency if is_replayed else 0.0
        self.messages = sent
        if generation.finish not in ("length", "filtered"):  # half a message is not sent back
            self.messages.append(generation.message)
        if generation.context_tokens:
            self.context_tokens, self.num_counted = generation.context_tokens, len(self.messages)
        self.turns.append(
            Turn(
                index=len(self.turns),
                reasoning=generation.reasoning,
                text=generation.text,
                calls=generation.calls,
                results=(),
                finish=generation.finish,
                usage=generation.usage,
                latency=generation.latency,
                raw=generation.raw,
                notes=generation.notes,
                prompted=decision.message,
            )
        )
        return generation

    async def _run_calls(self, generation: Generation, tool_choice: str) -> None:
        """Gives the last turn the results of its calls."""
        context = CallContext(
            qid=self.qid, question=self.question, reasoning=generation.reasoning, turn=self.turns[-1].index
        )
        only = None if tool_choice == AUTO else () if tool_choice == NONE else (tool_choice,)
        results = await self.journal.step(
            "results", _RESULTS, lambda: self.agent.toolset.run(generation.calls, context, only)
        )
        self.turns[-1] = replace(self.turns[-1], results=results)
        self.messages += [
            Message(role="tool", content=one.content, call_id=one.call_id, compact=one.compact) for one in results
        ]

    def _enter_limit(self, limit: Limit) -> Decision:
        self.limit = limit
        if limit == "overflow":
            self._cut_last_results()
        return self.agent.terminal.at_limit(limit)

    def _cut_last_results(self) -> bool:
        """Shortens the results of the last turn, as they are sent; returns whether there was something to shorten."""
        was_cut = False
        for place in range(len(self.messages) - 1, -1, -1):
            message = self.messages[place]
            if message.role != "tool":
                break
            if len(message.content) > OVERFLOW_CHARS:
                self.messages[place] = replace(
                    message, content=f"{message.content[:OVERFLOW_CHARS]}\n[... cut: no room]"
                )
                was_cut = True
        return was_cut

    def _limit_reached(self) -> Limit | None:
        """The limit that is reached before the next turn, None where none is."""
        limits = self.agent.limits

        def found() -> str:
            if len(self.turns) >= limits.max_turns:
                return "turns"
            if limits.max_context_tokens is not None and self._num_tokens(self.messages) >= limits.max_context_tokens:
                return "context"
            seconds = time.monotonic() - self.began + self.seconds_before
            return "time" if limits.max_seconds is not None and seconds >= limits.max_seconds else ""

        return self._decided(found)

    def _decided(self, make: Callable[[], str]) -> Limit | None:
        decided = self.journal.decision("limit", make)
        return next((limit for limit in LIMITS if limit == decided), None)

    def _num_tokens(self, messages: Sequence[Message]) -> int:
        """About how many tokens messages of this conversation take."""
        return self.context_tokens + estimated_tokens(messages[self.num_counted :])
