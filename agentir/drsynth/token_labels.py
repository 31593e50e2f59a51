"""Token-level labels of conversations, for any Hugging Face tokenizer with a chat template.

Which tokens a message became is found by rendering the conversation up to it and including it. That takes a template which
never changes what it rendered before; some do (Qwen3's drops the thinking of turns before the last user message): those
conversations are taken turn by turn, as the agent saw them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agentir.drsynth.sft import SftRow
from agentir.errors import InputError

IGNORED = -100
"""The label that PyTorch's cross entropy and Hugging Face's models pass over."""


class TokenLabels(NamedTuple):
    """The tokens of a conversation, and for each its own id where it is trained on, else -100."""

    input_ids: list[int]
    labels: list[int]


def token_labels(tokenizer: Any, row: SftRow, max_tokens: int | None = None) -> TokenLabels:
    """Tokens and labels of a whole conversation; every trainable message is trained on.

    Args:
        tokenizer: a fast Hugging Face tokenizer with a chat template.
        row: the conversation.
        max_tokens: what follows is cut off; then nothing trainable may be left.

    Raises:
        InputError: the template changes what it rendered before, or the tokenizer cannot say where its tokens stand.
    """
    whole = _render(tokenizer, row, len(row.messages))
    spans = []
    for number in _trainable(row):
        start, text = _start(tokenizer, row, number)
        if not whole.startswith(text):
            raise InputError(
                f"{row.qid}: expected a chat template that renders the messages up to number {number} the same when more "
                f"follow, found one that does not ({_difference(text, whole)}); render each turn by itself, with "
                "token_labels_by_turn, or give the tokenizer a template that keeps earlier turns as they are"
            )
        spans.append((start, len(text.rstrip())))
    return _labelled(tokenizer, whole, spans, max_tokens)


def token_labels_by_turn(tokenizer: Any, row: SftRow, max_tokens: int | None = None) -> list[TokenLabels]:
    """Tokens and labels of each trainable message with all that comes before it; only the message is trained on.

    This is what the agent saw when it wrote the message, whatever its template does to earlier turns.

    Args:
        tokenizer: a fast Hugging Face tokenizer with a chat template.
        row: the conversation.
        max_tokens: what follows is cut off, of a long sample also the message; then nothing trainable may be left.

    Raises:
        InputError: the template changes earlier messages even for the next one, or the tokenizer cannot say where its
            tokens stand.
    """
    samples = []
    for number in _trainable(row):
        start, text = _start(tokenizer, row, number)
        samples.append(_labelled(tokenizer, text, [(start, len(text.rstrip()))], max_tokens))
    return samples


def _trainable(row: SftRow) -> list[int]:
    return [number for number, message in enumerate(row.messages) if message["trainable"]]


def _start(tokenizer: Any, row: SftRow, number: int) -> tuple[int, str]:
    """Where the text of a message begins, and the conversation up to its end.

    It begins after the generation prompt, or as much of that as the template writes (Qwen3 writes empty thoughts for some
    messages only).
    """
    before, text = _render(tokenizer, row, number), _render(tokenizer, row, number + 1)
    if not text.startswith(before):
        raise InputError(
            f"{row.qid}: expected a chat template that renders messages the same when message {number} follows, found one "
            f"that does not ({_difference(before, text)}); give the tokenizer a template that keeps them as they are"
        )
    prompt = _render(tokenizer, row, number, add_generation_prompt=True)
    return _num_shared(prompt, text), text


def _num_shared(one: str, other: str) -> int:
    """How many characters two texts share at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))


def _difference(before: str, after: str) -> str:
    place = _num_shared(before, after)
    return f"{before[place : place + 40]!r} became {after[place : place + 40]!r}"


def _render(tokenizer: Any, row: SftRow, count: int, add_generation_prompt: bool = False) -> str:
    text: str = tokenizer.apply_chat_template(
        [_templated(message) for message in row.messages[:count]],
        tools=row.tools or None,
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
    )
    return text


def _templated(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as chat templates want it: arguments are an object there, where they are one."""
    given = {name: value for name, value in message.items() if name != "trainable"}
    if "tool_calls" in given:
        given["tool_calls"] = [
            call | {"function": call["function"] | {"arguments": _arguments(call["function"]["arguments"])}}
            for call in given["tool_calls"]
        ]
    return given


def _arguments(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _labelled(tokenizer: Any, text: str, spans: Sequence[tuple[int, int]], max_tokens: int | None) -> TokenLabels:
    """Labels the tokens that lie wholly within the spans (of characters, in order)."""
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"{type(tokenizer).__name__}: expected a fast tokenizer, which says where its tokens stand, found a slow one"
        )
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, truncation=False)
    input_ids: list[int] = encoded["input_ids"]
    labels = [IGNORED] * len(input_ids)
    waiting = list(reversed(spans))
    for place, (start, end) in enumerate(encoded["offset_mapping"]):
        while waiting and waiting[-1][1] <= start:
            waiting.pop()
        if waiting and waiting[-1][0] <= start < end <= waiting[-1][1]:
            labels[place] = input_ids[place]
    return TokenLabels(input_ids[:max_tokens], labels[:max_tokens])
