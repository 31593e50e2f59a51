"""Offers a retriever to agents: REST and MCP over HTTP, and MCP over standard input and output."""
