from typing import Any

import pytest
from replies import chat_reply, listed, made, next_messages

from agentir.chat.dialects.qwen3 import Qwen3Dialect

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "b"}}\n</tool_call>'
MADE = [("call_0", "search", {"query": "b"})]


@pytest.mark.parametrize(
    ("message", "reasoning", "text", "calls", "answer"),
    [
        ({"content": f"<think>\nOne.\n</think>\n\n{CALL}"}, "One.", "", MADE, ""),
        ({"content": f"\n\n{CALL}", "reasoning_content": "\nOne.\n"}, "One.", "", MADE, ""),
        ({"content": f"One.\n</think>\n\nI look.\n{CALL}"}, "One.", "I look.", MADE, ""),
        ({"content": None, "reasoning_content": f"One.\n{CALL}"}, "One.", "", MADE, ""),
        ({"content": f"<think>One.\n{CALL}"}, "One.", "", MADE, ""),
        ({"content": "Bergen", "reasoning_content": f"Or {CALL}?"}, "Or ?", "Bergen", [], "Bergen"),
        ({"content": "<think>\nOne.\n</think>\n\nBergen"}, "One.", "Bergen", [], "Bergen"),
        ({"content": "<think>\n\n</think>\n\nBergen"}, "", "Bergen", [], "Bergen"),
        ({"content": "One.\n</think>\n\nBergen"}, "One.", "Bergen", [], "Bergen"),
        ({"content": "<think>\nOne."}, "One.", "", [], ""),
        ({"content": None, "reasoning_content": "One."}, "One.", "", [], ""),
        (
            {"content": "", "reasoning_content": "One.", "tool_calls": [listed("x", '{"query": "b"}')]},
            "One.",
            "",
            [("x", "search", {"query": "b"})],
            "",
        ),
    ],
)
def test_replies(message: dict[str, Any], reasoning: str, text: str, calls: list[Any], answer: str) -> None:
    found = Qwen3Dialect().read(chat_reply(**message))
    assert (found.reasoning, found.text, made(found), found.answer) == (reasoning, text, calls, answer)


def test_reasoning_goes_back() -> None:
    """The template shows it from the last question on; where the server gave it no name, it goes under both."""
    dialect = Qwen3Dialect()
    found = dialect.read(chat_reply(f"<think>\nOne.\n</think>\n\nI look.\n{CALL}"))
    assert next_messages(dialect, found) == [
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "One.",
            "reasoning": "One.",
            "tool_calls": [listed("call_0", '{"query": "b"}')],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": "result 0"},
    ]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_goes_back_under_the_servers_name_for_it(name: str) -> None:
    dialect = Qwen3Dialect()
    calls = [listed("x", '{"query": "b"}')]
    reply = chat_reply("", "tool_calls", tool_calls=calls, **{"reasoning_content": None, name: "\nOne.\n"})
    assert next_messages(dialect, dialect.read(reply)) == [
        {"role": "assistant", "content": "", name: "One.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "x", "content": "result 0"},
    ]


@pytest.mark.parametrize(
    ("message", "reasoning", "text", "calls"),
    [
        ({"content": None, "reasoning_content": "Bergen"}, "", "Bergen", []),
        ({"content": "\n\n", "reasoning": "\n\nBergen"}, "", "Bergen", []),
        ({"content": None, "reasoning_content": None, "reasoning": "Bergen"}, "", "Bergen", []),
        ({"content": None, "reasoning_content": f"I look.\n{CALL}"}, "I look.", "I look.", MADE),
        ({"content": "Bergen", "reasoning_content": "One."}, "One.", "Bergen", []),
        ({"content": "<think>\nOne."}, "One.", "", []),
        ({"content": None, "reasoning_content": ["x"], "reasoning": " "}, "x", "", []),
        ({"content": None}, "", "", []),
    ],
)
def test_without_thinking_a_reply_that_is_all_reasoning_is_a_text(
    message: dict[str, Any], reasoning: str, text: str, calls: list[Any]
) -> None:
    """As vLLM gives it with its parser deepseek_r1."""
    reply = chat_reply(**message)
    found = Qwen3Dialect(thinking=False).read(reply)
    assert (found.reasoning, found.text, made(found)) == (reasoning, text, calls)
    assert (found.answer, found.raw) == ("" if calls else text, reply["choices"][0]["message"])
    cut = Qwen3Dialect(thinking=False).read(chat_reply(**message, finish="length"))
    assert (cut.finish, cut.text, cut.calls, cut.answer) == ("length", text, (), "")
