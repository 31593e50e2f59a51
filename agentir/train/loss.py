"""The contrastive loss, a function of the score matrix of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from agentir.train.batches import MASKED, NEGATIVE, POSITIVE, UNRANKED


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """How much the oracle's order counts beside the positive, and how it becomes a distribution.

    Attributes:
        weight: factor of the distillation term; 0 turns it off.
        rank_scale: ranks over which the teacher's weight of a document falls by e.
        temperature: of the student's scores, None for that of the contrastive term.
    """

    weight: float = 0.0
    rank_scale: float = 2.0
    temperature: float | None = None


NO_DISTILLATION = Distillation()
"""The contrastive term alone."""


class MaskedInfoNCE(nn.Module):
    r"""InfoNCE over all documents of a batch with a mask that keeps false negatives out, and oracle distillation.

    For query :math:`i` with positive :math:`p_i`, the documents :math:`D_i` that are not masked for it, and scores
    :math:`s` (dot products of unit vectors, or MaxSim),

    .. math:: L_c = -\frac{1}{|B'|} \sum_{i \in B'} \log
              \frac{\exp(s_{i p_i} / T)}{\sum_{d \in D_i} \exp(s_{id} / T)}

    where :math:`B'` are the rows with at least one negative: a softmax over a single document is 0 whatever the model
    does, so such rows would only dilute the mean. They are counted in `num_without_negative`.

    Distillation is the listwise KL divergence from the oracle's order. With :math:`R_i` the documents of the batch that
    the oracle ranked for query :math:`i`, at ranks :math:`r_{id}` from 0,

    .. math:: t_{id} = \frac{\exp(-r_{id} / \tau)}{\sum_{e \in R_i} \exp(-r_{ie} / \tau)}, \quad
              L_d = \frac{1}{|B''|} \sum_{i \in B''} \sum_{d \in R_i} t_{id}
              \log \frac{t_{id}}{\exp(s_{id} / T_d) / \sum_{e \in R_i} \exp(s_{ie} / T_d)}

    with :math:`B''` the rows with at least two ranked documents, and :math:`L = L_c + w L_d`.

    Margin filter: a negative (not a row's own hard negative, which the oracle judged) that scores above its positive by
    more than `false_negative_margin` is taken for a false negative and masked; a negative margin filters more.

    Reference values: queries (1,0), (.6,.8), documents (.8,.6), (0,1), (.6,.8), (1,0), positives the first and second:
    1.344038 at T = 1, 4.201183 at T = .05, 20.009075 at T = .01.

    Args:
        temperature: T; AgentIR uses 0.01 (texttron/AgentIR, training/train.sh).
        distillation: w, tau and T_d.
        false_negative_margin: see above; None for no filter.

    References: van den Oord et al., Representation Learning with Contrastive Predictive Coding, 2018; Cao et al.,
    Learning to Rank: From Pairwise Approach to Listwise Approach, 2007.
    """

    def __init__(
        self,
        temperature: float,
        distillation: Distillation = NO_DISTILLATION,
        false_negative_margin: float | None = None,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.distillation = distillation
        self.false_negative_margin = false_negative_margin
        self.num_without_negative = 0
        self.num_filtered = 0

    def forward(self, scores: torch.Tensor, relations: torch.Tensor, ranks: torch.Tensor | None = None) -> torch.Tensor:
        """The mean loss of a batch.

        Args:
            scores: (queries, documents), float.
            relations: (queries, documents), see `agentir.train.batches.Batch`.
            ranks: (queries, documents), likewise; needed for distillation.
        """
        scores = scores.float()
        positive = (relations == POSITIVE).int().argmax(dim=1)
        relations = self._filtered(scores.detach(), relations, positive)
        logits = (scores / self.temperature).masked_fill(relations == MASKED, float("-inf"))
        losses = nn.functional.cross_entropy(logits, positive, reduction="none")
        counted = (relations != MASKED).sum(dim=1) > 1
        self.num_without_negative += int((~counted).sum())
        loss = losses[counted].sum() / max(int(counted.sum()), 1)
        if self.distillation.weight and ranks is not None:
            loss = loss + self.distillation.weight * self.divergence(scores, ranks)
        return loss

    def divergence(self, scores: torch.Tensor, ranks: torch.Tensor) -> torch.Tensor:
        """The mean listwise KL divergence from the oracle's order, over rows with at least two ranked documents."""
        ranked = ranks != UNRANKED
        counted = ranked.sum(dim=1) > 1
        if not bool(counted.any()):
            return scores.sum() * 0
        ranked = ranked[counted]
        out = ~ranked
        teacher = (-ranks[counted].float() / self.distillation.rank_scale).masked_fill(out, float("-inf"))
        student = scores[counted] / (self.distillation.temperature or self.temperature)
        log_teacher = teacher.log_softmax(dim=1).masked_fill(out, 0)
        log_student = student.masked_fill(out, float("-inf")).log_softmax(dim=1).masked_fill(out, 0)
        terms = log_teacher.exp().masked_fill(out, 0) * (log_teacher - log_student)
        return terms.sum() / len(terms)

    def _filtered(self, scores: torch.Tensor, relations: torch.Tensor, positive: torch.Tensor) -> torch.Tensor:
        if self.false_negative_margin is None:
            return relations
        limit = scores.gather(1, positive[:, None]) + self.false_negative_margin
        false = (relations == NEGATIVE) & (scores > limit)
        self.num_filtered += int(false.sum())
        return relations.masked_fill(false, MASKED)

    def get_config_dict(self) -> dict[str, float | None]:
        """What the model card says of the loss."""
        return {
            "temperature": self.temperature,
            "distillation_weight": self.distillation.weight,
            "false_negative_margin": self.false_negative_margin,
        }
