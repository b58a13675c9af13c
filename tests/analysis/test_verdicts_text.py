"""C14 and C19 to C22 on runs made by hand: text, pre-training, size, recall, and induction heads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from semfocus.analysis.head_start import first_at, head_start, log_ratio, tokens_of
from semfocus.analysis.records import Record
from semfocus.analysis.verdicts.evidence import Part
from semfocus.analysis.verdicts.recall import NUMBERS, WIDTHS
from semfocus.analysis.verdicts.text import ARMS, BAND, FIGURE_19, FIGURE_20, LENGTHS, SIZES, TextFigure
from semfocus.analysis.verdicts.token_ratios import after_holm
from tests.analysis.made import arm, measure, run, verdict

TUNED = {"training.tuned": "lr of 1, 2, 3; 1 seed; last loss"}


def losses(speed: float, last: float = 0.8, noise: float = 0.0):
    """A held-out loss that falls with the share of training, `speed` times as fast."""
    return lambda share: last + noise + 2.0 * math.exp(-6 * speed * share)


def decoders(
    speeds: Mapping[str, float], size: str = "10 M", length: int = 512, seeds: int = 8, last: Mapping[str, float] = {}
) -> list[Record]:
    blocks, width = SIZES[size]
    changes = {"model.blocks": blocks, "model.d_model": width, "task.options.length": length, **TUNED}
    return [
        run("text", mechanism, seed, at=None, changes=changes,
            losses=losses(speed * (1 + 0.01 * (seed % 3)), last.get(mechanism, 0.8), 0.001 * (seed % 4)))
        for mechanism, speed in speeds.items()
        for seed in range(seeds)
    ]  # fmt: skip


def figure(which: TextFigure, full: float, topk: float, heldout: float = 0.3) -> list[Record]:
    return [
        run("next_word", mechanism, seed, at=None, heldout_at=1, loss_at=at + seed % 3, heldout=level,
            changes={**which.fields, "model.blocks": blocks})
        for blocks in which.blocks
        for mechanism, at, level in (("full", full, 0.3), ("topk:5", topk, heldout))
        for seed in range(10)
    ]  # fmt: skip


def test_the_level_is_full_attentions_loss_where_focus_is_ahead_and_swapping_the_runs_swaps_the_answer() -> None:
    full, ahead = decoders({"full": 1.0, "topk:8": 1.25}, seeds=1)
    times = head_start(full, ahead, 0.5)
    assert times is not None
    half = tokens_of(full)[19]  # of forty evaluations
    assert times[0] == half
    assert times[1] == pytest.approx(half / 1.25, rel=0.01)
    turned = head_start(ahead, full, 0.5)
    assert turned == times[::-1]
    assert log_ratio(full, full, 0.25) == 0


def test_a_level_between_evaluations_is_interpolated_and_noise_above_the_lowest_is_no_way_back() -> None:
    places = tokens_of(run("text", "full", 1, losses=losses(1.0)))[:4]
    step = places[1] - places[0]
    assert first_at(places, [4.0, 2.0, 3.0, 1.0], 3.0) == places[0] + step / 2
    assert first_at(places, [4.0, 2.0, 3.0, 1.0], 1.5) == places[2] + step / 2
    assert first_at(places, [4.0, 2.0, 3.0, 1.0], 0.5) is None


def test_a_run_that_diverged_is_there_at_the_end_and_two_such_say_nothing() -> None:
    full = run("text", "full", 1, losses=losses(1.0))
    lost = run("text", "topk:8", 1, losses=losses(1.0), state="diverged")
    times = head_start(full, lost, 0.25)
    assert times is not None
    assert times[1] / times[0] == pytest.approx(4)
    assert head_start(lost, lost, 0.25) is None


def test_c14_needs_both_figures_and_both_lengths_to_hold_whole() -> None:
    two = figure(FIGURE_19, 40, 15) + figure(FIGURE_20, 40, 15)
    longer = [each for length in LENGTHS for each in decoders({"full": 1.0, "topk:8": 1.2}, length=length)]
    held = verdict("C14", two + longer)
    assert (held.outcome, held.scope) == ("holds", "")
    assert verdict("C14", two).outcome == "holds"
    assert verdict("C14", two).scope == "4 of 8 parts run"
    assert verdict("C14", longer[:16]).outcome == "not decided"


def test_c14_is_refuted_by_one_setting_where_focus_is_slower_or_ends_worse() -> None:
    two = figure(FIGURE_19, 40, 15) + figure(FIGURE_20, 40, 15)
    slower = verdict("C14", two + decoders({"full": 1.2, "topk:8": 1.0}))
    assert slower.outcome == "mixed"
    assert "rows of 512" in (slower.effect or "")
    worse = verdict("C14", two + decoders({"full": 1.0, "topk:8": 1.2}, last={"topk:8": 0.82}))
    assert worse.outcome == "does not hold"  # so that it also gets later to the larger of the two last losses
    assert "rows of 512: as well (+2." in worse.because
    assert verdict("C14", figure(FIGURE_19, 15, 40, heldout=0.2) + figure(FIGURE_20, 15, 40, 0.2)).outcome == (
        "does not hold"
    )


def test_untuned_runs_and_other_sizes_are_not_pre_training() -> None:
    small = decoders({"full": 1.0, "topk:8": 1.2}, size="1 M")
    assert verdict("C14", small).judged[0] == verdict("C19", small).judged[0] == 0
    plain = [run("text", m, s, losses=losses(1.0), changes={"model.blocks": 6, "model.d_model": 384,
                                                            "task.options.length": 512})
             for m in ("full", "topk:8") for s in range(8)]  # fmt: skip
    assert verdict("C19", plain).judged[0] == 0


def everything(arms: float, band: float, last: float = 0.8) -> list[Record]:
    speeds = {"full": 1.0, **dict.fromkeys(ARMS, arms), BAND: band}
    ends = dict.fromkeys(ARMS, last)
    return [each for length in LENGTHS for each in decoders(speeds, length=length, last=ends)]


def test_c19_holds_where_every_arm_is_ahead_at_every_share_and_the_band_is_not() -> None:
    found = verdict("C19", everything(1.2, 0.8))
    assert (found.outcome, found.scope) == ("holds", "")
    assert "1.2x" in found.because
    assert "in seconds" in found.because
    assert verdict("C19", everything(1.0, 1.2)).outcome == "mixed"  # ends as well, and the band is ahead
    assert verdict("C19", everything(0.8, 1.2, last=0.83)).outcome == "does not hold"


def test_c19_adjusts_over_the_arms_and_five_seeds_decide_nothing() -> None:
    records = everything(1.2, 0.8)
    few = verdict("C19", [record for record in records if record.seed < 5])
    assert few.outcome == "not decided"
    assert "not enough data" in few.because


def test_an_arm_that_is_ahead_by_chance_alone_is_not_shown_after_holm_and_a_refutation_keeps_its_p() -> None:
    clear, likely = Part("a", "yes", p=0.001, effect="1.2x"), Part("b", "yes", p=0.03, effect="1.1x")
    behind = Part("c", "no", p=0.04, effect="0.9x")
    shown, lost, kept = after_holm({"a": clear, "b": likely, "c": behind})
    assert (shown.decision, shown.p) == ("yes", pytest.approx(0.003))
    assert (lost.decision, lost.p) == ("undecided", pytest.approx(0.06))
    assert "not after Holm" in lost.why
    assert kept == behind


def scaled(leads: Mapping[str, float], seeds: int = 4) -> list[Record]:
    return [each for size, lead in leads.items() for each in decoders({"full": 1.0, "topk:8": lead}, size, seeds=seeds)]


@pytest.mark.parametrize(
    ("leads", "outcome"),
    [
        ((1.3, 1.2, 1.1, 1.02), "holds"),
        ((1.02, 1.1, 1.2, 1.3), "does not hold"),
    ],
)
def test_c20_follows_the_head_start_over_the_sizes(leads, outcome: str) -> None:
    found = verdict("C20", scaled(dict(zip(SIZES, leads, strict=True))))
    assert found.outcome == outcome
    assert f"{leads[0]:g}" in f"{found.because} {found.effect}"


def test_c20_needs_sizes_seeds_and_a_head_start_and_the_same_batches() -> None:
    leads = dict(zip(SIZES, (1.3, 1.2, 1.1, 1.02), strict=True))
    assert verdict("C20", scaled(leads, seeds=3)).outcome == "not decided"
    assert verdict("C20", scaled({"1 M": 1.3, "3 M": 1.1})).judged[0] == 0
    none = verdict("C20", scaled(dict.fromkeys(SIZES, 1.0)))
    assert (none.outcome, none.judged) == ("not decided", (0, 0))
    longer = decoders({"full": 1.0, "topk:8": 1.1}, "10 M", length=2048)
    assert verdict("C20", scaled({"1 M": 1.3, "3 M": 1.1}) + longer).judged[0] == 0


def recalled(full: float | None, topk: float | None, cases: int = 9) -> list[Record]:
    places = [(width, pairs) for width in WIDTHS for pairs in NUMBERS][:cases]
    return [
        each
        for width, pairs in places
        for mechanism, at in (("full", full), ("topk:8", topk), ("banded:32", None))
        for each in arm("mqar", mechanism, at, seeds=8,
                        changes={"model.d_model": width, "task.options.pairs": pairs, **TUNED})
    ]  # fmt: skip


def test_c21_compares_the_epochs_to_recall_and_names_the_band() -> None:
    found = verdict("C21", recalled(60, 20))
    assert found.outcome == "holds"
    assert "banded:32 in 0 of 8 runs" in found.because
    assert verdict("C21", recalled(20, 60)).outcome == "does not hold"
    assert verdict("C21", recalled(60, 20, cases=4)).outcome == "not decided"
    nothing = verdict("C21", recalled(None, None))
    assert (nothing.outcome, nothing.judged) == ("not decided", (0, 0))


def heads(full: float, topk: float, best: float = 0.6, seeds: int = 8) -> tuple[list[Record], dict[str, Any]]:
    """Heads whose score rises at a share of training."""
    records = decoders({"full": 1.0, "topk:8": 1.0}, "3 M", seeds=seeds)

    def payload(record: Record) -> dict[str, Any]:
        at = (topk if record.mechanism == "topk:8" else full) * (1 + 0.01 * (record.seed % 3))
        points = {}
        for step in (0, 20, 40, 80, 160, 320, 640, 1280):
            score = best / (1 + math.exp(-(step / 1280 - at) * 40))
            points[str(step)] = {"tokens": step * 10, "heads": [[0.01, score]], "loss": 1.0, "accuracy": score}
        return {"rows": 4, "half": 8, "points": points}

    return records, dict(measure(records, "induction", payload))


def test_c22_compares_when_heads_appear_and_where_none_does_there_is_nothing_to_compare() -> None:
    assert verdict("C22", *heads(0.4, 0.2)).outcome == "holds"
    assert verdict("C22", *heads(0.2, 0.4)).outcome == "does not hold"
    assert verdict("C22", *heads(0.4, 0.2, seeds=5)).outcome == "not decided"
    silent = verdict("C22", *heads(0.4, 0.2, best=0.05))
    assert (silent.outcome, silent.judged) == ("not decided", (0, 0))
    records, _ = heads(0.4, 0.2)
    assert verdict("C22", records).judged[0] == 0
