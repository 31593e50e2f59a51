"""Terminal policies: when an episode is over, and how it is brought to its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from agentir.chat.model import AUTO, NONE
from agentir.records import Turn

Ending = Literal["completed", "forced", "incomplete"]
Limit = Literal["turns", "context", "time", "overflow"]
_REASONS: dict[Limit, str] = {
    "turns": "You have used all your turns.",
    "context": "There is no room for more results in your context.",
    "time": "Your time is up.",
    "overflow": "There is no room for more results in your context; the last ones were cut.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where an episode stands after a turn.

    Attributes:
        num_empty: turns in a row, this one included, with neither calls nor an answer.
        limit: the limit that was reached, None before.
        num_forced: turns since then.
    """

    num_empty: int
    limit: Limit | None
    num_forced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What follows a turn: the episode's end with its answer, or (`ending` None) the next turn.

    Attributes:
        ending: how the episode ends.
        answer: with what.
        message: what the user says before the next turn; empty for nothing.
        tool_choice: what the next turn may call, see `agentir.chat.model.ChatModel.generate`; other calls are not run.
    """

    ending: Ending | None = None
    answer: str = ""
    message: str = ""
    tool_choice: str = AUTO


class TerminalPolicy(Protocol):
    """Decides about the end of an episode. It has no state, so that one policy serves all episodes."""

    def after(self, turn: Turn, answer: str, progress: Progress) -> Decision:
        """What follows a turn.

        Args:
            turn: the last one, with the results of its calls; of one that was cut they were not run.
            answer: the model's final answer in the form of its dialect, empty where the turn holds none.
            progress: where the episode stands.
        """
        ...

    def at_limit(self, limit: Limit) -> Decision:
        """What follows when a limit is reached before the next turn."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPolicy:
    """Ends with the first answer in free text; nudges where none came, and forces one at the limits.

    Attributes:
        answer_form: how an answer is to be given, in words for the model; ends its messages.
        max_nudges: empty turns in a row that are nudged; after the next one the episode ends without an answer.
        max_forced: turns that are to give the forced answer.
    """

    answer_form: str = ""
    max_nudges: int = 2
    max_forced: int = 3

    def after(self, turn: Turn, answer: str, progress: Progress) -> Decision:
        """See `TerminalPolicy.after`."""
        if answer:
            return Decision(ending="completed" if progress.limit is None else "forced", answer=answer)
        if progress.limit is not None:
            if progress.num_forced >= self.max_forced:
                return Decision(ending="incomplete")
            return Decision(
                message=self._joined(_complaint(turn), "Call no tools; give your final answer now."), tool_choice=NONE
            )
        if turn.calls:
            return Decision()
        if progress.num_empty > self.max_nudges:
            return Decision(ending="incomplete")
        return Decision(message=self._joined(_complaint(turn), "Go on: call a tool, or give your final answer."))

    def at_limit(self, limit: Limit) -> Decision:
        """See `TerminalPolicy.at_limit`."""
        text = (
            f"{_REASONS[limit]} Call no more tools. Give your best final answer now, from what you have found; if you are not "
            "sure, give the most likely one."
        )
        return Decision(message=self._joined(text), tool_choice=NONE)

    def _joined(self, *parts: str) -> str:
        return " ".join(part for part in (*parts, self.answer_form) if part)


def _complaint(turn: Turn) -> str:
    if turn.finish == "length":
        return "Your last message was cut off because it was too long, and was not used. Be shorter."
    if turn.finish == "filtered":
        return "Your last message was withheld, and was not used."
    if turn.calls:
        return "Your last message called a tool, which was not run."
    return "Your last message held no tool call that can be run and no final answer."
