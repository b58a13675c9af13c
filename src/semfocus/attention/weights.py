"""What a normaliser is: the base class, what layers learn for it, and sums that stay finite.

Nothing here imports torch when it is imported. Shapes: scores and weights (..., Lq, Lk), or lists (..., Lq, n) of the
keys that a query keeps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from semfocus.attention.base import SelectionInputs


@dataclass(frozen=True)
class LayerSizes:
    """The sizes of an attention layer, which decide the shapes of what it learns for a mechanism or normaliser."""

    d_model: int
    heads: int
    head_dim: int


@dataclass(frozen=True)
class Learned:
    """A parameter that a layer learns for a mechanism or normaliser: its shape, and what it starts from."""

    shape: tuple[int, ...]
    start: Literal["constant", "uniform", "directions"]  # all equal; in +-value; rows of unit length
    value: float = 0.0
    # The rate of a moving average that takes the place of the optimiser: see `moving.toward`. None: by gradient.
    average: float | None = None


@dataclass(frozen=True)
class Normaliser(ABC):
    """Turns scores into weights over the kept keys; a key that is not kept has weight zero and no gradient.

    A frozen dataclass with at most one number as a field, which has a default.
    """

    name: ClassVar[str]
    # Fused backends compute softmax by themselves, and list backends trust `pull_back`. Neither is inherited: a
    # subclass may compute other weights.
    is_softmax: ClassVar[bool] = False
    serves_lists: ClassVar[bool] = False  # the weight of a key depends on the kept keys of its query alone
    serves_causal: ClassVar[bool] = True
    learns: ClassVar[tuple[str, ...]] = ()  # numbers of each head, or query and head, that a call may bring along

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for claim in ("is_softmax", "serves_lists"):
            if claim not in vars(cls):
                setattr(cls, claim, False)

    def prepared(self, vectors: Tensor) -> Tensor:
        """Queries or keys (..., D) as scores are made of them: as they are, or scaled one by one."""
        return vectors

    @abstractmethod
    def weights(self, scores: Tensor, keep: Tensor) -> Tensor:
        """(..., Lq, Lk) weights of scores (..., Lq, Lk), where the bool `keep` is True; a query without keys: zeros."""

    def weigh(self, scores: Tensor, keep: Tensor, call: SelectionInputs) -> Tensor:
        """`weights`, for normalisers that also look at the `call`: at the keys it allows, or at learned parameters."""
        return self.weights(scores, keep)

    def pull_back(self, scores: Tensor, keep: Tensor, weights: Tensor, grad: Tensor) -> Tensor:
        """The gradient of the scores, from that of the weights; zero where `keep` is False. Where `serves_lists`."""
        raise TypeError(f"{self} does not give its gradient for lists of keys")

    def learned(self, sizes: LayerSizes) -> Mapping[str, Learned]:
        """The parameters that a layer of these sizes has for this normaliser, by name."""
        return {}

    def of_layer(self, parameters: Mapping[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        """What `attend` takes as `learned`, from a layer's parameters and the vectors x (..., Lq, d) of its queries."""
        return dict(parameters)

    def __str__(self) -> str:
        changed = [f":{getattr(self, name)}" for name in self.__match_args__ if self != type(self)()]
        return self.name + "".join(changed[:1])


def softmax_over(scores: Tensor, keep: Tensor) -> Tensor:
    """exp(score) / sum over the kept keys of exp(score), zeros elsewhere."""
    import torch

    kept = torch.where(keep, scores, float("-inf")).softmax(dim=-1)
    # The outer choice turns the NaN of a query without keys into zeros; the inner one keeps its gradient away.
    return torch.where(keep, kept, 0.0)


def log_sum_exp(scores: Tensor, keep: Tensor) -> Tensor:
    """(..., Lq): log of the sum of exp over the kept scores; -inf for a query without keys."""
    import torch

    return torch.where(keep, scores, float("-inf")).logsumexp(dim=-1)
