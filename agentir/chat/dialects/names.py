"""The dialects by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from agentir.chat.dialects.dialect import Dialect
from agentir.chat.dialects.generic import GenericDialect
from agentir.chat.dialects.glm import GlmDialect
from agentir.chat.dialects.gpt_oss import GptOssDialect
from agentir.chat.dialects.json_text import JsonTextDialect
from agentir.chat.dialects.qwen3 import Qwen3Dialect
from agentir.chat.dialects.tongyi import TongyiDialect
from agentir.chat.transcripts import ThinkBlocks

DialectName = Literal["generic", "tongyi", "gpt-oss", "glm", "qwen3", "json-text"]
_DIALECTS: dict[DialectName, Callable[[ThinkBlocks, bool], Dialect]] = {
    "generic": lambda think_blocks, thinking: GenericDialect(think_blocks, thinking=thinking),
    "tongyi": lambda think_blocks, _: TongyiDialect(think_blocks),
    "gpt-oss": lambda *_: GptOssDialect(),
    "glm": GlmDialect,
    "qwen3": Qwen3Dialect,
    "json-text": JsonTextDialect,
}


def make_dialect(name: DialectName, think_blocks: ThinkBlocks = "last", thinking: bool = True) -> Dialect:
    """The dialect of a name.

    Args:
        name: of a family of models.
        think_blocks: which of several thoughts in one message is its reasoning; gpt-oss joins all of them.
        thinking: whether the requests let the model think, where that can be chosen; not so for tongyi and gpt-oss.
    """
    return _DIALECTS[name](think_blocks, thinking)
