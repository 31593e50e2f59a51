"""Text of documents, as tools return it, before a model is sent it: what a prompt would take for markup gets spaces.

Whoever writes a page could otherwise end the result in which it stands, and go on as the user, a tool or the model.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(r"<([|\uff5c])([^<>|\uff5c\s]++)([|\uff5c])>")
_TAG = re.compile(r"<(/?(?:tool_response|tool_call|tools|answer|think(?:ing)?))\s*+>", re.IGNORECASE)
_RESULT = re.compile(r"\[(?=result of )", re.IGNORECASE)


def without_special_tokens(text: str) -> str:
    """The text with `<|im_end|>` and its like as `<| im_end |>`: servers read them in whatever a template holds."""
    return _TOKEN.sub(r"<\1 \2 \3>", text)


def without_markup(text: str) -> str:
    """The text without special tokens and markup of the text protocols: `<answer>` as `< answer >`, `[Result of` as
    `[ Result of`."""
    return _RESULT.sub("[ ", _TAG.sub(r"< \1 >", without_special_tokens(text)))
