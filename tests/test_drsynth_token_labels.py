import lzma
from pathlib import Path
from typing import Any

import pytest

from agentir.drsynth.sft import SftRow
from agentir.drsynth.token_labels import IGNORED, TokenLabels, token_labels, token_labels_by_turn
from agentir.errors import InputError

KEEPING = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user\n' }}{% endif %}
{{- '<tool_response>' + message.content + '</tool_response>\n' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- else %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.reasoning_content and KEPT %}{{ '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + call.function.name + ' ' + call.function.arguments.query + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""Writes Qwen's turns: results of one turn stand in one user message, and thinking is kept where KEPT says so."""
ALWAYS = KEEPING.replace("KEPT", "true")
AFTER_LAST_USER = (
    "{%- set last = namespace(user=0) %}"
    "{%- for message in messages %}{% if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}"
    + KEEPING.replace("KEPT", "loop.index0 > last.user")
)
"""As Qwen3's: the thinking before the last user message is dropped."""
THINKING_PROMPT = ALWAYS.replace(
    "'<|im_start|>assistant\n' }}{% endif %}", "'<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
"""As that of models that always think: the generation prompt opens the thought."""


@pytest.fixture(scope="module")
def qwen3() -> Any:
    from tokenizers import Tokenizer
    from transformers import Qwen2TokenizerFast

    source = Path(__file__).parent / "data" / "qwen3" / "tokenizer.json.xz"
    return Qwen2TokenizerFast(tokenizer_object=Tokenizer.from_str(lzma.decompress(source.read_bytes()).decode()))


def call(query: str) -> dict[str, Any]:
    return {"id": query, "type": "function", "function": {"name": "search", "arguments": f'{{"query": "{query}"}}'}}


def told(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content, "trainable": False}


def said(content: str, reasoning: str, *queries: str, trainable: bool = True) -> dict[str, Any]:
    calls = {"tool_calls": [call(query) for query in queries]} if queries else {}
    thought = {"reasoning_content": reasoning} if reasoning else {}
    return {"role": "assistant", "content": content, **thought, **calls, "trainable": trainable}


SEARCHING = SftRow(
    qid="q",
    messages=[
        told("system", "Search."),
        told("user", "Wer sang „Straße“ 🎵?"),
        said("", "A duo 🎵 from Malmö?", "pop ", "düo"),
        told("tool", "Roxette<think>not mine</think>"),
        told("tool", "nothing"),
        said("", "again", "bad", trainable=False),
        told("tool", "Error: no"),
        said("  Roxette", ""),
    ],
    tools=[{"type": "function", "function": {"name": "search", "parameters": {}}}],
)
PROMPTED = SftRow(
    qid="q",
    messages=[told("user", "Who?"), said("Hm.", "first"), told("user", "Answer."), said("Abba", "second")],
    tools=[],
)


def trained(tokenizer: Any, sample: TokenLabels) -> list[str]:
    """The runs of tokens that are trained on, as texts."""
    assert len(sample.input_ids) == len(sample.labels)
    assert all(label in (IGNORED, token) for token, label in zip(*sample, strict=True))
    runs: list[list[int]] = [[]]
    for label in sample.labels:
        if label != IGNORED:
            runs[-1].append(label)
        elif runs[-1]:
            runs.append([])
    return [tokenizer.decode(run) for run in runs if run]


def test_exactly_what_the_agent_wrote_is_trained_on(qwen3: Any) -> None:
    qwen3.chat_template = ALWAYS
    sample = token_labels(qwen3, SEARCHING)
    assert trained(qwen3, sample) == [
        "<think>\nA duo 🎵 from Malmö?\n</think>\n\n<tool_call>search pop </tool_call>"
        "<tool_call>search düo</tool_call><|im_end|>",
        "  Roxette<|im_end|>",
    ]
    messages = [
        {
            **message,
            "tool_calls": [{"function": {"name": "search", "arguments": {"query": one["id"]}}} for one in calls],
        }
        for message in SEARCHING.messages
        for calls in [message.get("tool_calls", [])]
    ]
    whole = qwen3.apply_chat_template(messages, tools=SEARCHING.tools, tokenize=True, return_dict=False)
    assert sample.input_ids == whole


def test_a_template_that_changes_earlier_turns_is_refused_and_taken_turn_by_turn(qwen3: Any) -> None:
    qwen3.chat_template = AFTER_LAST_USER
    assert len(trained(qwen3, token_labels(qwen3, SEARCHING))) == 2
    with pytest.raises(
        InputError, match=r"q: expected a chat template .* number 1 .*'<think>.* became 'Hm\..*_by_turn"
    ):
        token_labels(qwen3, PROMPTED)
    samples = token_labels_by_turn(qwen3, PROMPTED)
    assert [trained(qwen3, sample) for sample in samples] == [
        ["<think>\nfirst\n</think>\n\nHm.<|im_end|>"],
        ["<think>\nsecond\n</think>\n\nAbba<|im_end|>"],
    ]
    assert [qwen3.decode(sample.input_ids) for sample in samples] == [
        "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n<think>\nfirst\n</think>\n\nHm.<|im_end|>\n",
        "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nHm.<|im_end|>\n<|im_start|>user\nAnswer.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nsecond\n</think>\n\nAbba<|im_end|>\n",
    ]


def test_each_sample_of_a_turn_trains_that_turn_alone(qwen3: Any) -> None:
    qwen3.chat_template = ALWAYS
    whole = trained(qwen3, token_labels(qwen3, SEARCHING))
    assert [trained(qwen3, sample) for sample in token_labels_by_turn(qwen3, SEARCHING)] == [[text] for text in whole]


def test_what_the_generation_prompt_writes_is_not_trained_on(qwen3: Any) -> None:
    qwen3.chat_template = THINKING_PROMPT
    assert trained(qwen3, token_labels(qwen3, SEARCHING))[0].startswith("A duo")
    assert trained(qwen3, token_labels(qwen3, SEARCHING))[1] == "  Roxette<|im_end|>"


def test_a_template_that_changes_messages_for_the_next_one_is_refused(qwen3: Any) -> None:
    qwen3.chat_template = "{{ messages | length }}{% for message in messages %}{{ message.content }}{% endfor %}"
    for labelled in (token_labels, token_labels_by_turn):
        with pytest.raises(InputError, match="the same when message 1 follows, found one that does not"):
            labelled(qwen3, PROMPTED)


@pytest.mark.parametrize("max_tokens", [1, 20, 60, 10_000])
def test_what_is_too_long_is_cut_at_the_end(qwen3: Any, max_tokens: int) -> None:
    qwen3.chat_template = ALWAYS
    whole, cut = token_labels(qwen3, SEARCHING), token_labels(qwen3, SEARCHING, max_tokens)
    assert cut == (whole.input_ids[:max_tokens], whole.labels[:max_tokens])
    for one in token_labels_by_turn(qwen3, SEARCHING, max_tokens):
        assert len(one.labels) <= max_tokens


def test_a_slow_tokenizer_is_refused() -> None:
    from transformers import ByT5Tokenizer

    slow = ByT5Tokenizer(chat_template=ALWAYS)
    with pytest.raises(InputError, match="ByT5Tokenizer: expected a fast tokenizer"):
        token_labels(slow, SEARCHING)
