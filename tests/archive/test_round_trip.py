"""Runs packed, unpacked and merged: equal to the bit, whole or not at all, never mixed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from semfocus.archive.merge import Merged
from semfocus.archive.pack import Packed, pack
from semfocus.archive.unpack import unpack
from semfocus.cli import app
from semfocus.errors import CorruptData, UsageError
from semfocus.execution import resume, train
from semfocus.execution.resuming import unfinished
from semfocus.store import RunDirectory, RunStore, write_arrays, write_measurement
from semfocus.training import Progress, Runtime
from tests.training.helpers import assert_same_bits, runtime, tiny, trained

PAIR = [tiny(seed, "topk:3", epochs=4) for seed in (1, 2)]


class _Stop(Exception):
    pass


def stopped(out: Path, at: int = 10, **changes: Any) -> RunStore:
    """A store whose two runs were interrupted at this step."""

    def stop(progress: Progress) -> None:
        if progress.step >= at:
            raise _Stop

    with pytest.raises(_Stop):
        train(PAIR, out, runtime(checkpoint_seconds=0, **changes), stop)
    return RunStore(out)


def files_of(run: RunDirectory, *left_out: str) -> dict[str, bytes]:
    """Every file of a run but its lock, by path."""
    paths = [path for path in sorted(run.path.rglob("*")) if path.is_file() and path.name != "lock"]
    files = {str(path.relative_to(run.path)): path.read_bytes() for path in paths}
    return {name: data for name, data in files.items() if not name.startswith(left_out)}


def moved(store: RunStore, to: Path, **options: Any) -> tuple[Packed, Merged, RunStore]:
    packed = pack(store, to.with_suffix(".tar.xz"), **options)
    target = RunStore(to)
    return packed, unpack(packed.paths, target), target


def test_runs_come_out_equal_to_the_bit_without_their_checkpoints_unless_asked(tmp_path: Path) -> None:
    runs = trained(PAIR, tmp_path / "runs")
    store = RunStore(tmp_path / "runs")
    write_measurement(runs[0], "dispersion", {"k": 5})
    write_arrays(runs[0], "surface-0a1b2c3d4e5f", {"losses": np.eye(3)})
    write_arrays(runs[0], "surface-0a1b2c3d4e5f-part", {"losses": np.eye(3)})
    _, merged, plain = moved(store, tmp_path / "plain")
    assert merged.fates == dict.fromkeys(sorted(run.id for run in runs), "added")
    _, _, whole = moved(store, tmp_path / "whole", checkpoints="all")
    for run in runs:
        part = "measurements/surface-0a1b2c3d4e5f-part"
        assert files_of(plain.open(run.id)) == files_of(run, "checkpoints", part)
        assert files_of(whole.open(run.id)) == files_of(run, part)
    assert "measurements/surface-0a1b2c3d4e5f.safetensors" in files_of(plain.open(runs[0].id))


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    trained(PAIR, tmp_path / "runs")
    shutil.copytree(tmp_path / "runs", tmp_path / "copy")
    archives = [pack(RunStore(tmp_path / name), tmp_path / f"{name}.tar.xz").paths[0] for name in ("runs", "copy")]
    assert archives[0].read_bytes() == archives[1].read_bytes()


def test_a_run_interrupted_packed_and_resumed_elsewhere_equals_one_that_was_never_disturbed(tmp_path: Path) -> None:
    expected = trained(PAIR, tmp_path / "undisturbed", keep_epochs=(1,))
    store = stopped(tmp_path / "first", keep_epochs=(1,))
    left = pack(store, tmp_path / "some.tar.xz", unfinished=True, checkpoints="kept")
    shutil.rmtree(store.root)
    elsewhere = RunStore(tmp_path / "second")
    assert unpack(left.paths, elsewhere).ids("added") == sorted(run.id for run in expected)
    resume(unfinished(elsewhere), Runtime())
    assert_same_bits([elsewhere.open(run.id) for run in expected], expected)
    assert [(elsewhere.root / run.id / "metrics.jsonl").read_bytes() for run in expected] == [
        (run.path / "metrics.jsonl").read_bytes() for run in expected
    ]
    assert all(elsewhere.open(run.id).kept_steps() == run.kept_steps() for run in expected)


def test_unfinished_runs_stay_behind_by_name_unless_asked_for(tmp_path: Path) -> None:
    store = stopped(tmp_path / "runs")
    with pytest.raises(UsageError, match="--unfinished"):
        pack(store, tmp_path / "a.tar.xz")
    done = trained([tiny(3)], store.root)[0]
    packed = pack(store, tmp_path / "a.tar.xz")
    assert [*packed.runs] == [done.id]
    assert len(packed.left_out) == 2
    with store.open(done.id).lock():
        packed = pack(store, tmp_path / "b.tar.xz", unfinished=True)
    assert done.id in packed.left_out
    assert "running" in packed.left_out[done.id]


def test_a_run_that_got_further_replaces_ours_and_one_that_is_behind_does_not(tmp_path: Path) -> None:
    early = pack(stopped(tmp_path / "runs", at=5), tmp_path / "early.tar.xz", unfinished=True).paths
    resume(unfinished(RunStore(tmp_path / "runs")), Runtime())
    late = pack(RunStore(tmp_path / "runs"), tmp_path / "late.tar.xz").paths
    home = RunStore(tmp_path / "home")
    assert len(unpack(early, home).ids("added")) == 2
    assert len(unpack(late, home).ids("replaced")) == 2
    for entry in home.entries():
        assert entry.state == "done"
        assert files_of(home.open(entry.name)) == files_of(RunStore(tmp_path / "runs").open(entry.name), "checkpoints")
    assert len(unpack(early, home).ids("older")) == 2
    assert len(unpack(late, home).ids("same")) == 2


def test_archives_of_several_sittings_come_together_in_one_command_whatever_their_order(tmp_path: Path) -> None:
    store = stopped(tmp_path / "runs", at=5)
    (done,) = trained([tiny(3)], store.root)
    early = pack(store, tmp_path / "sitting-1.tar.xz", unfinished=True).paths
    resume(unfinished(store), Runtime())
    late = pack(store, tmp_path / "sitting-2.tar.xz").paths  # has all of the first again, and two runs further on
    for place, paths in enumerate(([*early, *late], [*late, *early])):
        home = RunStore(tmp_path / f"home-{place}")
        merged = unpack(paths, home)
        assert len(merged.ids("added")) == len(merged.fates) == 3
        for entry in home.entries():
            assert entry.state == "done"
            assert files_of(home.open(entry.name)) == files_of(store.open(entry.name), "checkpoints")
    assert unpack([*early, *late], home).fates[done.id] == "same"


def test_with_the_newest_checkpoint_alone_a_cohort_goes_on_from_where_all_of_it_was(tmp_path: Path) -> None:
    store = stopped(tmp_path / "runs", at=10)
    ahead, behind = (RunDirectory(entry.path) for entry in store.entries())
    newest, before = ahead.checkpoint_steps()
    shutil.rmtree(behind.path / "checkpoints" / str(newest))  # killed between two saves
    packed, _, home = moved(store, tmp_path / "home", unfinished=True, checkpoints="newest")
    assert [home.open(run.id).checkpoint_steps() for run in (ahead, behind)] == [[before], [before]]
    whole = pack(store, tmp_path / "whole.tar.xz", unfinished=True)
    assert packed.bytes < whole.bytes
    resume(unfinished(home), Runtime())
    expected = trained(PAIR, tmp_path / "undisturbed")
    assert_same_bits([home.open(run.id) for run in expected], expected)


def test_a_run_trained_twice_takes_the_place_of_ours_when_asked_for_and_costs_no_measurement(tmp_path: Path) -> None:
    runs = trained([tiny(seed, epochs=1) for seed in (1, 2)], tmp_path / "runs")
    write_measurement(runs[0], "dispersion", {"k": 5})
    trained([tiny(seed, epochs=1) for seed in (1, 2)], tmp_path / "home")
    home = RunStore(tmp_path / "home")
    write_measurement(home.open(runs[1].id), "kept_keys", {"k": 5})
    archive = pack(RunStore(tmp_path / "runs"), tmp_path / "a.tar.xz").paths
    merged = unpack(archive, home, replace=True)
    assert merged.fates == {runs[0].id: "replaced", runs[1].id: "refused"}
    assert "kept_keys" in merged.why[runs[1].id]
    assert files_of(home.open(runs[0].id)) == files_of(runs[0], "checkpoints")


def test_what_is_left_out_and_refused_is_told_by_reason_and_not_run_by_run(tmp_path: Path) -> None:
    runs = trained([tiny(seed, epochs=1) for seed in range(6)], tmp_path / "runs")
    archive = tmp_path / "a.tar.xz"
    pack(RunStore(tmp_path / "runs"), archive)
    trained([tiny(seed, epochs=1) for seed in range(6)], tmp_path / "home")  # the same again: another clock
    with pytest.raises(CorruptData, match=r"6 runs are refused.* and 3 more: .*another timing.jsonl") as refused:
        unpack([archive], RunStore(tmp_path / "home")).raise_if_refused()
    assert str(refused.value).count("timing.jsonl") == 1
    assert "--replace" in str(refused.value)
    for run in runs[1:]:
        (run.path / "status.json").unlink()
    told = CliRunner().invoke(app, ["pack", str(tmp_path / "runs"), "--out", str(archive)]).stderr
    assert told.count("left out") == 1
    assert " and 2 more: " in told


def test_rows_after_the_last_checkpoint_do_not_keep_a_run_from_going_on(tmp_path: Path) -> None:
    early = pack(stopped(tmp_path / "runs", at=5), tmp_path / "early.tar.xz", unfinished=True).paths
    resume(unfinished(RunStore(tmp_path / "runs")), Runtime())
    late = pack(RunStore(tmp_path / "runs"), tmp_path / "late.tar.xz").paths
    home = RunStore(tmp_path / "home")
    unpack(early, home)
    for entry in home.entries():
        with home.open(entry.name).lock() as writer:
            writer.append_metrics({**writer.metrics()[-1], "step": 7, "train_loss": 0.5})
    assert len(unpack(late, home).ids("replaced")) == 2


def test_the_same_id_with_other_content_is_named_and_refused_and_the_others_arrive(tmp_path: Path) -> None:
    runs = trained(PAIR, tmp_path / "runs")
    paths = pack(RunStore(tmp_path / "runs"), tmp_path / "a.tar.xz").paths
    home = RunStore(tmp_path / "home")
    unpack(paths, home)
    shutil.rmtree(home.root / runs[1].id)
    metrics = home.root / runs[0].id / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"epoch": 1', '"epoch": 0.5', 1))
    before = files_of(home.open(runs[0].id))
    merged = unpack(paths, home)
    assert merged.fates == {runs[0].id: "refused", runs[1].id: "added"} or merged.ids("added") == [runs[1].id]
    with pytest.raises(CorruptData, match=rf"{runs[0].id}.*metrics.jsonl"):
        merged.raise_if_refused()
    assert files_of(home.open(runs[0].id)) == before


def test_what_ours_lacks_of_the_same_run_is_added_and_a_measurement_that_differs_is_refused(tmp_path: Path) -> None:
    (run,) = trained([tiny(3)], tmp_path / "runs")
    store, home = RunStore(tmp_path / "runs"), RunStore(tmp_path / "home")
    unpack(pack(store, tmp_path / "a.tar.xz").paths, home)
    write_measurement(run, "dispersion", {"k": 5})
    paths = pack(store, tmp_path / "b.tar.xz", checkpoints="last").paths
    assert unpack(paths, home).fates == {run.id: "completed"}
    assert files_of(home.open(run.id)) == files_of(run)
    write_measurement(home.open(run.id), "dispersion", {"k": 6})
    assert "dispersion.json" in unpack(paths, home).why[run.id]


def test_a_run_that_a_process_works_on_is_not_replaced(tmp_path: Path) -> None:
    early = pack(stopped(tmp_path / "runs", at=5), tmp_path / "early.tar.xz", unfinished=True).paths
    resume(unfinished(RunStore(tmp_path / "runs")), Runtime())
    late = pack(RunStore(tmp_path / "runs"), tmp_path / "late.tar.xz").paths
    home = RunStore(tmp_path / "home")
    held, free = unpack(early, home).ids("added")
    with home.open(held).lock():
        merged = unpack(late, home)
    assert merged.fates == {held: "refused", free: "replaced"}
    assert "is held by" in merged.why[held]


def test_parts_hold_whole_runs_below_their_size_and_come_together_again(tmp_path: Path) -> None:
    runs = trained([tiny(seed, rows=(20, 10), epochs=1) for seed in range(6)], tmp_path / "runs")
    for run in runs:
        noise = np.random.default_rng(run.path.name.encode()[0]).random(60_000)
        write_arrays(run, "surface-0a1b2c3d4e5f", {"losses": noise})
    packed, merged, target = moved(RunStore(tmp_path / "runs"), tmp_path / "home", part_mib=1)
    assert [path.name for path in packed.paths] == [f"home-{place}.tar.xz" for place in range(1, 1 + len(packed.paths))]
    assert len(packed.paths) > 2
    assert all(path.stat().st_size <= 2**20 for path in packed.paths)
    assert len(merged.ids("added")) == 6
    assert all(files_of(target.open(run.id)) == files_of(run, "checkpoints") for run in runs)
    with pytest.raises(UsageError, match="too small"):
        pack(RunStore(tmp_path / "runs"), tmp_path / "b.tar.xz", part_mib=0.1)


@pytest.mark.parametrize("size", ["nan", "inf", "-1"])
def test_sizes_that_are_no_sizes_are_refused_by_name(tmp_path: Path, size: str) -> None:
    for words in (["pack", "--part-size"], ["unpack", str(tmp_path / "runs.tar.xz"), "--max-gib"]):
        result = CliRunner().invoke(app, [*words, size])
        assert isinstance(result.exception, UsageError)
        assert f"{words[-1]} = {size}" in str(result.exception)


def test_ids_and_tasks_choose_runs(tmp_path: Path) -> None:
    one, other = trained([tiny(1), tiny(1, task="parity")], tmp_path / "runs")
    store = RunStore(tmp_path / "runs")
    assert [*pack(store, tmp_path / "a.tar.xz", ids={one.id}).runs] == [one.id]
    assert [*pack(store, tmp_path / "a.tar.xz", tasks=["parity"]).runs] == [other.id]
    with pytest.raises(UsageError, match="nothing to pack"):
        pack(store, tmp_path / "a.tar.xz", tasks=["listops"])
    with pytest.raises(UsageError, match=r"\.tar\.xz"):
        pack(store, tmp_path / "a.zip")
