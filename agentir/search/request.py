"""What may be asked of a retriever: one check for Python, REST and MCP, so that the same input gets the same answer."""

from __future__ import annotations

import difflib
import numbers
import re
import reprlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from agentir.chat.transcripts import clean_reasoning
from agentir.errors import RequestError
from agentir.jsonl import clean_text

DEFAULT_K = 10
_WHOLE_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of a request.

    A longer query is refused. A longer reasoning loses its oldest end; the default is about twice what 8,192 tokens of
    English hold, so that usually only the encoder's token limit shortens it.
    """

    max_query_chars: int = 4_000
    max_reasoning_chars: int = 64_000
    max_k: int = 100

    @property
    def default_k(self) -> int:
        """How many results a request without `k` gets."""
        return min(DEFAULT_K, self.max_k)


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """A checked search: `reasoning` is free of markup, and `reasoning_truncated` says that its oldest end was cut."""

    query: str
    reasoning: str = ""
    k: int = DEFAULT_K
    reasoning_truncated: bool = False


def parse_search(arguments: Mapping[str, object], limits: Limits = DEFAULT_LIMITS) -> SearchRequest:
    """Checks the arguments of a search.

    Args:
        arguments: `query` (required), `reasoning` and `k`, as they came from JSON or Python; null stands for the default
            of the latter two.
        limits: the bounds.

    Raises:
        RequestError: an argument is missing, unknown, of another type or out of bounds; nothing is clipped silently.
    """
    _refuse_unknown(arguments, ("query", "reasoning", "k"))
    query = _query(arguments, limits)
    k = _k(arguments.get("k"), limits)
    reasoning = arguments.get("reasoning")
    if reasoning is None:
        return SearchRequest(query=query, k=k)
    if not isinstance(reasoning, str):
        raise RequestError("reasoning", f"expected a string, found {_shown(reasoning)}")
    stripped = clean_text(clean_reasoning(reasoning))
    if _is_blank(stripped):
        stripped = ""
    kept = stripped[-limits.max_reasoning_chars :].strip()
    truncated = len(stripped) > limits.max_reasoning_chars
    return SearchRequest(query=query, reasoning=kept, k=k, reasoning_truncated=truncated)


def parse_docid(arguments: Mapping[str, object]) -> str:
    """Checks the arguments of a document request; a docid is an opaque text and is returned unchanged.

    Raises:
        RequestError: `docid` is missing, no string, empty or no valid Unicode, or there is another argument.
    """
    _refuse_unknown(arguments, ("docid",))
    docid = arguments.get("docid")
    if docid is None:
        raise RequestError("docid", "missing; expected the docid of a search result")
    if not isinstance(docid, str):
        raise RequestError("docid", f"expected a string, exactly as a search gave it, found {_shown(docid)}")
    if not docid:
        raise RequestError("docid", "empty; expected the docid of a search result")
    if _SURROGATE.search(docid):
        raise RequestError("docid", f"expected valid Unicode, found {_shown(docid)}")
    return docid


def _query(arguments: Mapping[str, object], limits: Limits) -> str:
    query = arguments.get("query")
    if query is None:
        raise RequestError("query", "missing; expected what to search for, as a string")
    if not isinstance(query, str):
        raise RequestError("query", f"expected a string, found {_shown(query)}")
    if _is_blank(query):
        raise RequestError("query", "blank; expected what to search for")
    if len(query) > limits.max_query_chars:
        raise RequestError(
            "query",
            f"expected at most {limits.max_query_chars} characters, found {len(query)}; put the essence here and the "
            "thinking into reasoning",
        )
    return clean_text(query)


def _k(value: object, limits: Limits) -> int:
    if value is None:
        return limits.default_k
    match value:
        case bool():
            number = 0
        case numbers.Integral():
            number = int(value)
        case float() if value.is_integer():
            number = int(value)
        case str() if _WHOLE_NUMBER.fullmatch(value):
            number = int(value)
        case _:
            number = 0
    if not 1 <= number <= limits.max_k:
        raise RequestError("k", f"expected a whole number from 1 to {limits.max_k}, found {_shown(value)}")
    return number


def _refuse_unknown(arguments: Mapping[str, object], known: tuple[str, ...]) -> None:
    for name in arguments:
        if name not in known:
            near = difflib.get_close_matches(str(name)[:100].lower(), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known arguments: {', '.join(known)}"
            raise RequestError(clean_text(str(name))[:80], f"unknown argument; {hint}")


def _is_blank(text: str) -> bool:
    """Whether nothing of the text is visible: white space, control and format characters only."""
    return all(char.isspace() or unicodedata.category(char) in ("Cc", "Cf") for char in text)


def _shown(value: object) -> str:
    """The value as a short literal for an error text."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python refuses to write integers of thousands of digits
        return f"a {type(value).__name__} too long to show"
