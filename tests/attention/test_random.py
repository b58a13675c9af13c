"""Dropout and random keys: the same on every backend, from a generator or a seed, and fair."""

from __future__ import annotations

import numpy as np
import torch

from semfocus import Banded, RandomK, TopK, attend
from semfocus.attention.mechanisms import RandomKWithReplacement, parse_mechanism
from semfocus.counter_rng import bernoulli_keep, fold_in, random_bits
from tests.conformance.cases import qkv
from tests.conftest import DEVICE


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_dropout_is_the_same_on_every_backend_and_right_on_average() -> None:
    q, k, v = qkv(40, 40, lead=(8, 4))
    outputs = {}
    for backend in ("reference", "dense", "chunked"):
        outputs[backend] = attend(q, k, v, TopK(5), dropout_p=0.3, generator=seeded(3), backend=backend)
    torch.testing.assert_close(outputs["dense"], outputs["reference"])
    torch.testing.assert_close(outputs["chunked"], outputs["reference"])
    mean = attend(q, k, torch.ones_like(v), TopK(5), dropout_p=0.3, generator=seeded(3)).mean()
    assert abs(mean - 1) < 0.02
    again = attend(q, k, v, TopK(5), dropout_p=0.3, generator=seeded(4))
    assert not torch.equal(again, outputs["dense"])


def test_a_generator_may_live_on_either_device() -> None:
    q, k, v = qkv(12, 12, dtype=torch.float32)
    for device in {torch.device("cpu"), DEVICE}:
        first, second = (
            attend(q, k, v, TopK(3), dropout_p=0.5, generator=torch.Generator(device).manual_seed(1)) for _ in range(2)
        )
        assert torch.equal(first, second)


def test_dropout_without_a_generator_follows_torchs_own() -> None:
    q, k, v = qkv(12, 12, dtype=torch.float32)
    with torch.random.fork_rng(devices=[DEVICE] if DEVICE.type == "cuda" else []):
        outputs = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            outputs.append(attend(q, k, v, TopK(3), dropout_p=0.5))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_with_a_seed_of_its_own_a_batch_entry_does_not_depend_on_the_others() -> None:
    q, k, v = qkv(30, 30, lead=(4, 2))
    seeds = torch.tensor([[3], [5], [7], [9]], device=DEVICE)
    for mechanism, backend in ((TopK(4), "dense"), (TopK(4), "chunked"), (RandomK(4), "dense"), (Banded(5), "local")):
        whole = attend(q, k, v, mechanism, dropout_p=0.4, seed=seeds, backend=backend)
        for entry in range(4):
            own = slice(entry, entry + 1)
            alone = attend(q[own], k[own], v[own], mechanism, dropout_p=0.4, seed=seeds[own], backend=backend)
            torch.testing.assert_close(alone, whole[own])
        other = attend(q, k, v, mechanism, dropout_p=0.4, seed=seeds + 1, backend=backend)
        assert not torch.allclose(other, whole)


def test_random_k_draws_anew_from_a_generator_and_is_fixed_without_one() -> None:
    q, k, v = qkv(30, 30)
    generator = seeded(0)
    first, second = (attend(q, k, v, RandomK(4), generator=generator) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(attend(q, k, v, RandomK(4)), attend(q, k, v, RandomK(4)))


def test_randomk_chooses_by_other_bits_than_those_that_drop() -> None:
    q, k, v = qkv(200, 40, lead=(1, 1))
    out = attend(q, k, torch.ones_like(v), RandomK(4), dropout_p=0.5, seed=torch.tensor(3, device=DEVICE))
    assert abs(out.mean() - 1) < 0.1, "the chosen keys must be dropped as often as any"


def row_and_column_ids(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    positions = torch.arange(max(rows, columns), dtype=torch.int32, device=DEVICE)
    return positions[:rows, None], positions[:columns]


def scalar(value: int) -> torch.Tensor:
    return torch.tensor(value, device=DEVICE)


def test_seeds_that_differ_by_one_share_no_row() -> None:
    drawn = [bernoulli_keep(scalar(seed), *row_and_column_ids(64, 32), 0.5) for seed in range(6)]
    seen = {tuple(row) for keep in drawn for row in keep.tolist()}
    assert len(seen) == 6 * 64
    positions = [fold_in(scalar(seed)[None], scalar(step), 5).flatten() for seed in range(4) for step in range(4)]
    assert len(torch.cat(positions).unique()) == 16 * 5


def _uint32_mix(x: np.ndarray) -> np.ndarray:
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


SEED = 0x9ABCDEF0_12345678 - 2**64


def test_counter_based_bits_equal_unsigned_arithmetic() -> None:
    ours = random_bits(scalar(SEED), *row_and_column_ids(1000, 100)).cpu().numpy().view(np.uint32)
    with np.errstate(over="ignore"):
        r, c = np.arange(1000, dtype=np.uint32)[:, None], np.arange(100, dtype=np.uint32)
        first = _uint32_mix(np.array([0x12345678], dtype=np.uint32) ^ np.uint32(0x9E3779B9))
        second = _uint32_mix(np.uint32(0x9ABCDEF0) + first)
        inner = _uint32_mix(r + _uint32_mix(first ^ second)) ^ second
        last = _uint32_mix(inner) + c * np.uint32(0x9E3779B9)
        last = (last ^ (last >> np.uint32(16))) * np.uint32(0x7FEB352D)
        theirs = (last ^ (last >> np.uint32(15))) * np.uint32(0x846CA68B)
    assert (ours == theirs).all()


def test_counter_based_bits_are_fair_and_neighbours_independent() -> None:
    rows, columns = row_and_column_ids(1000, 100)
    for drop in (0.01, 0.5, 0.9):
        share = 1 - bernoulli_keep(scalar(SEED), rows, columns, drop).float().mean().item()
        assert abs(share - drop) < 4 * (drop * (1 - drop) / 1e5) ** 0.5
    kept = bernoulli_keep(scalar(SEED), rows, columns, 0.5).double()
    neighbours = torch.corrcoef(torch.stack([kept[:, :-1].flatten(), kept[:, 1:].flatten()]))[0, 1]
    above = torch.corrcoef(torch.stack([kept[:-1].flatten(), kept[1:].flatten()]))[0, 1]
    assert max(abs(neighbours), abs(above)) < 0.015


def test_each_draw_with_replacement_may_fall_on_any_valid_key_and_those_drawn_twice_count_once() -> None:
    valid = torch.tensor([True, False] * 4)
    keep = RandomKWithReplacement(3).keep(torch.zeros(4000, 8), valid)
    assert not keep[:, 1::2].any()
    sizes = keep.sum(dim=-1)
    # Three draws from four keys: one key 1/16, two 9/16, three 6/16.
    for size, share in ((1, 1 / 16), (2, 9 / 16), (3, 6 / 16)):
        assert abs((sizes == size).double().mean() - share) < 4 * (share * (1 - share) / 4000) ** 0.5
    chance = 1 - (3 / 4) ** 3
    assert (keep[:, ::2].double().mean(dim=0) - chance).abs().max() < 4 * (chance * (1 - chance) / 4000) ** 0.5


def test_draws_with_replacement_follow_the_seed_and_never_the_scores() -> None:
    scores = torch.randn(50, 9, generator=torch.Generator().manual_seed(0))
    keep = RandomKWithReplacement(4).keep(scores)
    assert torch.equal(keep, RandomKWithReplacement(4).keep(-scores))
    assert not torch.equal(keep, RandomKWithReplacement(4, seed=1).keep(scores))
    assert not torch.equal(keep, RandomKWithReplacement(4).keep(scores, seed=torch.tensor(7)))
    assert parse_mechanism("randomk_replaced:4+1r") == RandomKWithReplacement(4, seed=1)
    assert RandomKWithReplacement(4).max_kept(3) == 3
