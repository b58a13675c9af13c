"""Mechanisms, normalisers and backends of a user's own; chunks; mutations that the conformance suite must catch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from semfocus import Banded, BottomK, Full, RandomK, TopK, attend
from semfocus.attention import chunked, dense, parse_mechanism
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.mechanisms import RandomKWithReplacement, ScoreRanked
from semfocus.attention.normalisers import Sigmoid, Softmax, parse_normaliser, register_normaliser
from semfocus.attention.operator import BACKENDS, Backend, choose_backend, log_once
from semfocus.attention.registry import MECHANISMS, NORMALISERS, register_mechanism
from semfocus.attention.selection import topk_mask_by_sorting
from semfocus.config import AttentionConfig
from semfocus.errors import UsageError
from tests.attention.own import BestAndSelf, LargestMagnitude, NearestDirection, SignLSH, Softplus
from tests.conformance import test_attention_hazards as hazards
from tests.conformance.cases import Case, case_for, qkv, restrictions, tensors
from tests.conftest import DEVICE

USERS_OWN = [LargestMagnitude(3), BestAndSelf(3), NearestDirection(3), SignLSH(2)]


@pytest.mark.parametrize("mechanism", USERS_OWN, ids=str)
def test_a_users_mechanism_is_one_class_and_one_registration(mechanism) -> None:
    backends = ("dense", "chunked") if mechanism.is_ranked else ("dense",)
    with MECHANISMS.temporarily(type(mechanism)):
        assert parse_mechanism(str(mechanism)) == mechanism
        for backend in backends:
            case = Case(mechanism, backend)
            for options in ({}, {"causal": True}, {"lengths": torch.tensor([4, 9], device=DEVICE)}):
                case.check(case.tensors(9, 9), **options)


@pytest.mark.parametrize("mechanism", USERS_OWN, ids=str)
def test_backends_that_do_not_know_a_users_mechanism_refuse_it_with_a_reason(mechanism) -> None:
    q, k, v, _ = tensors(9, 9)
    reasons = {
        "sdpa": "it computes full attention only",
        "local": "is not given by positions",
        "triton": f"not {mechanism}|no kernel for {mechanism}",
        "chunked": f"{type(mechanism).__name__} is not registered" if mechanism.is_ranked else "a short list of keys",
    }
    for backend, reason in reasons.items():
        with pytest.raises(UsageError, match=f"cannot serve this call: .*({reason})"):
            attend(q, k, v, mechanism, backend=backend)


def test_a_subclass_makes_none_of_the_claims_that_fast_paths_rely_on() -> None:
    assert TopK(3).keeps_largest == 3
    assert LargestMagnitude(3).keeps_largest is None
    assert Full().keeps_all
    assert not dataclass(frozen=True)(type("OddKeys", (Full,), {}))().keeps_all
    assert not type("OtherBand", (Banded,), {"pattern": Banded.pattern})(3).is_local
    assert not type("OtherTopK", (TopK,), {"choose": TopK.choose})(3).is_ranked
    assert not type("OtherSoftmax", (Softmax,), {})().is_softmax


def test_a_subclass_that_keeps_the_name_of_a_known_mechanism_is_not_run_by_its_kernels() -> None:
    impostor = type("Impostor", (TopK,), {"priority": lambda self, inputs: -inputs.scores})(3)
    q, k, v, _ = tensors(9, 9, dtype=torch.float32)
    for backend in ("triton", "chunked"):
        with pytest.raises(UsageError, match="cannot serve this call"):
            attend(q, k, v, impostor, backend=backend)
    torch.testing.assert_close(attend(q, k, v, impostor), attend(q, k, v, BottomK(3)))


def test_why_a_faster_backend_does_not_serve_is_logged_once(caplog) -> None:
    log_once.cache_clear()
    inputs = AttentionInputs(*qkv(400, 400), RandomKWithReplacement(3), Softmax())
    with caplog.at_level("INFO", logger="semfocus"):
        assert {choose_backend(inputs) for _ in range(3)} == {"dense"}
    [message] = caplog.messages[-1:] if DEVICE.type == "cuda" else caplog.messages
    assert message == (
        "randomk_replaced:3 by the backend dense, not by chunked: "
        "randomk_replaced:3 does not choose a short list of keys"
    )


def test_a_mechanism_that_needs_queries_and_keys_says_so_where_they_are_missing() -> None:
    with pytest.raises(UsageError, match="pass queries= and keys= to keep"):
        SignLSH(2).keep(torch.zeros(3, 3))


def test_a_users_normaliser_works_by_value_and_by_name() -> None:
    case = Case(TopK(3), "dense")
    case.check(case.tensors(9, 11), normaliser=Softplus())
    q, k, v, _ = case.tensors(9, 11)
    with pytest.raises(UsageError, match="unknown normaliser 'softplus'"):
        attend(q, k, v, normaliser="softplus")
    with NORMALISERS.temporarily(Softplus):
        assert torch.equal(attend(q, k, v, normaliser="softplus"), attend(q, k, v, normaliser=Softplus()))
        assert AttentionConfig(normaliser=" Softplus").normaliser == "softplus"
        with pytest.raises(UsageError, match="by the kept keys alone, not softplus"):
            attend(q, k, v, TopK(3), normaliser="softplus", backend="chunked")


def test_a_config_refuses_an_unknown_normaliser_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="unknown normaliser 'softmx'; did you mean 'softmax'"):
        AttentionConfig(normaliser="softmx")


def test_mechanisms_and_normalisers_are_known_without_importing_torch() -> None:
    code = (
        "import sys; from semfocus.attention import parse_mechanism, parse_normaliser; "
        "parse_mechanism('topk:5'), parse_normaliser('sigmoid:0.5'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("value", [Softmax(), Sigmoid(), Sigmoid(bias=-2.5)], ids=str)
def test_a_normaliser_is_what_its_text_form_says(value) -> None:
    assert parse_normaliser(str(value)) == value


def test_a_normalisers_name_is_taken_once_and_must_be_a_word() -> None:
    with pytest.raises(UsageError, match="a normaliser called 'softmax' is registered already"):
        register_normaliser(type("Other", (Softplus,), {"name": "softmax"}))
    with pytest.raises(UsageError, match=r"Other\.name = 'soft max' must be small letters"):
        register_normaliser(type("Other", (Softplus,), {"name": "soft max"}))


@pytest.mark.slow  # tests/test_plugins.py points it at the module of the guide
def test_the_conformance_suite_tests_a_plugin_that_it_is_pointed_at(tmp_path) -> None:
    (tmp_path / "users_plugin.py").write_text(
        "from semfocus.attention import register_mechanism, register_normaliser\n"
        "from tests.attention.own import SignLSH, Softplus\n"
        "register_mechanism(SignLSH)\n"
        "register_normaliser(Softplus)\n"
    )
    root = Path(__file__).parents[2]
    environment = {name: value for name, value in os.environ.items() if name != "SEMFOCUS_TEST_SHARD"}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "tests/conformance",
         "--plugin", "users_plugin", "-k", "sign_lsh and (hazards or softplus)"],
        cwd=root, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 30


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


def test_a_chunk_of_queries_is_ranked_by_these_queries(monkeypatch) -> None:
    monkeypatch.setattr(chunked, "CHUNK_ELEMENTS", 200)
    case = Case(NearestDirection(3), "chunked")
    with MECHANISMS.temporarily(NearestDirection):
        for options in ({}, {"causal": True}, restrictions()["mask"]):
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
        chunked, "pair_products", lambda inputs, q, k: (k * q.unsqueeze(-2)).sum(dim=-1)
    ),
    "dropped values leak": (dense, "_weighted_sum", lambda weights, keep, v: weights @ v),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_conformance_suite_catches_a_mutation(name, monkeypatch) -> None:
    owner, attribute, mutant = MUTATIONS[name]

    def suite() -> None:
        for case in (Case(TopK(3), "dense"), Case(TopK(3), "chunked")):
            for integers in (False, True):
                case.check(case.tensors(9, 11, integers=integers))
            inputs = case.tensors(9, 11)
            masked = attend(*inputs[:3], TopK(3), backend=case.backend, **restrictions()["mask"])
            assert (masked[0, :, 3] == 0).all(), "the query without keys"
        hazards.test_nan_in_a_dropped_value_does_not_leak_and_in_a_kept_one_shows(Case(TopK(3), "dense"))

    suite()
    monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises(AssertionError):
        suite()


@dataclass(frozen=True)
class WithFirstKeys(ScoreRanked):
    """Keeps the first four keys as well, and does not say how many that makes."""

    name = "with_first_keys"

    def priority(self, inputs):
        return inputs.scores

    def always_kept(self, positions, causal):
        return (positions.key < 4).expand(positions.queries, -1)


class _EverySecond:
    def choose(self, inputs):
        return inputs.allowed & (inputs.positions.key % 2 == 0)


class _NearestThree:
    def pattern(self, positions, causal):
        return (positions.key - positions.position).abs() < 2


@dataclass(frozen=True)
class MixedTopK(_EverySecond, TopK):
    name = "mixed_topk"


@dataclass(frozen=True)
class MixedBanded(_NearestThree, Banded):
    name = "mixed_banded"


@dataclass(frozen=True)
class FourSinks(TopK):
    name = "four_sinks"
    sinks: int = 4


@pytest.mark.parametrize("mechanism", [WithFirstKeys(4), MixedTopK(4), MixedBanded(4), FourSinks(4, sinks=0)], ids=str)
def test_a_definition_newer_than_a_claim_voids_the_claim_and_the_text_form_leads_back(mechanism) -> None:
    q, k, v = qkv(400, 400)
    with MECHANISMS.temporarily(type(mechanism)):
        assert parse_mechanism(str(mechanism)) == mechanism
        out, info = attend(q, k, v, mechanism, return_info=True)
        exact, expected = attend(q, k, v, mechanism, backend="reference", return_info=True)
    torch.testing.assert_close(out, exact)
    kept = [each.indices.ge(0).sum(dim=-1).max() for each in (info, expected)]
    assert kept[0] == kept[1] <= mechanism.max_kept(400)


@dataclass(frozen=True)
class ByHand(ScoreRanked):
    """Ranks the keys by numbers of its own, some of which are NaN or infinite."""

    name = "by_hand"

    def priority(self, inputs):
        order = torch.arange(inputs.scores.shape[-1], device=inputs.scores.device)
        order = (order * 7 + torch.arange(inputs.scores.shape[-2], device=order.device)[:, None] * 3) % 11
        low, high, nan = float("-inf"), float("inf"), float("nan")
        levels = [low, nan, high, 1.0, low, 2.0, nan, 0.0, 1.0, high, low]
        return torch.tensor(levels, device=order.device)[order]


@pytest.mark.parametrize("k", [1, 2, 3, 5, 9, 12, 14, 20])
@pytest.mark.parametrize("keys", [16, 300])
def test_priorities_of_nan_and_infinity_rank_alike_everywhere(k, keys) -> None:
    q, k_, v = qkv(14, keys)
    mask = torch.rand(14, keys, generator=torch.Generator().manual_seed(3)).to(DEVICE) > 0.5
    with MECHANISMS.temporarily(ByHand):
        for options in ({}, {"mask": mask}, {"causal": True}, {"causal": True, "mask": mask}):
            _, oracle = attend(q, k_, v, ByHand(k), backend="reference", return_info=True, **options)
            for call in (attend, torch.compile(attend, backend="eager")):
                for backend in ("dense", "chunked"):
                    _, mine = call(q, k_, v, ByHand(k), backend=backend, return_info=True, **options)
                    assert torch.equal(mine.indices, oracle.indices), (backend, list(options), call is attend)


def test_two_sizes_and_whole_number_priorities_are_refused() -> None:
    @dataclass(frozen=True)
    class Strided(TopK):
        name = "strided"
        suffixes = {}

    with pytest.raises(UsageError, match="room for one size"):
        register_mechanism(Strided)

    @dataclass(frozen=True)
    class ByPlace(ScoreRanked):
        name = "by_place"

        def priority(self, inputs):
            return inputs.positions.key

    with pytest.raises(TypeError, match="return a floating type"):
        attend(*qkv(9, 9), ByPlace(3))
