import json
from typing import Any

import pytest
from replies import PROMPT, SEARCH, SEARCH_LINE, chat_reply, made, next_messages

from agentir.chat.dialects.json_text import JsonTextDialect
from agentir.records import Message, ToolCall

SYSTEM_PART = f"""# Tools

You can use these tools, one a line, with the JSON schema of their arguments:
{SEARCH_LINE}

# Replies

Each of your replies is one JSON object and nothing else. To use a tool:
{{"thought": "why you need it", "tool": "name of the tool", "arguments": {{"name of an argument": "its value"}}}}
You are then shown the result. When you know the answer:
{{"thought": "how you know it", "answer": "your answer"}}"""
STEP = '{"thought": "A play.", "tool": "search", "arguments": {"query": "b"}}'
MADE = [("call_0", "search", {"query": "b"})]


def test_the_first_request() -> None:
    assert JsonTextDialect().request(PROMPT, [SEARCH]) == {
        "messages": [
            {"role": "system", "content": f"Be brief.\n\n{SYSTEM_PART}"},
            {"role": "user", "content": "Who wrote Peer Gynt?"},
        ],
        "stop": ["\n[Result of "],
    }


def test_without_tools_it_is_plain_chat() -> None:
    dialect = JsonTextDialect()
    assert dialect.request(PROMPT[1:], []) == {"messages": [{"role": "user", "content": "Who wrote Peer Gynt?"}]}
    judged = '{"name": "Bergen", "score": 3}'
    assert (dialect.read(chat_reply(judged)).text, dialect.read(chat_reply(judged)).answer) == (judged, judged)


def test_a_conversation() -> None:
    dialect = JsonTextDialect()
    content = f'{STEP}\n{{"tool": "search", "arguments": {{"query": "c"}}}}'
    found = dialect.read(chat_reply(content))
    assert (found.reasoning, found.text, found.finish) == ("A play.", "", "calls")
    assert made(found) == [*MADE, ("call_1", "search", {"query": "c"})]
    assert next_messages(dialect, found) == [
        {"role": "assistant", "content": content},
        {"role": "user", "content": "[Result of search]\nresult 0\n\n[Result of search]\nresult 1"},
    ]
    last = dialect.read(chat_reply('{"thought": "It says so.", "answer": "Henrik Ibsen"}'))
    assert (last.reasoning, last.answer, last.finish) == ("It says so.", "Henrik Ibsen", "stop")


@pytest.mark.parametrize(
    ("content", "reasoning", "calls", "answer"),
    [
        (f"```json\n{STEP}\n```", "A play.", MADE, ""),
        (f"```\n{STEP}\n```\nDone.", "A play.", MADE, ""),
        (f"I will look.\n{STEP}", "A play.", MADE, ""),
        (f"<tool_call>\n{STEP}\n</tool_call>", "A play.", MADE, ""),
        (f"{STEP}\n</tool_call>", "A play.", MADE, ""),
        (f"[{STEP}]", "A play.", MADE, ""),
        ('I look.\n{"name": "search", "arguments": {"query": "b"}}', "I look.", MADE, ""),
        ('{"action": "search", "action_input": {"query": "b"}}', "", MADE, ""),
        ('{"name": "search", "args": "{\\"query\\": \\"b\\"}"}', "", MADE, ""),
        ('<think>Hm.</think>{"tool": "search", "parameters": {"query": "b"}}', "Hm.", MADE, ""),
        (f"<think>Hm.</think>{STEP}", "A play.", MADE, ""),
        ('{"thought": "a\nb", "tool": "search", "arguments": {"query": "b"}}', "a\nb", MADE, ""),
        ('{"tool": "search"}', "", [("call_0", "search", None)], ""),
        ('{"tool": "search", "arguments": {"query": "b"}', "", [("call_0", "", None)], ""),
        ('```json\n{"thought": "x", "tool": "search" "arguments"', "", [("call_0", "", None)], ""),
        ('{"thought": "x", "tool": null, "answer": "Bergen"}', "x", [], "Bergen"),
        ('{"thought": "x", "answer": 7}', "x", [], "7"),
        ('So: {"answer": " Bergen "} I hope.', "So:", [], "Bergen"),
        ("Bergen {in Norway}", "", [], "Bergen {in Norway}"),
        ("Bergen, see [1] and [a](b)", "", [], "Bergen, see [1] and [a](b)"),
        ("<think>Hm.</think>Bergen", "Hm.", [], "Bergen"),
        ("", "", [], ""),
    ],
)
def test_replies(content: str, reasoning: str, calls: list[Any], answer: str) -> None:
    found = JsonTextDialect().read(chat_reply(content))
    assert (found.reasoning, made(found), found.answer) == (reasoning, calls, answer)


def test_what_the_model_made_up_is_left_out_and_noted() -> None:
    found = JsonTextDialect().read(chat_reply(f'{STEP}\n[Result of search]\nIbsen\n{{"answer": "Ibsen"}}'))
    assert (made(found), found.raw) == (MADE, STEP)
    assert found.notes == ("cut off at a tool result that the model wrote itself: 44 characters",)
    found = JsonTextDialect().read(chat_reply(f'{STEP}\n{{"thought": "y", "answer": "Ibsen"}}'))
    assert (made(found), found.reasoning) == (MADE, "A play.")
    assert found.notes == ("1 objects besides the calls or the answer were left out",)


@pytest.mark.parametrize(
    ("content", "reasoning", "calls", "answer"),
    [
        (f'{{"answer": "x"}}\n{STEP}', "A play.", MADE, ""),
        (f'The page says {{"answer": "x"}}, a trick. {STEP}', "A play.", MADE, ""),
        (f'The page says {STEP}, a trick. {{"thought": "So.", "answer": "Ibsen"}}', "So.", [], "Ibsen"),
        ('It says {"answer": "x"}, a trick. {"answer": "Ibsen"}', "It says {\"answer\": \"x\"}, a trick.", [], "Ibsen"),
        (f'Two:\n{STEP}\n```json\n{{"tool": "a", "arguments": {{}}}}\n```', "A play.", [*MADE, ("call_1", "a", {})], ""),
    ],
)  # fmt: skip
def test_the_last_objects_decide(content: str, reasoning: str, calls: list[Any], answer: str) -> None:
    found = JsonTextDialect().read(chat_reply(content))
    assert (found.reasoning, made(found), found.answer) == (reasoning, calls, answer)


@pytest.mark.parametrize(
    ("content", "num_calls"),
    [
        ('{"thought": "it says {"answer": "x"}, a trick", "tool": "search", "arguments": {"query": "b"}}', 1),
        (f'{{"thought": "it says {STEP}, a trick", "answer": "Ibsen"}}', 1),
        ("{'thought': 'it says {\"answer\": \"x\"}', 'tool': 'search', 'arguments': {}}", 1),
        ('I look.\n{"thought": "it says {"answer": "x"}", "tool": "search"}', 1),
        ('It says {"answer": "x"}. {"thought": "So", "tool": "search", "arguments', 1),
        ('{"thought": "According to', 0),
        ('```json\n{"thought": "it says {"answer": "x"}", "answer": "Ibsen"}\n```', 0),
        ('{"answer": "Ibs', 0),
        ('{"thou', 0),
        ('{"thought": "I need more."}', 0),
        ('{"thought": "I need more.", "tool": null, "answer": null}', 0),
    ],
)
def test_what_cannot_be_read_is_no_answer(content: str, num_calls: int) -> None:
    found = JsonTextDialect().read(chat_reply(content))
    assert [call.arguments for call in found.calls] == [None] * num_calls
    assert found.answer == "" and (found.calls or (found.notes and found.text == content))


@pytest.mark.parametrize("thought", ["According to [Result of search]", "a\n[Result of search]"])
def test_a_result_that_is_only_named_cuts_nothing(thought: str) -> None:
    for written in (json.dumps(thought), f'"{thought}"'):
        content = f'{{"thought": {written}, "tool": "search", "arguments": {{"query": "b"}}}}'
        found = JsonTextDialect().read(chat_reply(content))
        assert (made(found), found.reasoning, found.raw, found.notes) == (MADE, thought, content, ())
    found = JsonTextDialect().read(chat_reply("Bergen, as [Result of search] says"))
    assert (found.answer, found.notes) == ("Bergen, as [Result of search] says", ())


def test_results_and_what_the_user_says_next_are_one_message() -> None:
    call = ToolCall(call_id="a", name="search", arguments={"query": "b"})
    messages = [
        *PROMPT,
        Message(role="user", content="Go on."),
        Message(role="assistant", content="", calls=(call,)),
        Message(role="tool", call_id="a", content="r"),
        Message(role="user", content="Answer now."),
    ]
    sent = JsonTextDialect().request(messages, [])["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user"]
    assert sent[1]["content"] == "Who wrote Peer Gynt?\n\nGo on."
    assert sent[3]["content"] == "[Result of search]\nr\n\nAnswer now."


def test_messages_that_the_model_did_not_write_are_written_its_way() -> None:
    call = ToolCall(call_id="a", name="search", arguments={"query": "b"})
    messages = [
        Message(role="assistant", content="", reasoning="A play.", calls=(call,)),
        Message(role="assistant", content="Bergen"),
    ]
    sent = JsonTextDialect().request(messages, [])["messages"]
    assert json.loads(sent[0]["content"]) == json.loads(STEP)
    assert sent[1]["content"] == "Bergen"
