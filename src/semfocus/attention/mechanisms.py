"""Which keys a query keeps: small frozen values that can be hashed, compared, printed and named in a config.

    TopK(5)                       topk:5             the five keys with the largest scores
    TopK(8, sinks=4, window=16)   topk:8+4s+16w      ... besides the first four keys and the sixteen nearest
    NoisyTopK(5, sigma=0.1)       topk:5~0.1         ... the five with the largest scores after noise is added
    LSH(5), Routing(5)            lsh:5, routing:5   the five best of the keys in the query's bucket, or cluster
    Fast(2)                       fast:2             every key, weighed by a polynomial at linear cost
    Banded(9, globals=1)          banded:9+1g        a window of nine; the last token sees all and is seen by all

Query i of Lq stands at position p = i + Lk - Lq, so that the last query and the last key share a position, unless
`attend` is given other positions. A new
mechanism is one class derived from `Mechanism`, `ScoreRanked` or `Positional`, with `@register_mechanism`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semfocus.attention.base import Local as Local
from semfocus.attention.base import Mechanism as Mechanism
from semfocus.attention.base import Positional as Positional
from semfocus.attention.base import Ranking as Ranking
from semfocus.attention.base import ScoreRanked as ScoreRanked
from semfocus.attention.base import SelectionInputs as SelectionInputs
from semfocus.attention.fast import Fast as Fast
from semfocus.attention.lsh import LSH as LSH
from semfocus.attention.registry import is_registered as is_registered
from semfocus.attention.registry import mechanism_class as mechanism_class
from semfocus.attention.registry import mechanism_names as mechanism_names
from semfocus.attention.registry import parse_mechanism as parse_mechanism
from semfocus.attention.registry import register_mechanism as register_mechanism
from semfocus.attention.routing import Routing as Routing

if TYPE_CHECKING:
    from torch import Tensor

    from semfocus.attention.positions import Positions


@register_mechanism
@dataclass(frozen=True)
class Full(Positional):
    """Every key."""

    name = "full"
    keeps_all = True

    @property
    def uses_positions(self) -> bool:
        return False

    @property
    def ignores_trailing_padding(self) -> bool:
        return True

    def pattern(self, positions: Positions, causal: bool) -> Tensor:
        return positions.key >= 0


@register_mechanism
@dataclass(frozen=True)
class Banded(Local):
    """The `width` keys around the query: (width - 1) // 2 to its left, the rest to its right; causal: the last ones.

    At the borders the window moves inward, so that it always holds min(width, keys) keys.
    """

    name = "banded"

    @property
    def counts_from_start(self) -> bool:
        return False

    def pattern(self, positions: Positions, causal: bool) -> Tensor:
        return positions.window(self.width, self.globals, causal) | positions.touches_global(self.globals)

    def indices(self, positions: Positions, causal: bool) -> Tensor:
        return positions.run(positions.window_start(self.width, self.globals, causal), self.width, self.globals)


@register_mechanism
@dataclass(frozen=True)
class BlockLocal(Local):
    """The keys in the query's own aligned block of `width` positions (the last block may be short), and globals."""

    name = "block_local"
    keeps_blocks = True

    @property
    def ignores_trailing_padding(self) -> bool:
        return True

    def pattern(self, positions: Positions, causal: bool) -> Tensor:
        return positions.block(self.width) | positions.touches_global(self.globals)

    def indices(self, positions: Positions, causal: bool) -> Tensor:
        return positions.run(positions.position // self.width * self.width, self.width, self.globals)


@register_mechanism
@dataclass(frozen=True)
class TopK(ScoreRanked):
    """The k keys with the largest scores; `sinks` first and `window` nearest keys are kept in addition."""

    name = "topk"
    suffixes = {"s": "sinks", "w": "window"}
    score_order = "largest"

    sinks: int = 0
    window: int = 0

    @property
    def num_sinks(self) -> int:
        return self.sinks

    @property
    def num_nearest(self) -> int:
        return self.window

    @property
    def uses_positions(self) -> bool:
        return self.score_order is None or bool(self.sinks or self.window)

    @property
    def counts_from_start(self) -> bool:
        return self.sinks > 0

    @property
    def ignores_trailing_padding(self) -> bool:
        return not self.window

    def priority(self, inputs: SelectionInputs) -> Tensor:
        return inputs.scores

    def always_kept(self, positions: Positions, causal: bool) -> Tensor | None:
        if not self.sinks and not self.window:
            return None
        sinks = positions.key < self.sinks
        return sinks | positions.window(self.window, 0, causal) if self.window else sinks

    def max_kept(self, keys: int) -> int:
        return min(self.k + self.sinks + self.window, keys)


@register_mechanism
@dataclass(frozen=True)
class BottomK(ScoreRanked):
    """The k keys with the smallest scores: a control as sparse as top-k that ranks the wrong way."""

    name = "bottomk"
    score_order = "smallest"

    @property
    def ignores_trailing_padding(self) -> bool:
        return True

    def priority(self, inputs: SelectionInputs) -> Tensor:
        return -inputs.scores


@register_mechanism
@dataclass(frozen=True)
class RandomK(ScoreRanked):
    """k keys drawn without replacement: a control as sparse as top-k that ignores the scores."""

    name = "randomk"
    depends_on_input = False
    is_stochastic = True
    suffixes = {"r": "seed"}

    seed: int = 0

    @property
    def uses_positions(self) -> bool:
        return False

    @property
    def ignores_trailing_padding(self) -> bool:
        return True

    def priority(self, inputs: SelectionInputs) -> Tensor:
        import torch

        from semfocus.counter_rng import random_order

        seed, positions = inputs.seed_or(self.seed), inputs.positions
        rows = positions.row_ids(inputs.scores.shape[:-2], seed)
        return random_order(seed, rows, positions.key_index.to(torch.int32))


@register_mechanism
@dataclass(frozen=True)
class RandomKWithReplacement(Mechanism):
    """k draws with replacement, so that a query keeps k keys or fewer: the random-k of the paper's code, a quirk."""

    name = "randomk_replaced"
    depends_on_input = False
    is_stochastic = True
    suffixes = {"r": "seed"}
    size_name = "k"

    k: int
    seed: int = 0

    @property
    def ignores_trailing_padding(self) -> bool:
        return True

    def max_kept(self, keys: int) -> int:
        return min(self.k, keys)

    def choose(self, inputs: SelectionInputs) -> Tensor:
        import torch

        from semfocus.counter_rng import random_bits

        allowed, seed = inputs.allowed, inputs.seed_or(self.seed)
        draws = torch.arange(self.k, dtype=torch.int32, device=inputs.scores.device)
        bits = random_bits(seed, inputs.positions.row_ids(inputs.scores.shape[:-2], seed), draws)
        rank = allowed.cumsum(dim=-1)  # 1 for the first key that may be drawn, 2 for the second, ...
        drawn = (((bits >> 8) & 0xFFFFFF).long() * allowed.sum(dim=-1, keepdim=True) >> 24) + 1
        return allowed & (rank.unsqueeze(-1) == drawn.unsqueeze(-2)).any(dim=-1)


@register_mechanism
@dataclass(frozen=True)
class NoisyTopK(TopK):
    """Top-k of scores + sigma x standard normal noise; the kept keys are weighted by their scores without noise.

    Separates the stability of the choice from everything else. `sigma` has the unit of the scaled scores
    (q . k x scale, mask added): what enters the softmax. Each query and key has noise of its own, drawn anew in every
    layer, head and training step from the seed of the call; sigma = 0 is top-k. Sinks and window are kept as there.
    """

    name = "noisy_topk"
    variant_of = "topk"
    marks = {"~": "sigma"}
    suffixes = {"s": "sinks", "w": "window", "r": "seed"}
    is_stochastic = True

    sigma: float = 0.0
    seed: int = 0

    def priority(self, inputs: SelectionInputs) -> Tensor:
        import torch

        from semfocus.counter_rng import standard_normal

        seed, positions = inputs.seed_or(self.seed), inputs.positions
        rows = positions.row_ids(inputs.scores.shape[:-2], seed)
        noise = standard_normal(seed, rows, positions.key_index.to(torch.int32))
        return inputs.scores + self.sigma * noise.to(inputs.scores.dtype)


@register_mechanism
@dataclass(frozen=True)
class ShiftedBand(Local):
    """A window of `width` keys whose middle lies `ahead` positions after the query: a band as sparse, but not local.

    The row is a ring, so that behind its last key it goes on at the first: every key is seen by `width` queries.
    A window that moved inward at the border instead would show the last keys to all of the last queries. With half the
    row ahead no window is further away; looking back is looking ahead by the rest of the row.
    """

    name = "shifted"
    suffixes = {"g": "globals", "a": "ahead"}

    ahead: int = 0

    @property
    def serves_causal(self) -> bool:
        return False

    def pattern(self, positions: Positions, causal: bool) -> Tensor:
        ring = positions.length - self.globals
        own = (positions.key - self._start(positions)) % ring.clamp(min=1) < self.width
        return (own & (positions.key < ring)) | positions.touches_global(self.globals)

    def indices(self, positions: Positions, causal: bool) -> Tensor:
        return positions.ring_run(self._start(positions), self.width, self.globals)

    def _start(self, positions: Positions) -> Tensor:
        """(Q, 1): the first key of each query's window, not yet brought back to the ring."""
        return positions.position + self.ahead - (self.width - 1) // 2
