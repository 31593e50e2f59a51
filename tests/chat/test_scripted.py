import asyncio
from collections.abc import Sequence

import pytest

from agentir.chat.model import ChatModel, Generation
from agentir.chat.scripted import ScriptedModel, said
from agentir.errors import ChatError
from agentir.records import Message

ASK = [Message(role="user", content="7")]


def test_replies_come_in_turn_and_requests_are_kept() -> None:
    model: ChatModel = (scripted := ScriptedModel([said("a"), said("b")], name="m"))

    async def run() -> list[str]:
        return [(await model.generate(ASK)).answer, (await model.generate(ASK, schema={"type": "object"})).answer]

    assert asyncio.run(run()) == ["a", "b"]
    assert model.name == "m"
    assert [(request.messages, request.schema) for request in scripted.requests] == [
        (tuple(ASK), None),
        (tuple(ASK), {"type": "object"}),
    ]
    with pytest.raises(AssertionError, match="the script has 2 replies"):
        asyncio.run(model.generate(ASK))


def test_replies_can_be_made_of_the_messages_and_fail() -> None:
    def reply(messages: Sequence[Message]) -> Generation:
        if messages[0].content == "7":
            return said("8")
        raise ChatError("timeout", "late")

    model = ScriptedModel(reply)
    assert asyncio.run(model.generate(ASK)) == said("8")
    with pytest.raises(ChatError, match="late"):
        asyncio.run(model.generate([Message(role="user", content="x")]))
