"""Plans: mechanisms by block and over training, their text forms, stages, and what is refused."""

from __future__ import annotations

import pytest
import torch

from semfocus import attend
from semfocus.attention.plans import parse_plan
from semfocus.errors import UsageError

CANONICAL = [
    "topk:8", "2*full/topk:8", "topk:8>full@0.3", "topk:8@0.1>topk:32@0.3>full", "full>topk:8@1",
    "topk:8+4s+16w>full@0.25", "1*full/topk:4>full@0.5/2*banded:3", "banded:5+1g>banded:9+1g@0.5",
]  # fmt: skip


@pytest.mark.parametrize("text", CANONICAL)
def test_a_plan_prints_as_it_is_written(text) -> None:
    assert str(parse_plan(text)) == text
    assert parse_plan(str(parse_plan(f" {text} "))) == parse_plan(text)


def test_a_share_keeps_all_its_digits() -> None:
    assert str(parse_plan("topk:8>full@0.123456789")) == "topk:8>full@0.123456789"


def of_first_block(text: str, done: float, keys: int = 64) -> str:
    return str(parse_plan(text).of_blocks(1, keys, done)[0])


def test_a_growing_size_doubles_at_equal_distances_and_ends_as_it_says() -> None:
    plan = "topk:8>full@0.3"  # 8, 16, 32 of 64 keys, for 0.1 of training each, then full
    seen = [of_first_block(plan, done) for done in (0.0, 0.09, 0.11, 0.19, 0.21, 0.29, 0.31, 1.0)]
    assert seen == ["topk:8", "topk:8", "topk:16", "topk:16", "topk:32", "topk:32", "full", "full"]
    assert parse_plan(plan).turns(64) == pytest.approx([0.1, 0.2, 0.3])


def test_a_shrinking_size_ends_at_the_smaller_one() -> None:
    seen = [of_first_block("full>topk:8@0.6", done) for done in (0.0, 0.3, 0.5, 0.6, 1.0)]
    assert seen == ["full", "topk:32", "topk:16", "topk:8", "topk:8"]


def test_sinks_and_window_stay_while_k_grows() -> None:
    assert of_first_block("topk:4+2s+3w>topk:16+2s+3w@0.5", 0.3) == "topk:8+2s+3w"


@pytest.mark.parametrize("keys", [1, 3, 8, 9, 1000])
def test_every_stage_has_a_size_that_the_sequence_has_room_for_but_the_named_ones(keys) -> None:
    stages = parse_plan("topk:8>full@0.5").parts[0].course.stages(keys)
    assert [str(stage.mechanism) for stage in (stages[0], stages[-1])] == ["topk:8", "full"]
    assert all((stage.mechanism.size or 0) <= max(keys, 8) for stage in stages)
    ends = [stage.until for stage in stages[:-1]]
    assert ends == sorted(set(ends))
    assert ends[-1] == 0.5
    assert stages[-1].until is None


def test_stages_without_a_growing_size_change_at_their_shares() -> None:
    seen = [of_first_block("topk:8@0.1>banded:5@0.4>full", done) for done in (0.0, 0.1, 0.39, 0.4)]
    assert seen == ["topk:8", "banded:5", "banded:5", "full"]


def test_blocks_are_counted_from_the_first_and_one_part_takes_the_rest() -> None:
    def blocks(text: str, count: int = 5) -> list[str]:
        return [str(one) for one in parse_plan(text).of_blocks(count, 64)]

    assert blocks("2*full/topk:8") == ["full", "full", "topk:8", "topk:8", "topk:8"]
    assert blocks("topk:8/1*full") == ["topk:8"] * 4 + ["full"]
    assert blocks("1*full/topk:8/1*banded:3", 3) == ["full", "topk:8", "banded:3"]
    assert blocks("2*full/3*topk:8") == blocks("2*full/topk:8")


def test_one_mechanism_throughout_is_its_sole_one() -> None:
    assert str(parse_plan("topk:8").sole) == "topk:8"
    assert parse_plan("topk:8").turns(64) == []
    assert parse_plan("2*full/topk:8").sole is None
    assert parse_plan("topk:8>full@0.3").sole is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topk:8>full", "does not say when"),
        ("topk:8@0.3", "does not say when"),
        ("topk:8@0.5>full@0.3", "does not say when"),
        ("topk:8>full@1.5", "@1.5 must be a share of training.*never end"),
        ("topk:8>full@0", "above 0"),
        ("topk:8>full@nan", "@nan must be a share"),
        ("topk:8>full@soon", "@soon must be a share"),
        ("topk:8@0.5>topk:9@0.3>full", "must grow"),
        ("topk:8>banded:9@0.2", "of one kind.*topk:8@0.2>banded:9"),
        ("topk:8+1s>topk:9@0.2", "of one kind"),
        ("topk:8>topk:8@0.3", "from topk:8 to itself"),
        ("full/topk:8", "only one part"),
        ("x*full/topk:8", "'x' must be a number of blocks"),
        ("0*full/topk:8", "1 to 1024"),
        ("99999999999999999999*full/topk:8", "1 to 1024"),
        ("1*banded:5+1g/full", "same number of global tokens"),
        ("1*/topk:8", r"mechanism '1\*/topk:8' lacks a mechanism"),
        ("topk:8>", "mechanism 'topk:8>' lacks a mechanism"),
        (">full@0.3", "lacks a mechanism"),
        ("topk:8/", "lacks a mechanism"),
        ("topk:8@1>full", "a stage until @1 never ends"),
        ("topk:8@0.3>topk:32@1>full", "the next one never begins"),
        ("nokeys:8>full@0.3", "nokeys"),
    ],
)
def test_what_is_no_plan_is_refused_with_its_reason(text, message) -> None:
    with pytest.raises(UsageError, match=message):
        parse_plan(text)


@pytest.mark.parametrize(("text", "blocks"), [("2*full/topk:8", 2), ("2*full/1*topk:8", 4), ("4*full", 3)])
def test_blocks_that_do_not_come_to_the_models_are_refused(text, blocks) -> None:
    with pytest.raises(UsageError, match=f"model.blocks = {blocks}"):
        parse_plan(text).of_blocks(blocks, 64)


@pytest.mark.parametrize("text", ["topk:8>full@0.3", "2*full/topk:8", "topk:8@0.3"])
def test_attend_says_that_a_plan_is_for_whole_models(text) -> None:
    q = torch.zeros(1, 1, 4, 2)
    with pytest.raises(UsageError, match="is a plan of several, which whole models"):
        attend(q, q, q, text)
