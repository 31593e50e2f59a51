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


def test_thinking_does_not_go_back() -> None:
    dialect = Qwen3Dialect()
    found = dialect.read(chat_reply(f"<think>\nOne.\n</think>\n\nI look.\n{CALL}"))
    assert next_messages(dialect, found) == [
        {"role": "assistant", "content": "I look.", "tool_calls": [listed("call_0", '{"query": "b"}')]},
        {"role": "tool", "tool_call_id": "call_0", "content": "result 0"},
    ]
