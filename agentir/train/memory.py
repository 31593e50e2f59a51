"""Keeps what the C library and oneDNN hold of a training's memory small; batches of many widths otherwise fragment the heap."""

from __future__ import annotations

import ctypes
import gc
import os

M_MMAP_THRESHOLD = -3
"""The parameter's number in glibc's malloc.h."""
SMALL_PART_TOKENS = 4096
"""Parts of a batch up to this size have tensors of a few MiB."""
TRIM_TOKENS = 16384
"""Tokens encoded between two times that free pages are given back inside a step."""


class Heap:
    """Gives free pages of the C library's heap back to the system."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._num_tokens = 0

    def trim(self) -> None:
        """Gives them back now."""
        if hasattr(self._libc, "malloc_trim"):
            self._libc.malloc_trim(0)
        self._num_tokens = 0

    def trim_after(self, num_tokens: int) -> None:
        """Notes that so many tokens were encoded, and gives them back when it is time."""
        self._num_tokens += num_tokens
        if self._num_tokens > TRIM_TOKENS:
            self.trim()

    def prepare(self, part_tokens: int) -> None:
        """Sets the library up before a training.

        Large blocks go back to the system as soon as they are free: the threshold of glibc adapts upward to the tensors of
        a step, and the heap of the small embedder grew by a third over 50 steps. oneDNN keeps what it prepared for each
        width of a batch; a few are enough.

        Args:
            part_tokens: tokens of the largest part of a batch.
        """
        if hasattr(self._libc, "mallopt"):
            self._libc.mallopt(M_MMAP_THRESHOLD, (4 if part_tokens <= SMALL_PART_TOKENS else 32) << 20)
        for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
            os.environ.setdefault(name, "8")

    def free(self) -> None:
        """Collects what refers to itself, such as a trainer and its model, and gives its pages back."""
        gc.collect()
        self.trim()


HEAP = Heap()
"""That of this process."""
