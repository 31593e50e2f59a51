"""A tool: a Python function that a model may call, described by its docstring and signature.

    async def search(query: Annotated[str, Field(description="What to look for.")], context: CallContext) -> ToolOutput:
        '''Searches the corpus.'''

A parameter named `context` is not the model's: it gets the `CallContext` of the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from agentir.chat.model import ToolSchema
from agentir.errors import AgentirError

CONTEXT = "context"
MAX_FOUND = 200


class ToolError(AgentirError):
    """A call that did not work, in words for the model that made it."""


class ArgumentsError(ToolError):
    """The arguments of a call do not fit, so that the tool was not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """What a call gave.

    Attributes:
        content: what the model reads.
        docids: the documents shown in it, best first.
        compact: what remains of the content when it is cleared from the conversation.
    """

    content: str
    docids: tuple[str, ...] = ()
    compact: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """What a tool may know of the episode besides its arguments.

    Attributes:
        qid: the question's id.
        question: what is to be answered.
        reasoning: the reasoning of the calling turn.
        turn: its index.
        place: how many calls of the same tool stand before this one in its turn.
    """

    qid: str = ""
    question: str = ""
    reasoning: str = ""
    turn: int = 0
    place: int = 0


class Tool:
    """A function with the schema that the model sees.

    Args:
        function: async; its parameters, without `context`, are the tool's.
        name: what the model calls it; default: the function's name.
    """

    def __init__(self, function: Callable[..., Awaitable[ToolOutput]], name: str | None = None) -> None:
        self._function = function
        parameters = inspect.signature(function).parameters
        hints = get_type_hints(function, include_extras=True)
        fields: dict[str, Any] = {
            key: (hints[key], ... if parameter.default is parameter.empty else parameter.default)
            for key, parameter in parameters.items()
            if key != CONTEXT
        }
        self._wants_context = CONTEXT in parameters
        self._arguments: type[BaseModel] = create_model(
            "Arguments", __config__=ConfigDict(coerce_numbers_to_str=True), **fields
        )
        name = name or function.__name__
        self.schema = ToolSchema(
            name=name, description=inspect.cleandoc(function.__doc__ or ""), parameters=_json_schema(self._arguments)
        )

    async def run(self, arguments: Mapping[str, Any], context: CallContext) -> ToolOutput:
        """Checks the arguments and runs the function.

        Models are forgiven what has one meaning only: a list of one for a text, a text for a list of texts, a number for a
        text. Arguments that the tool does not have are left out, and the output says so.

        Raises:
            ArgumentsError: an argument does not fit.
            ToolError: the call did not work.
        """
        known = self._arguments.model_fields
        try:
            checked = self._arguments.model_validate(
                {name: self._mended(name, value) for name, value in arguments.items() if name in known}
            )
        except ValidationError as error:
            faults = "; ".join(_fault(problem) for problem in error.errors(include_url=False))
            raise ArgumentsError(f"{self.schema.name}: {faults}") from None
        given = {name: getattr(checked, name) for name in known}
        output = await self._function(**given, **({CONTEXT: context} if self._wants_context else {}))
        if unknown := sorted(arguments.keys() - known.keys()):
            note = f"[{self.schema.name} has no argument {', '.join(unknown)[:MAX_FOUND]}; left out]"
            return replace(output, content=f"{output.content}\n\n{note}")
        return output

    def _mended(self, name: str, value: Any) -> Any:
        kind = self.schema.parameters["properties"][name].get("type")
        if kind == "string" and isinstance(value, list) and len(value) == 1:
            value = value[0]
        if kind == "array" and isinstance(value, str):
            value = [value]
        return value


def _json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The model's JSON schema, without the titles that pydantic adds."""
    schema = {"additionalProperties": False, **model.model_json_schema()}
    schema.pop("title", None)
    for parameter in schema.get("properties", {}).values():
        parameter.pop("title", None)
    return schema


def _fault(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"{where}: missing"
    found = repr(problem["input"])
    found = found if len(found) <= MAX_FOUND else found[:MAX_FOUND] + "..."
    return f"{where}: {problem['msg'].removeprefix('Input should be ')} expected, found {found}"
