"""Terminal policies: when an episode is over, and what the agent is told before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from agentir.chat.model import Generation

Ending = Literal["completed", "forced", "incomplete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What follows a generation: the episode's end with its answer, or (`ending` None) the message to go on with.

    An empty message lets the agent go on as it is, with the results of its calls.
    """

    ending: Ending | None = None
    answer: str = ""
    message: str = ""


class TerminalPolicy(Protocol):
    """Decides about the end of an episode; it has no state, the number of vain generations is told to it."""

    def after(self, generation: Generation, num_vain: int) -> Verdict:
        """What follows a generation.

        Args:
            generation: the last one; one that called tools is not asked about.
            num_vain: how many generations in a row gave neither calls nor an answer, this one included.
        """
        ...

    def demand(self, reason: str) -> str:
        """The message that asks for the answer because a limit was reached."""
        ...

    def after_demand(self, generation: Generation, num_demands: int) -> Verdict:
        """What follows a generation that was to be the answer; `num_demands` counts the messages that asked for it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPolicy:
    """Ends with the first answer; asks again a few times where none came, and demands one at the limits.

    Attributes:
        answer_form: how an answer is to be given, in words for the model; ends both messages.
        max_vain: vain generations in a row after which the episode ends without an answer.
        max_demands: how often the answer is demanded at a limit.
    """

    answer_form: str = ""
    max_vain: int = 3
    max_demands: int = 3

    def after(self, generation: Generation, num_vain: int) -> Verdict:
        """See `TerminalPolicy.after`."""
        if generation.answer:
            return Verdict(ending="completed", answer=generation.answer)
        if num_vain >= self.max_vain:
            return Verdict(ending="incomplete")
        return Verdict(message=self._joined(_complaint(generation), "Go on: call a tool, or give your final answer."))

    def demand(self, reason: str) -> str:
        """See `TerminalPolicy.demand`."""
        return self._joined(
            f"{reason} Call no more tools. Give your best final answer now, from what you have found; if you are not sure, "
            "give the most likely one."
        )

    def after_demand(self, generation: Generation, num_demands: int) -> Verdict:
        """See `TerminalPolicy.after_demand`."""
        if generation.answer:
            return Verdict(ending="forced", answer=generation.answer)
        if num_demands >= self.max_demands:
            return Verdict(ending="incomplete")
        return Verdict(message=self._joined(_complaint(generation), "Call no tools; give your final answer now."))

    def _joined(self, *parts: str) -> str:
        return " ".join(part for part in (*parts, self.answer_form) if part)


def _complaint(generation: Generation) -> str:
    if generation.finish == "length":
        return "Your last message was cut off because it was too long, and was not used. Be shorter."
    if generation.finish == "filtered":
        return "Your last message was withheld, and was not used."
    if generation.calls:
        return "Your last message called a tool, which was not run."
    return "Your last message held no tool call that can be run and no final answer."
