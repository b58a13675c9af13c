"""Surfaces of trained runs have the right losses, are stored with the run, and resume to the bit."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from semfocus.errors import CorruptData, Diverged, UsageError
from semfocus.landscape import Surface, SurfaceSettings, default_extent, measure_surface, read_surface
from semfocus.landscape.losses import Losses, Plan
from semfocus.landscape.trained_model import open_trained_model
from semfocus.measurements import surface_name
from semfocus.measurements.store import keep_surface, read_part, write_part
from semfocus.store import RunDirectory, RunStore
from semfocus.store.measurements import changing, read_arrays, read_measurement, write_arrays, write_measurement
from semfocus.training import Interrupted
from semfocus.training.loading import document, load
from tests.store.helpers import forge
from tests.training.helpers import RUNTIME, run_of, tiny, trained

FEW = SurfaceSettings(grid=7)
Kind = Callable[[str, str], RunDirectory]


def test_points_of_a_surface_are_losses_at_centre_plus_coordinates_times_directions(
    run_of_kind: Kind,
) -> None:
    run = run_of_kind("pre", "topk:3")
    surface = measure_surface(run, SurfaceSettings(grid=5, extent=0.5, seed=3, rows=None), RUNTIME)
    assert surface.losses.shape == (5, 5)
    assert surface.losses[2, 2] == pytest.approx(run.metrics()[-1]["train_loss"], rel=1e-6)
    arrays = read_arrays(run, _own_name(surface))
    assert arrays is not None
    trained_model = open_trained_model(run)
    first, second = torch.from_numpy(arrays["directions"])
    model = load(run)
    for i, j in ((0, 3), (4, 1), (2, 0)):
        row = model.row() + surface.axis[j] * first + surface.axis[i] * second
        losses = Losses(trained_model.spec, trained_model.rows, Plan(1, trained_model.rows.count))
        losses.matrix[0] = row
        assert surface.losses[i, j] == pytest.approx(losses()[0].item(), rel=1e-5), (i, j)


def _own_name(surface: Surface) -> str:
    return surface_name(surface.meta.directions, surface.meta.key)


def test_a_surface_is_stored_with_its_run_and_read_by_the_next_call(own_run: RunDirectory) -> None:
    calls: list[int] = []
    surface = measure_surface(own_run, FEW, RUNTIME, lambda done, wanted: calls.append(done))
    assert calls[-1] == 49
    payload = read_measurement(own_run, "surface")
    assert payload == surface.meta.document
    assert {"grid", "extent", "directions", "seed", "rows", "squares", "per_step", "per_distance"} <= payload.keys()
    assert (payload["grid"], payload["directions"], payload["rows"]) == (7, "random", 43)
    assert set(payload["per_step"]) == set(payload["per_distance"]) == {"50", "75", "95", "99"}
    calls.clear()
    again = measure_surface(own_run, FEW, RUNTIME, lambda done, wanted: calls.append(done))
    assert not calls
    assert np.array_equal(again.losses, surface.losses)
    other = measure_surface(own_run, SurfaceSettings(grid=7, seed=1), RUNTIME)
    assert not np.array_equal(other.losses, surface.losses)
    kept = read_surface(own_run)
    assert kept is not None
    assert np.array_equal(kept.losses, other.losses)


@pytest.mark.parametrize("directions", ["random", "path", "hessian"])
def test_a_resumed_surface_is_identical_to_an_uninterrupted_one(own_run: RunDirectory, directions: str) -> None:
    settings = SurfaceSettings(grid=9, directions=directions)
    whole = measure_surface(own_run, settings, RUNTIME)

    def interrupt(done: int, wanted: int) -> None:
        if done == 32:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted) as caught:
        measure_surface(own_run, settings, RUNTIME, interrupt, again=True)
    assert caught.value.exit_code == 130
    half = read_part(own_run, directions, whole.meta.key)
    assert half is not None
    assert 32 <= half["plan"][3] < 81
    assert np.isnan(half["losses"]).any()
    kept = read_surface(own_run, directions)  # the finished one is not touched by one that is on its way
    assert kept is not None
    assert np.array_equal(kept.losses, whole.losses)
    calls: list[int] = []
    surface = measure_surface(own_run, settings, RUNTIME, lambda done, wanted: calls.append(done))
    assert calls[0] > 32
    assert np.array_equal(surface.losses, whole.losses)
    assert surface.meta.document == whole.meta.document
    assert read_part(own_run, directions, whole.meta.key) is None


def test_a_killed_surface_resumes_from_the_last_save(own_run: RunDirectory) -> None:
    class Killed(Exception):
        pass

    def kill(done: int, wanted: int) -> None:
        if done >= 24:
            raise Killed

    with pytest.raises(Killed):
        measure_surface(own_run, FEW, RUNTIME, kill, save_seconds=0.0)
    assert read_surface(own_run) is None
    calls: list[int] = []
    surface = measure_surface(own_run, FEW, RUNTIME, lambda done, wanted: calls.append(done))
    assert calls[0] == 32
    assert np.array_equal(surface.losses, measure_surface(own_run, FEW, RUNTIME, again=True).losses)


@pytest.mark.parametrize("spoil", ["machine", "plan"])
def test_an_unfinished_surface_of_another_machine_or_a_damaged_one_is_started_again(
    own_run: RunDirectory, spoil: str
) -> None:
    def stop(done: int, wanted: int) -> None:
        raise KeyError(done)

    with pytest.raises(KeyError):
        measure_surface(own_run, FEW, RUNTIME, stop, save_seconds=0.0)
    (part,) = (own_run.path / "measurements").glob("surface-*-part.safetensors")
    arrays = read_arrays(own_run, part.stem)
    assert arrays is not None
    arrays[spoil] = arrays[spoil][:-1] if spoil == "plan" else arrays[spoil] + np.uint8(1)
    write_part(own_run, "random", bytes(arrays["key"]).hex(), arrays)
    calls: list[int] = []
    measure_surface(own_run, FEW, RUNTIME, lambda done, wanted: calls.append(done))
    assert calls[0] == 8
    measure_surface(own_run, FEW, RUNTIME, lambda done, wanted: calls.append(done))
    assert calls[-1] == 49  # of the first call; the second one read


def test_surfaces_of_different_settings_are_kept_and_the_finest_is_shown(own_run: RunDirectory) -> None:
    fine = measure_surface(own_run, SurfaceSettings(grid=9, rows=20), RUNTIME)
    coarse = measure_surface(own_run, SurfaceSettings(grid=5, rows=43), RUNTIME)
    assert _shown(own_run) == fine.meta.document
    more = measure_surface(own_run, SurfaceSettings(grid=9, rows=43), RUNTIME)
    assert _shown(own_run) == more.meta.document
    assert _shown(own_run) == read_measurement(own_run, "surface")  # what pages and verdicts look at
    for surface in (fine, coarse, more):
        kept = read_surface(own_run, key=surface.meta.key)
        assert kept is not None
        assert kept.meta.document == surface.meta.document
        assert np.array_equal(kept.losses, surface.losses)


def _shown(run: RunDirectory) -> dict:
    shown = read_surface(run)
    assert shown is not None
    return shown.meta.document


def test_an_interrupted_surface_does_not_replace_a_finished_one(own_run: RunDirectory) -> None:
    whole = measure_surface(own_run, FEW, RUNTIME)

    def interrupt(done: int, wanted: int) -> None:
        if done == 8:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        measure_surface(own_run, SurfaceSettings(grid=15), RUNTIME, interrupt)
    kept = read_surface(own_run)
    assert kept is not None
    assert np.array_equal(kept.losses, whole.losses)


def test_a_surface_whose_storing_was_killed_is_shown_by_the_next_call(own_run: RunDirectory) -> None:
    surface = measure_surface(own_run, FEW, RUNTIME)
    write_part(own_run, "random", surface.meta.key, surface.arrays)  # as it is before the surface is shown
    (own_run.path / "measurements" / "surface.json").unlink()
    assert read_surface(own_run) is None
    calls: list[int] = []
    again = measure_surface(own_run, FEW, RUNTIME, lambda done, wanted: calls.append(done))
    assert not calls
    assert _shown(own_run) == again.meta.document == surface.meta.document


def test_storing_a_surface_waits_for_other_processes(own_run: RunDirectory) -> None:
    fine, coarse = (measure_surface(own_run, SurfaceSettings(grid=grid), RUNTIME) for grid in (9, 7))
    shown = own_run.path / "measurements" / "surface.json"
    shown.unlink()
    with ThreadPoolExecutor(1) as pool:
        with changing(own_run):
            waiting = pool.submit(keep_surface, own_run, coarse)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.1)
            assert not shown.exists()
            write_measurement(own_run, "surface", fine.meta.document)
        waiting.result(timeout=60)
    assert _shown(own_run) == fine.meta.document  # it has seen what was written while it waited


def test_a_surface_of_an_earlier_version_is_read_and_renamed_when_a_finer_one_is_stored(own_run: RunDirectory) -> None:
    old = _as_of_an_earlier_version(own_run, measure_surface(own_run, FEW, RUNTIME))
    assert _shown(own_run) == old.meta.document
    calls: list[int] = []
    measure_surface(own_run, FEW, RUNTIME, lambda done, wanted: calls.append(done))
    assert not calls
    measure_surface(own_run, SurfaceSettings(grid=5), RUNTIME)
    assert _shown(own_run) == old.meta.document
    measure_surface(own_run, SurfaceSettings(grid=9), RUNTIME)
    assert _shown(own_run)["grid"] == 9
    kept = read_surface(own_run, key=old.meta.key)
    assert kept is not None
    assert np.array_equal(kept.losses, old.losses)
    assert not (own_run.path / "measurements" / "surface.safetensors").exists()


def _as_of_an_earlier_version(run: RunDirectory, surface: Surface) -> Surface:
    folder = run.path / "measurements"
    (folder / f"{_own_name(surface)}.safetensors").rename(folder / "surface.safetensors")
    (folder / f"{_own_name(surface)}.json").unlink()
    return surface


def test_a_surface_around_a_newer_checkpoint_is_shown_before_a_finer_one_around_an_older(own_run: RunDirectory) -> None:
    fine = measure_surface(own_run, SurfaceSettings(grid=9), RUNTIME)
    write_measurement(own_run, "surface", fine.meta.document | {"step": fine.meta.document["step"] - 1})
    newer = measure_surface(own_run, FEW, RUNTIME)
    assert _shown(own_run) == newer.meta.document


def test_along_the_path_the_grid_reaches_as_far_as_training_went(own_run: RunDirectory) -> None:
    surface = measure_surface(own_run, SurfaceSettings(grid=5, directions="path"), RUNTIME)
    assert surface.path is not None
    reach = np.abs(surface.path).max()
    assert reach < surface.meta.document["extent"] < 1.25 * reach
    asked = measure_surface(own_run, SurfaceSettings(grid=5, directions="path", extent=0.7), RUNTIME)
    assert asked.meta.document["extent"] == 0.7
    assert default_extent(own_run, "random") == default_extent(own_run, "hessian") == 1.0


def test_losses_that_are_not_finite_are_stored_as_they_are(own_run: RunDirectory) -> None:
    surface = measure_surface(own_run, SurfaceSettings(grid=5, extent=1e30), RUNTIME)
    lost = int((~np.isfinite(surface.losses)).sum())
    assert 0 < lost < 25
    assert math.isfinite(surface.losses[2, 2])
    assert surface.meta.document["not_finite"] == lost
    assert surface.meta.document["lowest"] == surface.losses[np.isfinite(surface.losses)].min()
    assert surface.meta.document["per_step"]["99"][-1] is None
    kept = read_surface(own_run)
    assert kept is not None
    assert np.array_equal(kept.losses, surface.losses, equal_nan=True)


def test_surfaces_of_path_and_hessian_store_shares_and_eigenvalues(run_of_kind: Kind) -> None:
    run = run_of_kind("pre", "full")
    path = measure_surface(run, SurfaceSettings(grid=5, directions="path"), RUNTIME)
    assert path.path is not None
    assert len(path.path) == 5
    assert np.abs(path.path[-1]).max() < 1e-6
    assert 0 < sum(path.meta.document["share_of_path"]) <= 1 + 1e-9
    top = measure_surface(run, SurfaceSettings(grid=5, directions="hessian"), RUNTIME)
    assert top.meta.document["eigenvalues"][0] > top.meta.document["eigenvalues"][1]
    kept = read_surface(run, "path")
    assert kept is not None
    assert np.array_equal(kept.losses, path.losses)


def test_along_its_top_eigenvector_the_loss_bends_by_the_top_eigenvalue(tmp_path: Path) -> None:
    (run,) = trained([tiny(1, "full", model={"activation": "gelu"})], tmp_path)
    surface = measure_surface(run, SurfaceSettings(grid=5, directions="hessian", extent=0.004), RUNTIME)
    across, up = surface.losses[2], surface.losses[:, 2]
    for line, length, value in zip(
        (across, up), surface.meta.document["lengths"], surface.meta.document["eigenvalues"], strict=True
    ):
        bend = (line[0] - 2 * line[2] + line[4]) / (0.004 * length) ** 2
        assert bend == pytest.approx(value, rel=0.02)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"grid": 4}, "grid = 4 must be at least 5"),
        ({"grid": 7.5}, "grid = 7.5 must be a whole number"),
        ({"extent": 0.0}, "extent = 0.0 must be a positive number"),
        ({"extent": math.nan}, "extent = nan"),
        ({"directions": "randon"}, "did you mean 'random'?"),
        ({"rows": 0}, "rows = 0 must be at least 1"),
        ({"seed": -1}, "seed = -1"),
        ({"precision": "fp16"}, "unknown precision 'fp16'"),
    ],
)
def test_invalid_settings_are_refused_by_name(fields: dict, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        SurfaceSettings(**fields)
    assert words in str(caught.value)


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    config = tiny(1)
    task = config.task.build()
    run = RunStore(tmp_path).create_or_open(config.run_id(task), document(config, task))
    with pytest.raises(UsageError, match="no checkpoint yet; train it first"):
        measure_surface(run, FEW, RUNTIME)


def test_a_run_that_diverged_is_refused(tmp_path: Path) -> None:
    (run,) = trained([tiny(1, lr=1e38, clip=None)], tmp_path)
    with pytest.raises(Diverged, match=f"run {run.id} diverged at step"):
        measure_surface(run, FEW, RUNTIME)


def test_the_path_needs_kept_checkpoints(tmp_path: Path) -> None:
    (run,) = trained([tiny(1, epochs=1)], tmp_path)
    with pytest.raises(UsageError, match="keep some along training"):
        measure_surface(run, SurfaceSettings(grid=5, directions="path"), RUNTIME)


def test_data_and_shapes_that_do_not_fit_the_run_are_refused(own_run: RunDirectory) -> None:
    run = forge(own_run, lambda fields: fields["attention"].update(mechanism="topk:30"))
    with pytest.raises(UsageError, match="k = 30 exceeds the sequence length 8"):
        measure_surface(run, FEW, RUNTIME)
    run = forge(run, lambda fields: (fields["attention"].update(mechanism="topk:3"), fields["model"].update(d_mlp=16)))
    with pytest.raises(CorruptData, match="parameters is"):
        measure_surface(run, FEW, RUNTIME)
    run = forge(run, lambda fields: (fields["model"].update(d_mlp=8), fields["task"]["options"].update(length=9)))
    with pytest.raises(UsageError, match="trained on other data"):
        measure_surface(run, FEW, RUNTIME)
    run = forge(run, lambda fields: (fields["task"]["options"].update(length=8), fields["sizes"].update(seq_len=9)))
    with pytest.raises(UsageError, match=r"has a model for .*'seq_len': 9.*rows of .*'seq_len': 8"):
        measure_surface(run, FEW, RUNTIME)


def test_a_stored_surface_whose_arrays_do_not_fit_is_damaged(own_run: RunDirectory) -> None:
    name = _own_name(measure_surface(own_run, FEW, RUNTIME))
    arrays = read_arrays(own_run, name)
    assert arrays is not None
    write_arrays(own_run, name, arrays | {"losses": np.zeros((3, 3))})
    with pytest.raises(CorruptData, match="grid = 7, but its losses have shape"):
        read_surface(own_run)
    write_arrays(own_run, name, {"key": arrays["key"]})
    with pytest.raises(CorruptData, match="is not a surface"):
        read_surface(own_run)


def test_a_run_that_was_trained_further_is_measured_again(tmp_path: Path) -> None:
    first = tiny(1, epochs=2)
    (run,) = trained([first], tmp_path)
    assert run_of(first, tmp_path).id == run.id
    before = measure_surface(run, FEW, RUNTIME).meta.document
    assert before["step"] == 10
    assert before["epoch"] == 2.0
