"""A user's own mechanism, small chunks, and mutations: what the conformance suite must be able to see."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from semfocus import Banded, RandomK, TopK, attend
from semfocus.attention import chunked, dense, parse_mechanism, registry
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.mechanisms import ScoreRanked
from semfocus.attention.normalisers import Softmax
from semfocus.attention.operator import BACKENDS, Backend, choose_backend
from semfocus.attention.selection import topk_mask_by_sorting
from tests.attention.helpers import qkv
from tests.conformance import test_attention_hazards as hazards
from tests.conformance.cases import Case, case_for, restrictions
from tests.conftest import DEVICE


@dataclass(frozen=True)
class LargestMagnitude(TopK):
    """A user's own: the largest scores by absolute value."""

    name = "largest_magnitude"

    def priority(self, scores, positions, seed):
        return scores.abs()


@dataclass(frozen=True)
class BestAndSelf(ScoreRanked):
    """A user's own: the k best besides the query's own position."""

    name = "best_and_self"
    depends_on_input = True

    def priority(self, scores, positions, seed):
        return scores

    def always_kept(self, positions, causal):
        return positions.key == positions.position

    def max_kept(self, keys):
        return min(self.k + 1, keys)


@pytest.mark.parametrize("cls", [LargestMagnitude, BestAndSelf])
def test_a_users_mechanism_is_one_class_and_one_registration(cls, monkeypatch) -> None:
    mechanism = cls(3)
    assert choose_backend(AttentionInputs(*qkv(400, 400), mechanism, Softmax())) == "dense", (
        "unregistered: no lists of keys"
    )
    monkeypatch.setitem(registry._registered, cls.name, cls)
    assert parse_mechanism(str(mechanism)) == mechanism
    for backend in ("dense", "chunked"):
        case = Case(mechanism, backend)
        for options in ({}, {"causal": True}, {"lengths": torch.tensor([4, 9], device=DEVICE)}):
            case.check(case.tensors(9, 9), **options)


def _narrow_refuses(inputs: AttentionInputs, want_info: bool) -> str | None:
    wide = inputs.q.dtype != torch.float64 and inputs.q.shape[-1] >= 16
    return None if wide else "it takes float32 and heads of 16 or more"


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (1.001, False)])
def test_a_backend_is_tested_at_what_it_takes_once_it_is_registered(factor, right, monkeypatch) -> None:
    def run(inputs: AttentionInputs, want_info: bool):
        out, info = dense.dense(inputs, want_info)
        return out * factor, info

    monkeypatch.setitem(BACKENDS, "own", Backend(run, _narrow_refuses))
    case = case_for(TopK(3), "own")
    assert (case.dtype, case.width) == (torch.float32, 16)
    if right:
        case.check(case.tensors(9, 11))
    else:
        with pytest.raises(AssertionError, match="out"):
            case.check(case.tensors(9, 11))


@pytest.mark.parametrize(
    ("mechanism", "backend"),
    [(TopK(3), "chunked"), (TopK(3, sinks=1, window=2), "chunked"), (RandomK(3), "chunked"), (Banded(3), "local")],
    ids=str,
)
def test_many_chunks_give_what_one_gives(mechanism, backend, monkeypatch) -> None:
    monkeypatch.setattr(chunked, "CHUNK_ELEMENTS", 200)
    case = Case(mechanism, backend)
    for options in ({}, {"causal": True}, restrictions()["mask"]):
        case.check(case.tensors(9, 11, integers=True), **options)
        case.check(case.tensors(9, 11), **options)


def _keep_highest_index(priority, candidates, k):
    flipped = torch.ones_like(priority, dtype=torch.bool) if candidates is None else candidates.flip(-1)
    return topk_mask_by_sorting(priority.flip(-1), flipped, k).flip(-1)


MUTATIONS = {
    "ties go to the highest index": (dense, "topk_mask", _keep_highest_index),
    "a masked key is let in": (AttentionInputs, "valid", lambda self, first=0, queries=None: None),
    "one key too many": (
        dense, "topk_mask", lambda priority, candidates, k, keep=dense.topk_mask: keep(priority, candidates, k + 1)
    ),
    "the list backend loses its scale in the backward pass": (
        chunked, "_pair_scores", lambda inputs, positions, q, k, kept: (k * q.unsqueeze(-2)).sum(dim=-1)
    ),
    "dropped values leak": (dense, "_mix", lambda weights, keep, v: weights @ v),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_conformance_suite_catches_a_mutation(name, monkeypatch) -> None:
    place, attribute, mutant = MUTATIONS[name]

    def suite() -> None:
        for case in (Case(TopK(3), "dense"), Case(TopK(3), "chunked")):
            for integers in (False, True):
                case.check(case.tensors(9, 11, integers=integers))
            inputs = case.tensors(9, 11)
            masked = attend(*inputs[:3], TopK(3), backend=case.backend, **restrictions()["mask"])
            assert (masked[0, :, 3] == 0).all(), "the query without keys"
        hazards.test_nan_in_a_dropped_value_does_not_leak_and_in_a_kept_one_shows(Case(TopK(3), "dense"))

    suite()
    monkeypatch.setattr(place, attribute, mutant)
    with pytest.raises(AssertionError):
        suite()
