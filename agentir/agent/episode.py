"""The episode loop: an agent's way from a question to its answer, bounded in every direction.

An agent is a chat model, a toolset, a prompt, two policies and limits. The loop asks the model, runs its calls, answers each
of them in order, and goes on until the terminal policy ends the episode. It never asks which agent it runs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter

from agentir.agent.context import ContextPolicy, WholeContext, estimated_tokens
from agentir.agent.journal import Journal
from agentir.agent.terminal import AnswerPolicy, TerminalPolicy, Verdict
from agentir.chat.model import ChatModel, Generation
from agentir.errors import AgentirError, BudgetError, ChatError, ContextOverflowError
from agentir.records import Message, ToolResult, Trajectory, Turn, Usage
from agentir.tools.tool import CallContext
from agentir.tools.toolset import Toolset, unanswered

_GENERATION = TypeAdapter(Generation)
_RESULTS: TypeAdapter[tuple[ToolResult, ...]] = TypeAdapter(tuple[ToolResult, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an episode may take before its answer is demanded; the defaults are those of AgentIR's Tongyi agent.

    Attributes:
        max_turns: generations, those that demand the answer not counted.
        max_context_tokens: tokens of the next prompt, as the server counted the last one, with what came since estimated.
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
            verdict = await episode.run()
            status, answer = verdict.ending or "incomplete", verdict.answer
        except ContextOverflowError as overflow:
            status, error = "incomplete", f"{overflow.kind}: {overflow}"
        except BudgetError:
            raise
        except AgentirError as fault:
            error = f"{fault.kind}: {fault}" if isinstance(fault, ChatError) else f"tool: {fault}"
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
    num_vain: int = 0
    began: float = field(default_factory=time.monotonic)
    counted: int = 0
    """How many messages the server's last count covers."""

    async def run(self) -> Verdict:
        """Turns until the end."""
        message = ""
        while not (reason := self._limit_reached()):
            generation = await self._generate(message)
            if generation.calls:
                self.num_vain, message = 0, ""
                self._take(await self._results(generation))
                continue
            self.num_vain += 1
            verdict = self.agent.terminal.after(generation, self.num_vain)
            if verdict.ending is not None:
                return verdict
            message = verdict.message
        return await self._demand(reason)

    async def _demand(self, reason: str) -> Verdict:
        """Asks for the answer until it comes or the policy gives up."""
        message, num_demands = self.agent.terminal.demand(reason), 0
        while True:
            generation = await self._generate(message)
            num_demands += 1
            if generation.calls:
                self._take(unanswered(generation.calls, "a limit was reached; no more tools are run"))
            verdict = self.agent.terminal.after_demand(generation, num_demands)
            if verdict.ending is not None:
                return verdict
            message = verdict.message

    async def _generate(self, prompted: str) -> Generation:
        """The next turn, without its results."""
        if prompted:
            self.messages.append(Message(role="user", content=prompted))
        num_sent = len(self.messages)
        view = self.agent.context.view(self.messages)
        generation = await self.journal.step(
            "generation", _GENERATION, lambda: self.agent.model.generate(view, self.agent.toolset.schemas)
        )
        if generation.finish not in ("length", "filtered"):  # half a message is not sent back
            self.messages.append(generation.message)
        self.counted = num_sent
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
                prompted=prompted,
            )
        )
        return generation

    async def _results(self, generation: Generation) -> tuple[ToolResult, ...]:
        """The results of a turn's calls."""
        context = CallContext(
            qid=self.qid, question=self.question, reasoning=generation.reasoning, turn=self.turns[-1].index
        )
        return await self.journal.step("results", _RESULTS, lambda: self.agent.toolset.run(generation.calls, context))

    def _take(self, results: Sequence[ToolResult]) -> None:
        """Gives the last turn its results."""
        self.turns[-1] = replace(self.turns[-1], results=tuple(results))
        self.messages += [Message(role="tool", content=one.content, call_id=one.call_id) for one in results]

    def _limit_reached(self) -> str:
        """Which limit is reached, in words for the model; empty where none is."""
        limits = self.agent.limits
        if len(self.turns) >= limits.max_turns:
            return "You have used all your turns."
        if limits.max_context_tokens is not None and self._next_prompt_tokens() >= limits.max_context_tokens:
            return "There is no room for more results in your context."
        if limits.max_seconds is not None and time.monotonic() - self.began >= limits.max_seconds:
            return "Your time is up."
        return ""

    def _next_prompt_tokens(self) -> int:
        told = self.turns[-1].usage.prompt_tokens if self.turns else 0
        return told + estimated_tokens(self.messages[self.counted if told else 0 :])
