"""OpenVINO as the engine of an encoder: the same vectors (cosine above 0.999), several times faster on CPUs.

The transformer and all modules after it are traced into one graph; bfloat16 is used where the processor has it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from agentir.embed.encoder import Vectors
from agentir.errors import MissingExtraError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class OpenVinoForward:
    """Runs a traced sentence-transformers model with OpenVINO on the CPU, several batches in flight.

    Args:
        model: the model to trace; it may be dropped afterwards.
        precision: "bf16" or "f32"; processors without bfloat16 compute in float32 either way.
        num_threads: threads in all, None for the engine's choice.
    """

    def __init__(self, model: SentenceTransformer, precision: str = "bf16", num_threads: int | None = None) -> None:
        try:
            import openvino as ov  # type: ignore[import-untyped]
        except ModuleNotFoundError:
            raise MissingExtraError("openvino", "cpu") from None
        options: dict[str, Any] = {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "THROUGHPUT"}
        if num_threads is not None:
            options["INFERENCE_NUM_THREADS"] = num_threads
        self._compiled = ov.Core().compile_model(_trace(model), "CPU", options)
        self._queue_size = int(self._compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))

    def __call__(self, batches: Iterator[tuple[np.ndarray, np.ndarray]]) -> Iterator[Vectors]:
        """Unit vectors of each batch; the next batches are computed while one is taken."""
        requests = [self._compiled.create_infer_request() for _ in range(self._queue_size)]
        waiting: list[Any] = []
        for ids, mask in batches:
            if len(waiting) == len(requests):
                yield _take(waiting.pop(0))
            free = next(request for request in requests if request not in waiting)
            free.start_async({0: ids, 1: mask})
            waiting.append(free)
        for request in waiting:
            yield _take(request)


def _take(request: Any) -> Vectors:
    request.wait()
    vectors: Vectors = np.array(request.get_output_tensor(0).data, dtype=np.float32)
    return vectors


def _trace(model: SentenceTransformer) -> Any:
    """The OpenVINO graph (input ids, attention mask) -> unit vectors."""
    import openvino as ov
    import torch

    transformer: Any = model[0].auto_model

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transformer = transformer
            self.rest = torch.nn.ModuleList(list(model)[1:])

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            states = transformer(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            features: dict[str, Any] = {"token_embeddings": states, "attention_mask": attention_mask}
            for module in self.rest:
                features = module(features)
            return torch.nn.functional.normalize(features["sentence_embedding"], dim=-1)

    mask = torch.ones(2, 16, dtype=torch.long)
    mask[1, 8:] = 0
    example = {"input_ids": torch.randint(5, 100, (2, 16)), "attention_mask": mask}
    was_training = model.training
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer warns of every shape that it fixes; the parity test covers them
        graph = ov.convert_model(Network().eval(), example_input=example)
    model.train(was_training)
    return graph
