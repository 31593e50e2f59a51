"""Compares all files of an index with the sums in its manifest.

    agentir index verify --index runs/index

Prints OK, or the files that differ and exits with status 2. Opening an index checks only that its files are there with
the right sizes.
"""

from __future__ import annotations

from pathlib import Path

from agentir.config import Section
from agentir.errors import ArtifactError
from agentir.search.index import Index


class Config(Section):
    """What to verify."""

    index: Path
    """An index folder."""


def main(config: Config) -> None:
    """Verifies one index."""
    if faults := Index.verify(config.index):
        raise ArtifactError("\n".join([*faults, "the index was altered or damaged; build it anew in another folder"]))
    with Index.open(config.index) as index:
        print(f"OK: {len(index.manifest['files'])} files, {len(index.pack)} documents, version {index.version}")
