"""agentir turns question answering data into a retriever that reads an agent's reasoning, and serves it to agents."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("agentir")
except PackageNotFoundError:  # imported from a checkout that was never installed
    __version__ = "0+unknown"
