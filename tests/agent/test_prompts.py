"""The default system prompt, as a model reads it."""

from agentir.agent.episode import Agent
from agentir.agent.prompts import SYSTEM
from agentir.chat.scripted import ScriptedModel
from agentir.records import Message
from agentir.tools.toolset import Toolset


def test_the_default_system_prompt() -> None:
    agent = Agent(name="a", model=ScriptedModel([]), toolset=Toolset([]), system=SYSTEM)
    assert agent.prompt("Who?") == (
        Message(
            role="system",
            content=(
                "You answer hard questions by searching a collection of documents. Think before each step: what is already "
                "settled, what is ruled out, and what is still missing. Then search for the one thing that is missing next. "
                "Search results show only the beginning of each document. Do not answer from memory what you can look up. "
                "When you have found the answer and checked it, give it as your final message: the answer itself, short and "
                "exact, without further tool calls."
            ),
        ),
        Message(role="user", content="Who?"),
    )
