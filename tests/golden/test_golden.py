"""The small runs and the page give what they gave: to the bit where the values were recorded, closely elsewhere."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.golden.record import PAGE, RUNS, fingerprint, record_page, record_runs

# Relative or absolute, on another processor or another torch. The page rounds to four digits: one step of the last.
TOLERANCE, PAGE_TOLERANCE = 1e-4, 1.01e-3


def test_runs_have_the_same_ids_metrics_and_parameters(tmp_path: Path) -> None:
    kept = json.loads(RUNS.read_text(encoding="utf-8"))
    exact = kept["fingerprint"] == fingerprint()
    found = record_runs(tmp_path)
    if not exact:
        for runs in (kept["runs"], found):
            for run in runs.values():
                del run["parameters"]
    _report(kept["runs"], found, 0 if exact else TOLERANCE)


def test_a_comparison_and_its_page_have_the_same_values(tmp_path: Path) -> None:
    kept = json.loads(PAGE.read_text(encoding="utf-8"))
    exact = kept["fingerprint"] == fingerprint()
    _report(kept["page"], record_page(tmp_path), 0 if exact else PAGE_TOLERANCE)


def _report(kept: dict[str, Any], found: dict[str, Any], tolerance: float) -> None:
    """Fail with a line for each place that differs, a few for each case; tolerance 0: equal to the bit."""
    lines: list[str] = []
    for name in dict.fromkeys([*kept, *found]):
        if name not in kept or name not in found:
            lines.append(f"{name}: {'not recorded' if name in found else 'recorded, but not run'}")
            continue
        differences = list(_differences(kept[name], found[name], tolerance))
        lines += [f"{name}: {line}" for line in differences[:4]]
        lines += [f"{name}: and {len(differences) - 4} more"] if len(differences) > 4 else []
    how = f"within {tolerance:g}" if tolerance else "to the bit"
    assert not lines, f"not equal {how}:\n" + "\n".join(lines)


def _differences(kept: Any, found: Any, tolerance: float, place: str = "") -> Iterator[str]:
    """Where two plain values differ, and how."""
    if isinstance(kept, dict) and isinstance(found, dict):
        for key in dict.fromkeys([*kept, *found]):
            if key not in kept or key not in found:
                yield f"{place}.{key} is {'new' if key in found else 'missing'}"
            else:
                yield from _differences(kept[key], found[key], tolerance, f"{place}.{key}" if place else key)
    elif isinstance(kept, list) and isinstance(found, list):
        if len(kept) != len(found):
            yield f"{place} has {len(found)} entries, had {len(kept)}"
        for index, (old, new) in enumerate(zip(kept, found, strict=False)):
            yield from _differences(old, new, tolerance, f"{place}[{index}]")
    elif not _same(kept, found, tolerance):
        by = f" (differs by {found - kept:.3g})" if _number(kept) and _number(found) else ""
        yield f"{place} was {kept!r}, is {found!r}{by}"


def _same(kept: Any, found: Any, tolerance: float) -> bool:
    if tolerance and _number(kept) and _number(found):
        return math.isclose(kept, found, rel_tol=tolerance, abs_tol=tolerance)
    return repr(kept) == repr(found)  # tells 1 from 1.0 and 0.0 from -0.0, and finds NaN equal to itself


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
