"""A real HTTP server that plays scripted replies of an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reply:
    """What the server answers: a JSON body or bytes; `hang` never answers, `cut` closes in the middle of the body."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    hang: bool = False
    cut: bool = False


@dataclass
class Seen:
    """A request that came in."""

    path: str
    body: Any
    time: float
    headers: dict[str, str]


class ScriptedServer:
    """Serves on a free port of this machine, in a thread; `script(request)` gives each reply."""

    def __init__(self, script: Callable[[Seen], Reply]) -> None:
        self.script = script
        self.seen: list[Seen] = []
        self.num_open = self.max_open = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        self._ready.wait(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024, limit=1 << 26)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.strip().split("\r\n")
                headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
                content = await reader.readexactly(int(headers.get("content-length", 0)))
                seen = Seen(first.split()[1], json.loads(content) if content else None, time.monotonic(), headers)
                self.seen.append(seen)
                reply = self.script(seen)
                self.num_open += 1
                self.max_open = max(self.max_open, self.num_open)
                try:
                    if not await self._answer(writer, reply):
                        return
                finally:
                    self.num_open -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, reply: Reply) -> bool:
        """Sends a reply; returns whether the connection stays open."""
        await asyncio.sleep(3600 if reply.hang else reply.delay)
        content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        lines = {"content-type": "application/json", "content-length": str(len(content)), **reply.headers}
        head = f"HTTP/1.1 {reply.status} X\r\n" + "".join(f"{key}: {value}\r\n" for key, value in lines.items())
        writer.write(head.encode() + b"\r\n" + (content[: len(content) // 2] if reply.cut else content))
        await writer.drain()
        return not reply.cut

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)


def completion(
    content: str | None = None,
    *,
    reasoning: str = "",
    calls: list[tuple[str, str]] | None = None,
    finish: str | None = None,
    usage: tuple[int, int] = (10, 5),
) -> dict[str, Any]:
    """A chat completion's body; calls are (name, arguments as JSON text)."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(calls)
        ]
    return {
        "id": "x",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish or ("tool_calls" if calls else "stop")}],
        "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]},
    }
