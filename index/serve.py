"""Offers an index to agents: REST and MCP over HTTP on this machine, or MCP over standard input and output.

    agentir index serve --index runs/index
    agentir index serve --index runs/index --encoder runs/model/seed-1 --transport stdio

The second form is what an MCP client starts by itself; the program prints the configuration to paste into one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Literal

from agentir.config import Field, Section
from agentir.embed.load import Backend
from agentir.errors import MissingExtraError
from agentir.search.request import Limits
from agentir.search.retriever import SNIPPET_WORDS, Retriever, SearcherKind

_NOT_READ = "reasoning is not read: BM25, and encoders that were not trained to, read the query only"


class Config(Section):
    """What is served, and where."""

    index: Path
    """The index folder."""
    encoder: str | None = None
    """Model folder or name for the queries, such as one tuned against this index; default is the model that built it."""
    searcher: SearcherKind = "auto"
    """dense, bm25, or auto: dense if the index holds vectors."""
    transport: Literal["http", "stdio"] = "http"
    """http: REST and MCP for any number of clients; stdio: MCP for the one client that started this program."""
    host: str = "127.0.0.1"
    """127.0.0.1, localhost or ::1; serving beyond this machine needs authentication, which this version does not have."""
    port: int = Field(8321, ge=0, le=65535)
    """Where to listen; 0 takes a free port."""
    max_k: int = Field(100, ge=1)
    """The most documents that one search may ask for."""
    snippet_words: int = Field(SNIPPET_WORDS, ge=1)
    """How many words of each document a search result shows."""
    backend: Backend = "auto"
    """What computes the encoder: torch, openvino, or auto for the faster of those that fit."""
    max_tokens: int | None = Field(None, ge=1)
    """Token limit of a query with its reasoning; default is the model's own."""


def main(config: Config) -> None:
    """Opens the index, tries a search, says where to reach it, and serves until it is stopped."""
    try:
        from agentir.server import app, stdio
        from agentir.server.service import SearchService
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("agentir"):
            raise
        raise MissingExtraError(error.name, "serve") from None

    if config.transport == "stdio":
        wire = stdio.claim_stdout()
        service = SearchService(_open(config))
        if not service.reads_reasoning:
            print(_NOT_READ, file=sys.stderr)
        print(_mcp_config(_command(config)), file=sys.stderr, flush=True)
        stdio.run(service, wire)
    else:
        listener = app.bind(config.host, config.port)
        service = SearchService(_open(config))
        app.listen(listener)
        url = app.base_url(listener)
        print(f"serving {config.index}, index version {service.health()['index_version']}")
        print("reasoning is read" if service.reads_reasoning else _NOT_READ)
        print(f"REST  {url}/v1/search  {url}/v1/documents/DOCID  {url}/healthz")
        print(f"MCP   {url}/mcp\n\nfor the configuration of an MCP client, one of\n")
        print(_mcp_config({"url": f"{url}/mcp"}))
        print(_mcp_config(_command(config)))
        print("\nstop it with Ctrl-C", flush=True)
        app.run(app.build_app(service), listener)


def _open(config: Config) -> Retriever:
    """Opens the retriever and searches once, so that what is broken shows now and not at an agent's first search."""
    retriever = Retriever.open(
        config.index,
        config.encoder,
        searcher=config.searcher,
        backend=config.backend,
        max_tokens=config.max_tokens,
        snippet_words=config.snippet_words,
        limits=Limits(max_k=config.max_k),
    )
    retriever.search("ready", reasoning="Is everything here that a search needs?", k=1)
    return retriever


def _command(config: Config) -> dict[str, object]:
    """How an MCP client starts this program with the same settings."""
    args = ["-m", "agentir", "index", "serve", "--transport", "stdio", "--index", str(config.index.resolve())]
    for name in sorted(config.model_fields_set - {"index", "transport", "host", "port"}):
        value = getattr(config, name)
        if name == "encoder" and Path(value).exists():
            value = Path(value).resolve()
        args += [f"--{name.replace('_', '-')}", str(value)]
    return {"command": sys.executable, "args": args}


def _mcp_config(entry: dict[str, object]) -> str:
    return json.dumps({"mcpServers": {"agentir": entry}}, indent=2, ensure_ascii=False)
