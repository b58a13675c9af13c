"""Random keys drawn with replacement, as the paper's code draws them."""

from __future__ import annotations

import torch

from semfocus.attention.mechanisms import RandomKWithReplacement, parse_mechanism


def test_each_draw_may_fall_on_any_valid_key_and_those_drawn_twice_count_once() -> None:
    valid = torch.tensor([True, False] * 4)
    keep = RandomKWithReplacement(3).keep(torch.zeros(4000, 8), valid)
    assert not keep[:, 1::2].any()
    sizes = keep.sum(dim=-1)
    # Three draws from four keys: one key 1/16, two 9/16, three 6/16.
    for size, share in ((1, 1 / 16), (2, 9 / 16), (3, 6 / 16)):
        assert abs((sizes == size).double().mean() - share) < 4 * (share * (1 - share) / 4000) ** 0.5
    chance = 1 - (3 / 4) ** 3
    assert (keep[:, ::2].double().mean(dim=0) - chance).abs().max() < 4 * (chance * (1 - chance) / 4000) ** 0.5


def test_the_choice_follows_the_seed_and_never_the_scores() -> None:
    scores = torch.randn(50, 9, generator=torch.Generator().manual_seed(0))
    keep = RandomKWithReplacement(4).keep(scores)
    assert torch.equal(keep, RandomKWithReplacement(4).keep(-scores))
    assert not torch.equal(keep, RandomKWithReplacement(4, seed=1).keep(scores))
    assert not torch.equal(keep, RandomKWithReplacement(4).keep(scores, seed=torch.tensor(7)))
    assert parse_mechanism("randomk_replaced:4+1r") == RandomKWithReplacement(4, seed=1)
    assert RandomKWithReplacement(4).max_kept(3) == 3
