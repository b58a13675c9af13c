"""Every measurement that a study may need, by name, made of many runs with the settings that are usual.

    for name in missing(run, ("lengths", "kept_keys")):
        MEASURES[name](run, Runtime())

`semfocus run STUDY --measure` makes those that the study names. Each is stored with its run, so that the same command
goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from semfocus.diagnostics.induction import measure_induction
from semfocus.diagnostics.kept_keys import measure_kept_keys
from semfocus.diagnostics.lengths import longest_trained, measure_lengths
from semfocus.diagnostics.masks import measure_mask_stability
from semfocus.diagnostics.runs import measure_run
from semfocus.diagnostics.smoothness import measure_smoothness
from semfocus.measurements import Dispersion, Induction, KeptKeys, LengthCurve, MaskStability, Smoothness, read
from semfocus.store import RunDirectory
from semfocus.training.loading import config_of
from semfocus.training.runtime import Runtime

TESTED, TIMES = 500, 12.5  # the longest length of a test: 500 where 40 were trained on, and no more


def lengths_to_test(longest: int) -> list[int]:
    """N, 2 N, 4 N, ... up to 12.5 N or 500, whichever is less: `[40, 80, 160, 320, 500]`."""
    end = max(longest + 1, min(TESTED, int(TIMES * longest)))
    doubled = [longest * 2**i for i in range(end.bit_length()) if longest * 2**i < end]
    return [*doubled, end]


def _lengths(run: RunDirectory, runtime: Runtime) -> None:
    measure_lengths(run, lengths_to_test(longest_trained(config_of(run))), runtime=runtime)


def _smoothness(run: RunDirectory, runtime: Runtime) -> None:
    measure_smoothness(run, runtime=runtime)


def _kept_keys(run: RunDirectory, runtime: Runtime) -> None:
    measure_kept_keys(run, runtime=runtime)


def _induction(run: RunDirectory, runtime: Runtime) -> None:
    measure_induction(run, runtime=runtime)


def _dispersion(run: RunDirectory, runtime: Runtime) -> None:
    measure_run(run, checkpoint="all", device=runtime.torch_device())


def _mask_stability(run: RunDirectory, runtime: Runtime) -> None:
    measure_mask_stability(run, device=runtime.torch_device())


MEASURES: dict[str, Callable[[RunDirectory, Runtime], None]] = {
    Dispersion.NAME: _dispersion,
    MaskStability.NAME: _mask_stability,
    LengthCurve.NAME: _lengths,
    KeptKeys.NAME: _kept_keys,
    Smoothness.NAME: _smoothness,
    Induction.NAME: _induction,
}


def missing(run: RunDirectory, names: Sequence[str]) -> list[str]:
    """Which of these measurements to make: those without one, and those by length or step, which may lack some."""
    whole = {Dispersion.NAME: Dispersion, MaskStability.NAME: MaskStability, KeptKeys.NAME: KeptKeys}
    return [name for name in names if name in MEASURES and (name not in whole or read(run, whole[name]) is None)]
