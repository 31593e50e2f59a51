"""A language model's server that only waits: it answers each request after the same time, in a process of its own.

    python -m agentir.benches.endpoint --latency 2 --turns 8 --staggered 256

Prints its port, and ends when its standard input is closed. What it answers follows from the request alone: a conversation
with tools gets searches with reasoning until its last turn, and then an answer; one without tools gets a ranking of the
passages in it. The first calls are spread over one latency, so that those after them come evenly. `GET /calls` tells when
each request came and was answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from agentir.errors import AgentirError

MANY = 4096
_COUNT = re.compile(r"The passages, (\d+) in all")
_THOUGHT = (
    "The question names several things, and only one of them is settled so far. The results of the last search rule out the "
    "first reading, since the dates do not fit and the place lies in another country. What remains open is who stood behind "
    "it, and whether the two sources speak of the same person."
)
NUM_THOUGHTS = 3
"""About 150 words of reasoning a turn."""


@dataclass(slots=True)
class Call:
    """A request as the server saw it; times are of the machine's monotonic clock, the same in all processes.

    Attributes:
        begins: whether it is the first of its conversation.
        arrived: when it was read whole.
        answered: when its answer was written; None while it waits.
    """

    begins: bool
    arrived: float
    answered: float | None = None


class Replies:
    """The server's side.

    Args:
        latency: seconds from request to answer.
        num_turns: generations of an episode.
        num_staggered: how many of the first calls wait up to one latency more, evenly spread.
    """

    def __init__(self, latency: float, num_turns: int, num_staggered: int) -> None:
        self.latency, self.num_turns, self.num_staggered = latency, num_turns, num_staggered
        self.calls: list[Call] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of a connection until it is closed."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)\ncontent-length: *(\d+)", head)
                content = await reader.readexactly(int(length[1]) if length else 0)
                if not content:
                    told = [(call.begins, call.arrived, call.answered) for call in self.calls]
                    await _write(writer, told)
                    continue
                body = json.loads(content)
                done = sum(message["role"] == "tool" for message in body["messages"])
                call = Call(begins=done == 0, arrived=time.monotonic())
                place = len(self.calls)
                self.calls.append(call)
                extra = place / self.num_staggered if place < self.num_staggered else 0.0
                answer = self.answer(body, done)
                await asyncio.sleep(call.arrived + self.latency * (1 + extra) - time.monotonic())
                call.answered = time.monotonic()
                await _write(writer, answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def answer(self, body: Mapping[str, Any], done: int) -> dict[str, Any]:
        """The chat completion for a request whose conversation holds so many results."""
        message: dict[str, Any] = {"role": "assistant", "content": None}
        last = body["messages"][-1]["content"]
        if not body.get("tools"):
            count = int(found[1]) if (found := _COUNT.search(last)) else 1
            message["content"] = " > ".join(f"[{number}]" for number in [*range(2, count + 1), 1])
        elif done < self.num_turns - 1:
            words = last.split()
            start = 31 * done % max(len(words) - 8, 1)
            arguments = json.dumps({"query": " ".join(words[start : start + 8])})
            message["reasoning_content"] = " ".join([f"Step {done}.", *[_THOUGHT] * NUM_THOUGHTS])
            message["tool_calls"] = [
                {"id": f"call_{done}", "type": "function", "function": {"name": "search", "arguments": arguments}}
            ]
        else:
            message["content"] = f"Bergen, after {done} searches"
        finish = "tool_calls" if "tool_calls" in message else "stop"
        num_read = sum(len(one.get("content") or "") for one in body["messages"]) // 4
        return {
            "id": f"chatcmpl-{len(self.calls)}",
            "object": "chat.completion",
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": num_read, "completion_tokens": 250, "total_tokens": num_read + 250},
        }


async def _write(writer: asyncio.StreamWriter, value: Any) -> None:
    content = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    await writer.drain()


class BenchServer:
    """The server in a process of its own; use as a context manager.

    Args:
        latency: see `Replies`.
        num_turns: see `Replies`.
        num_staggered: see `Replies`.

    Attributes:
        url: its address, as a model's `base_url`.
    """

    def __init__(self, latency: float, num_turns: int, num_staggered: int) -> None:
        options = ["--latency", str(latency), "--turns", str(num_turns), "--staggered", str(num_staggered)]
        command = [sys.executable, "-m", "agentir.benches.endpoint", *options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if not port:
            raise AgentirError(f"the bench's server did not start: {' '.join(command)}")
        self.url = f"http://127.0.0.1:{port}/v1"

    def calls(self) -> list[Call]:
        """The requests so far, in the order in which they came."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.url}/calls", timeout=60) as reply:
            return [Call(*fields) for fields in json.load(reply)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # closes its standard input


async def _main(replies: Replies) -> None:
    server = await asyncio.start_server(replies.serve, "127.0.0.1", 0, backlog=MANY, limit=1 << 26)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)  # whoever still waits for an answer was killed


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--staggered", type=int, required=True)
    given = parser.parse_args()
    asyncio.run(_main(Replies(given.latency, given.turns, given.staggered)))
