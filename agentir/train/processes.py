"""Several processes of one training run, started by `torchrun` or `accelerate launch`.

All of them go through the same program. What touches the output folder is done by the first, whose answer all get.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

from agentir.errors import ConfigError

T = TypeVar("T")


def world_size() -> int:
    """The number of processes of this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """The number of this process, from 0."""
    return int(os.environ.get("RANK", "0")) if world_size() > 1 else 0


def is_first() -> bool:
    """Whether this process writes the output."""
    return rank() == 0


@contextlib.contextmanager
def joined(device: str | None, batch_size: int) -> Iterator[None]:
    """Connects the processes (NCCL between GPUs, gloo on CPUs); all but the first print nothing.

    Args:
        device: what the configuration asks for.
        batch_size: is shared by all processes.

    Raises:
        ConfigError: there are more processes than rows of a batch.
    """
    if world_size() == 1:
        yield
        return
    if batch_size < world_size():
        raise ConfigError(
            f"batch_size: expected at least one row for each of {world_size()} processes, found {batch_size}"
        )
    import torch

    on_gpu = torch.cuda.is_available() and device != "cpu"
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
    try:
        with contextlib.ExitStack() as stack:
            if not is_first():
                stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
            yield
    finally:
        if sys.exc_info()[0] is None:
            torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def on_first(make: Callable[[], T]) -> T:
    """What the first process makes, for all; if it fails, all fail.

    Args:
        make: is called in the first process only; its result is pickled to the others.
    """
    if world_size() == 1:
        return make()
    import torch

    outcome: list[T | BaseException | None] = [None]
    failed = [False]
    if is_first():
        try:
            outcome = [make()]
        except BaseException as error:  # the others must not wait for what will not come
            outcome, failed = [error], [True]
    torch.distributed.broadcast_object_list(failed)
    torch.distributed.broadcast_object_list(outcome)
    (result,) = outcome
    if failed[0]:
        assert isinstance(result, BaseException)
        raise result
    return result  # type: ignore[return-value]
