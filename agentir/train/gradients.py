"""Whether gradients reach what is to be trained: tried before the first step, and watched in the first steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from accelerate.state import AcceleratorState  # type: ignore[import-untyped]
from accelerate.utils import DistributedType  # type: ignore[import-untyped]
from sentence_transformers import SentenceTransformer
from transformers import TrainerCallback

from agentir.embed.model import pad_batch
from agentir.embed.tokens import Tokenization
from agentir.errors import ConfigError
from agentir.train.adapters import trainable
from agentir.train.probes import DOCUMENTS

MAX_NAMED = 3
PATIENCE = 5
"""Steps after which gradients must have come. The learning rate of the first is 0 under warm-up, so that an adapter's A
matrices get none before the third; and a batch in which every document but the positives is masked has none."""
FP16_OVERFLOWS = 16
"""Steps that fp16 may leave out in search of the scale of its loss, which begins at 2 ** 16 and is halved each time."""


def check_trainable(model: SentenceTransformer) -> None:
    """Something is trained at all.

    Raises:
        ConfigError: all parameters are frozen.
    """
    num_trainable, num_parameters = trainable(model)
    if num_trainable == 0:
        raise ConfigError(
            f"model: expected parameters to train, found all {num_parameters:,} frozen; add an adapter, or call "
            "requires_grad_(True) on what is to be trained"
        )


def freeze_unused(model: SentenceTransformer, tokenization: Tokenization) -> list[str]:
    """Freezes the parameters that no text gives a gradient, such as BERT's pooler: several processes would wait for them.

    Limit: in a mixture of experts that keeps each in tensors of its own, one that the two probe texts are not sent to.

    Returns:
        their names.

    Raises:
        ConfigError: most of what is to be trained gets no gradient, or no adapter does.
    """
    wanted = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    was_training = model.training
    model.zero_grad(set_to_none=True)
    model.train()  # checkpointing of activations is active in training only
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []), torch.enable_grad():
        tokenizer = tokenization.tokenizer
        padded = pad_batch(tokenization.documents(DOCUMENTS), tokenizer.pad_token_id, tokenizer.padding_side)
        ids, mask = (torch.from_numpy(each).to(model.device) for each in padded)
        vectors = model({"input_ids": ids, "attention_mask": mask})["sentence_embedding"]
        if vectors.requires_grad:
            vectors.float().sum().backward()
    parameters = dict(model.named_parameters())
    unused = [name for name in wanted if parameters[name].grad is None]
    model.zero_grad(set_to_none=True)
    model.train(was_training)
    adapters = [name for name in wanted if is_adapter(name)]
    num_unused, num_wanted = (sum(parameters[name].numel() for name in names) for names in (unused, wanted))
    if 2 * num_unused > num_wanted or (adapters and set(adapters) <= set(unused)):
        raise ConfigError(cut_off(unused, len(wanted)))
    for name in unused:
        parameters[name].requires_grad_(False)
    return unused


def cut_off(names: Sequence[str], num_trainable: int) -> str:
    """The error text where gradients do not reach what is to be trained."""
    return (
        f"model: expected gradients for all that is trained, found none for {len(names)} of {num_trainable} tensors "
        f"({named(names)}); if gradient checkpointing is on, call enable_input_require_grads() on the transformer after "
        "the adapter was added, or enable it with use_reentrant=False; if not, look for no_grad or detach in the modules"
    )


def is_adapter(name: str) -> bool:
    """Whether a parameter belongs to a LoRA adapter, by PEFT's naming."""
    return ".lora_" in name


def named(names: Sequence[str]) -> str:
    """The first few names."""
    return ", ".join(names[:MAX_NAMED]) + (", ..." if len(names) > MAX_NAMED else "")


class GradientCheck(TrainerCallback):
    """Stops a run in whose first steps gradients are missing, not finite or zero, or the learning rate is zero.

    DeepSpeed and FSDP keep gradients where this does not look; then it says so in its findings.

    Attributes:
        findings: what is odd, but no reason to stop.
    """

    def __init__(self) -> None:
        self.findings: list[str] = []
        self._num_steps = 0
        self._num_overflows = 0
        self._reached: set[str] = set()
        self._wanted: list[str] = []
        self._learning_rate = 0.0
        self._done = False

    def lines(self) -> list[str]:
        """The findings for people."""
        return [f"preflight: warning: {finding}" for finding in self.findings]

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Looks at the gradients of the first steps: this event comes after the backward pass, before they are used."""
        if self._done:
            return
        if AcceleratorState().distributed_type in (DistributedType.DEEPSPEED, DistributedType.FSDP):
            self.findings.append("gradients were not checked: DeepSpeed and FSDP keep them elsewhere")
            self._done = True
            return
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        parameters = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        self._wanted = [name for name, _ in parameters]
        gradients = {name: parameter.grad.detach() for name, parameter in parameters if parameter.grad is not None}
        adapters = [name for name in self._wanted if is_adapter(name)]
        if not gradients or (adapters and not gradients.keys() & adapters):
            raise ConfigError(cut_off([name for name in self._wanted if name not in gradients], len(self._wanted)))
        norms = torch.stack([torch.linalg.vector_norm(each.float()) for each in gradients.values()]).tolist()
        largest = dict(zip(gradients, norms, strict=True))
        if infinite := [name for name, norm in largest.items() if not np.isfinite(norm)]:
            self._num_overflows += 1
            if args.fp16 and self._num_overflows < FP16_OVERFLOWS:
                return
            raise ConfigError(
                f"gradients: expected finite ones, found {len(infinite)} of {len(gradients)} tensors that are not "
                f"({named(infinite)}); compute in bf16 or float32, raise the temperature, or look for texts that give no vector"
            )
        self._num_steps += 1
        self._reached |= {name for name, norm in largest.items() if norm > 0}
        self._learning_rate = max(self._learning_rate, *(group["lr"] for group in optimizer.param_groups))
        if self._num_steps == PATIENCE:
            self._judge()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Judges a run that was shorter than it takes to wait for gradients."""
        if self._num_steps and not self._done:
            self._judge()

    def _judge(self) -> None:
        self._done = True
        if not self._reached:
            raise ConfigError(
                f"gradients: expected some that are not zero, found none in {self._num_steps} steps; the loss does not depend "
                "on the model: look for batches without a negative, or vectors that were detached"
            )
        if self._learning_rate == 0 and self._num_steps > 1:
            raise ConfigError(
                f"learning_rate: expected more than 0, found 0 in the first {self._num_steps} steps; look at learning_rate "
                "and warmup_ratio"
            )
        if self._learning_rate == 0:
            self.findings.append(
                "the learning rate was 0 in the only step, so nothing was learnt: set warmup_ratio to 0"
            )
        early = self._num_steps < PATIENCE
        for letter in "B" if early else "BA":
            matrices = {name for name in self._wanted if f".lora_{letter}." in name}
            if matrices and not matrices & self._reached:
                raise ConfigError(
                    f"adapter: expected gradients in its {letter} matrices, found only zeros in {self._num_steps} steps; its "
                    "layers are cut off from the loss, or the optimizer does not move it: add the adapter before the "
                    "trainer is made, and see that its layers are those that the model uses"
                )
        unreached = [name for name in self._wanted if name not in self._reached and not (early and ".lora_A." in name)]
        if unreached:
            self.findings.append(
                f"{len(unreached)} of {len(self._wanted)} tensors had no gradient in {self._num_steps} steps: "
                f"{named(unreached)}"
            )
