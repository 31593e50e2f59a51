"""What went wrong in all starts of a run: kept in its folder for the next start and for the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from agentir.artifacts import write_text_atomically
from agentir.errors import ArtifactError

FAULTS = "faults.json"


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    failed: dict[str, str] = {}
    retries: dict[str, int] = {}


class Faults:
    """The failures and repeated requests of a run; a start that is killed adds none.

    Args:
        folder: that of the run.

    Attributes:
        failed: what failed in some start, finished since or not: key -> kind of failure.
        retries: requests that were sent again, by what had failed.

    Raises:
        ArtifactError: the file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FAULTS
        try:
            kept = _Kept.model_validate_json(self._path.read_bytes()) if self._path.exists() else _Kept()
        except ValidationError:
            raise ArtifactError(f"{self._path}: damaged; delete the file, what is finished stays") from None
        self.failed = kept.failed
        self.retries = Counter(kept.retries)

    def add(self, failed: Mapping[str, str], retries: Mapping[str, int]) -> None:
        """Adds those of a start, and writes all of them down, unless there are none."""
        self.failed.update(failed)
        self.retries.update(retries)
        if self.failed or self.retries:
            kept = _Kept(failed=self.failed, retries=dict(self.retries))
            write_text_atomically(self._path, kept.model_dump_json())

    def remove(self) -> None:
        """Removes the file."""
        self._path.unlink(missing_ok=True)
