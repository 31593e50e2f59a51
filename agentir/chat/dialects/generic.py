"""Tool calls as OpenAI's chat completions have them: vLLM with a tool parser, DeepSeek, Kimi and most hosted models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Literal

from agentir.chat.dialects.dialect import BadReplyError
from agentir.chat.dialects.document_text import without_special_tokens
from agentir.chat.model import Finish, Generation, ToolSchema
from agentir.chat.transcripts import REASONING_KEYS, OpenTurn, ThinkBlocks, assistant_turn, clean_reasoning
from agentir.chat.written_calls import MAX_DEPTH, bare_calls, is_shallow
from agentir.jsonl import Misfit
from agentir.records import Message, ToolCall

CALL_PREFIX = "call_"
"""Begins the ids of calls that the server gave none."""
MAX_CALLS = 64
"""Most calls that are taken from one reply; a model that writes more repeats itself."""
ENDED = ("stop", "tool_calls", "function_call", "eos", "eos_token", "stop_sequence", "")
CUT = ("length", "model_length", "max_tokens", "max_output_tokens")
WITHHELD = ("content_filter", "sensitive", "safety")


class GenericDialect:
    """Tools in the request, calls in `tool_calls`, reasoning in `reasoning_content`, `reasoning`, parts or `<think>` tags.

    Args:
        think_blocks: which of several thoughts in one message is its reasoning.
        send_reasoning: send reasoning back with earlier messages, under the server's own name for it, or under both names
            where it used none; many templates drop it, DeepSeek refuses it.
        thinking: whether the model is to think; if not, a reply that is all reasoning is a text (see `unsplit`).
    """

    api: Literal["chat"] = "chat"

    def __init__(self, think_blocks: ThinkBlocks = "last", send_reasoning: bool = False, thinking: bool = True) -> None:
        self.think_blocks = think_blocks
        self.send_reasoning = send_reasoning
        self.thinking = thinking

    def request(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> dict[str, Any]:
        """See `Dialect.request`."""
        body: dict[str, Any] = {"messages": joined_users([self._sent(message) for message in messages])}
        if tools:
            body["tools"] = [function_tool(tool) for tool in tools]
        return body

    def read(self, reply: Mapping[str, Any]) -> Generation:
        """See `Dialect.read`."""
        message, finish = chat_message(reply)
        turn = chat_turn(message, self.think_blocks, self.thinking)
        return generation(turn.reasoning, turn.text, turn.calls, finish, message, notes=turn.notes)

    def _sent(self, message: Message) -> dict[str, Any]:
        if message.role != "assistant":
            return plain_message(message)
        sent: dict[str, Any] = {"role": "assistant", "content": message.content}
        if self.send_reasoning and message.reasoning:
            raw = message.raw if isinstance(message.raw, dict) else {}
            # vLLM reads `reasoning` only, llama.cpp, SGLang and z.ai read `reasoning_content` only.
            names = [key for key in REASONING_KEYS if raw.get(key)] or REASONING_KEYS
            sent |= dict.fromkeys(names, message.reasoning)
        if message.calls:
            sent["tool_calls"] = [sent_call(call) for call in message.calls]
        return sent


def plain_message(message: Message) -> dict[str, Any]:
    """A message that is no assistant's, as chat completions take it."""
    if message.role == "tool":
        content = without_special_tokens(message.content)
        return {"role": "tool", "tool_call_id": message.call_id, "content": content}
    return {"role": message.role, "content": message.content}


def joined_users(sent: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with neighbouring ones of the user as one: the templates of Mistral and Gemma refuse two in a row."""
    joined: list[dict[str, Any]] = []
    for message in sent:
        if joined and message["role"] == joined[-1]["role"] == "user":
            joined[-1] = {**message, "content": f"{joined[-1]['content']}\n\n{message['content']}"}
        else:
            joined.append(message)
    return joined


def function_tool(tool: ToolSchema) -> dict[str, Any]:
    """A tool as chat completions take it."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def sent_call(call: ToolCall) -> dict[str, Any]:
    """A call as it goes back to the server."""
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": sent_arguments(call)}}


def sent_arguments(call: ToolCall) -> str:
    """A call's arguments as they go back to the server: those that were no JSON object as an empty one."""
    if call.arguments is None:
        return "{}"
    return call.raw_arguments or json.dumps(call.arguments, ensure_ascii=False)


def chat_message(reply: Mapping[str, Any]) -> tuple[dict[str, Any], Finish]:
    """The assistant's message in a reply of chat completions, and how it ended.

    Raises:
        BadReplyError: there is none, or it broke off.
    """
    choices = reply.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise BadReplyError(f"expected choices[0].message, found {str(dict(reply))[:200]}")
    return message, finish_of(choice.get("finish_reason"))


def finish_of(reason: object) -> Finish:
    """How a generation ended, from a server's word for it; without one, it ended by itself.

    Raises:
        BadReplyError: it broke off, or the word is unknown: half a generation must not pass for a whole one.
    """
    word = "" if reason is None else reason.lower() if isinstance(reason, str) else repr(reason)
    if word in ENDED:
        return "stop"
    if word in CUT or "context_window" in word:
        return "length"
    if word in WITHHELD:
        return "filtered"
    raise BadReplyError(
        f"the generation ended with {word[:100]!r}, expected an end such as stop, tool_calls, length or content_filter"
    )


def unsplit(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with its reasoning as its text, if that is all it holds.

    A server's parser that waits for the end of a thought (deepseek_r1) takes all of a reply without one for reasoning, also
    where the model was told not to think.
    """
    if str(message.get("content") or "").strip() or message.get("tool_calls"):
        return message
    given = (message.get(key) for key in REASONING_KEYS)
    text = next((text for text in given if isinstance(text, str) and text.strip()), None)
    return message if text is None else {**message, **dict.fromkeys(REASONING_KEYS), "content": text}


def chat_turn(message: Mapping[str, Any], think_blocks: ThinkBlocks, thinking: bool = True) -> OpenTurn:
    """Reasoning, text and calls of a reply's message.

    Small models drop the tags around a call; their servers then leave it in the text, where it would pass for an answer.

    Args:
        message: in OpenAI's chat format.
        think_blocks: which of several thoughts is the reasoning.
        thinking: whether the model is to think.

    Raises:
        BadReplyError: a part of it does not fit.
    """
    try:
        turn = assistant_turn(message if thinking else unsplit(message), "message", CALL_PREFIX, think_blocks)
    except Misfit as misfit:
        raise BadReplyError(str(misfit)) from None
    if turn.calls or not (bare := bare_calls(turn.text)).calls:
        return turn
    reasoning = turn.reasoning or clean_reasoning(bare.text)
    return replace(turn, reasoning=reasoning, text=bare.text, calls=bare.calls, notes=(*turn.notes, *bare.notes))


def with_ids(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls with an id each, different ones: the server's where it gave one, and of repeated ones the first."""
    taken = {call.call_id for call in calls}
    used: set[str] = set()
    kept: list[ToolCall] = []
    for number, call in enumerate(calls):
        if not call.call_id or call.call_id in used:
            fresh = next(name for place in count(number) if (name := f"{CALL_PREFIX}{place}") not in taken)
            taken.add(fresh)
            call = replace(call, call_id=fresh)
        used.add(call.call_id)
        kept.append(call)
    return tuple(kept)


def generation(
    reasoning: str,
    text: str,
    calls: Sequence[ToolCall],
    finish: Finish,
    raw: Any,
    *,
    answer: str | None = None,
    notes: Sequence[str] = (),
) -> Generation:
    """A generation from its parts: cut or withheld, it has neither calls nor answer.

    Args:
        reasoning: the thinking.
        text: what was said besides.
        calls: the calls that were found, of which the first `MAX_CALLS` are taken; where ids are missing or repeated, they
            get new ones.
        finish: "length" or "filtered" where the server said so, otherwise "stop".
        raw: what goes back to the server.
        answer: the final answer; None: the text, if there are no calls.
        notes: what was mended.
    """
    if finish in ("length", "filtered"):
        return with_raw(Generation(reasoning=reasoning, text=text, finish=finish, notes=tuple(notes)), raw)
    found = text if answer is None else answer
    if len(calls) > MAX_CALLS:
        notes = (*notes, f"{len(calls)} tool calls in one reply, those after the first {MAX_CALLS} were left out")
    made = Generation(
        reasoning=reasoning,
        text=text,
        calls=with_ids(calls[:MAX_CALLS]),
        answer="" if calls else found.strip(),
        finish="calls" if calls else "stop",
        notes=tuple(notes),
    )
    return with_raw(made, raw)


def with_raw(found: Generation, raw: Any) -> Generation:
    """The generation with what goes back to the server, unless that is nested too deeply for the line that keeps it."""
    if is_shallow(raw):
        return replace(found, raw=raw)
    note = (
        f"what the server sent is nested deeper than {MAX_DEPTH}: it was not kept, and is rebuilt when it is sent back"
    )
    return replace(found, notes=(*found.notes, note))
