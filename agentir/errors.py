"""The errors a user can cause or meet, named by the boundary that was crossed.

Each one is a `ValueError`: what was given does not fit. Programmer errors stay assertions. `agentir.cli` prints these
without a traceback and exits with status 2.
"""

from __future__ import annotations

from typing import Any


class AgentirError(ValueError):
    """Anything that the user can mend; its text says what was given, what was expected and what to do."""


class InputError(AgentirError):
    """A file that was read does not hold what it should; the text names file, line and field."""


class ConfigError(AgentirError):
    """A configuration file or a command-line override does not fit the program's configuration."""


class ArtifactError(AgentirError):
    """An artifact folder is missing, incomplete, altered, or was begun under another configuration."""


class LockedError(AgentirError):
    """Another process is writing to the same artifact folder."""


class RequestError(AgentirError):
    """An argument of a search or document request is missing, of the wrong type or out of bounds."""

    def __init__(self, field: str, message: str, code: str = "invalid_argument") -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.code = code


class EncoderError(AgentirError):
    """An encoder does not fit the index, the template or the limits it is used with."""


class MissingExtraError(AgentirError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: pip install 'agentir[{extra}]'")


class ChatError(AgentirError):
    """A language model's server gave no usable answer; `kind` says what happened, as counted in reports.

    Kinds: timeout, connection, rate_limit, server_error, bad_reply (these were tried again before), refused (a request that no
    repetition mends), and those of the subclasses. `usage` is what was taken in vain, where that is known.
    """

    usage: Any = None

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ContextOverflowError(ChatError):
    """The messages are longer than the model's context."""

    def __init__(self, message: str) -> None:
        super().__init__("context_overflow", message)


class BudgetError(ChatError):
    """The run's budget of calls, tokens or money is used up; nothing more is sent."""

    def __init__(self, message: str) -> None:
        super().__init__("budget", message)
