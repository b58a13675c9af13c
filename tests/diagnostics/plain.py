"""The same numbers the plain way: whole score matrices in float64, one query at a time, by the theory's functions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from semfocus.theory import dispersion, in_degree, separation, softmax_jacobian_norm


def plain_statistics(scores: Tensor, valid: Tensor, k: int, keep: Tensor | None = None) -> dict[str, list[float]]:
    """Of one head: scores and valid (Lq, Lk). Queries without a valid key are left out."""
    scores = scores.double()
    keep = valid if keep is None else keep & valid
    heavy = torch.zeros_like(valid)
    statistics: dict[str, list[float]] = {name: [] for name in ("entropy", "top_share", "k95", "k99")}
    rows = [i for i in range(len(scores)) if valid[i].any()]
    received = torch.zeros(scores.shape[-1], dtype=torch.float64)
    for i in rows:
        order = sorted(torch.where(valid[i])[0].tolist(), key=lambda j: (-float(scores[i, j]), j))
        heavy[i, order[:k]] = True
        weights = torch.where(valid[i], scores[i], -math.inf).softmax(-1)
        received += weights
        falling = [float(weights[j]) for j in order]
        statistics["entropy"].append(-sum(w * math.log(w) for w in falling if w > 0))
        statistics["top_share"].append(sum(falling[:k]))
        for name, share in (("k95", 0.95), ("k99", 0.99)):
            count, total = 0, 0.0
            while total < share * sum(falling):
                total += falling[count]
                count += 1
            statistics[name].append(float(count))
    statistics["delta"] = dispersion(scores, keep)[rows].tolist()
    statistics["delta_full"] = dispersion(scores, valid)[rows].tolist()
    statistics["delta_heavy"] = dispersion(scores, heavy)[rows].tolist()
    statistics["separation"] = separation(scores, heavy, valid)[rows].tolist()
    statistics["jacobian"] = softmax_jacobian_norm(scores, valid, norm=1)[rows].tolist()
    statistics["in_degree"] = [float(d) for d, seen in zip(in_degree(heavy), valid.any(0), strict=True) if seen]
    statistics["sink_share"] = [float(received.max()) / max(len(rows), 1)] if rows else []
    return statistics


def quantile(values: list[float], level: float) -> float:
    """Linear between neighbours; infinite neighbours give infinity."""
    ordered = sorted(values)
    place = level * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low if place == math.floor(place) else (1 - (place % 1)) * low + (place % 1) * high
