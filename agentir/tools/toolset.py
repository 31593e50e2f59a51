"""The tools of an agent, and how a turn's calls are run."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace

from agentir.chat.model import ToolSchema
from agentir.errors import RequestError
from agentir.records import ToolCall, ToolResult
from agentir.tools.tool import ArgumentsError, CallContext, Tool, ToolError


class Toolset:
    """Runs the calls of a turn at the same time; every call is answered, in call order.

    What the model can mend (unknown tool, unreadable or unfit arguments, too many calls, a refused request) comes back to it
    as an error. Anything else, such as a search server that is away, ends the episode, which can then be tried again: an
    agent must not be taught by a broken search.

    Args:
        tools: with different names.
        max_calls: calls a turn that are run; further ones are answered with an error.
    """

    def __init__(self, tools: Sequence[Tool], max_calls: int = 8) -> None:
        self._tools = {tool.schema.name: tool for tool in tools}
        assert len(self._tools) == len(tools), "tools of one name"
        self.max_calls = max_calls

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        """What the model is offered."""
        return tuple(tool.schema for tool in self._tools.values())

    async def run(
        self, calls: Sequence[ToolCall], context: CallContext, only: Collection[str] | None = None
    ) -> tuple[ToolResult, ...]:
        """The results of a turn's calls, in their order.

        Args:
            calls: the calls.
            context: what the tools may know besides.
            only: names of the tools that may still be run; None: all.
        """
        answers = await asyncio.gather(
            *(
                self._answer(call, replace(context, place=_place(calls, number)), number < self.max_calls, only)
                for number, call in enumerate(calls)
            ),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return tuple(answer for answer in answers if not isinstance(answer, BaseException))

    async def _answer(
        self, call: ToolCall, context: CallContext, within_cap: bool, only: Collection[str] | None
    ) -> ToolResult:
        tool = self._tools.get(call.name)
        if only is not None and call.name not in only:
            rest = f"only {' and '.join(only)} may be called now" if only else "no more tools are run"
            return _not_run(call, f"a limit was reached; {rest}")
        if not within_cap:
            few = "one call" if self.max_calls == 1 else f"{self.max_calls} calls"
            return _not_run(call, f"at most {few} a turn; this one was not run")
        if call.arguments is None:
            found = call.raw_arguments[:200]
            return _not_run(call, f"the call could not be read; expected a JSON object of arguments, found {found!r}")
        if tool is None:
            return _not_run(call, f"there is no tool {call.name[:100]!r}; the tools are: {', '.join(self._tools)}")
        try:
            output = await tool.run(call.arguments, context)
        except ArgumentsError as error:
            return _not_run(call, str(error))
        except (ToolError, RequestError) as error:
            return ToolResult(call_id=call.call_id, content=f"Error: {error}", error=True)
        return ToolResult(call_id=call.call_id, content=output.content, docids=output.docids, compact=output.compact)


def _not_run(call: ToolCall, reason: str) -> ToolResult:
    return ToolResult(call_id=call.call_id, content=f"Error: {reason}", error=True, run=False)


def _place(calls: Sequence[ToolCall], number: int) -> int:
    """How many calls of the same tool stand before a call; one that could not be read may have been of any tool."""
    return sum(call.name in (calls[number].name, "") for call in calls[:number])
