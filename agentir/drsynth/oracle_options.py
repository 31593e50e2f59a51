"""Everything about the oracle that a configuration says: how its lists are made, and how it is asked."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from agentir.artifacts import sha256_json
from agentir.config import Field
from agentir.drsynth.candidates import ListOptions
from agentir.drsynth.oracle import ANSWER_RETRIES, OracleSettings
from agentir.rerank import oracle_messages


class OracleOptions(ListOptions):
    """How lists are made, and how the oracle is asked about them."""

    window: int | None = Field(default=None, ge=2)
    """How many candidates the model sees at once, for lists beyond its context; default: all of them. Windows slide from the
    back of the list to its front, so only the front is ranked against the whole list: the first window - step places."""
    step: int | None = Field(default=None, ge=1)
    """How far the window moves to the front, less than its size; default: half of it."""
    votes: int = Field(default=1, ge=1)
    """How often the model ranks each list; further votes see it in another order, except with gold_first."""
    answer_retries: int = Field(default=ANSWER_RETRIES, ge=0)
    """How often an answer that cannot be read, or was cut, is asked for again before the vote is dropped."""

    @model_validator(mode="after")
    def _step_fits(self) -> Self:
        if self.step is not None and (self.window is None or self.step >= self.window):
            found = "no window" if self.window is None else f"step {self.step}, window {self.window}"
            raise ValueError(f"step: expected less than window, found {found}")
        return self

    @property
    def settings(self) -> OracleSettings:
        """The options as the oracle takes them."""
        return OracleSettings(
            form=self.form,
            window=self.window,
            step=self.step,
            votes=self.votes,
            answer_retries=self.answer_retries,
            seed=self.seed,
        )

    @property
    def shown(self) -> str:
        """How lists are shown, for errors."""
        window = "none" if self.window is None else self.window
        return f"depth {self.depth}, passage_words {self.passage_words}, window {window}"

    @property
    def prompt_sha256(self) -> str:
        """What identifies the oracle's prompt."""
        return sha256_json(oracle_messages("", (), "", (), self.form))
