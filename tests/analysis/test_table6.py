"""Table 6: the paper's numbers give the conditions that were worked out from them, and ours are put beside them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from semfocus.analysis.table6 import COLUMNS, PUBLISHED, condition, one_model, published, two_models
from semfocus.errors import UsageError
from semfocus.measurements import Dispersion
from tests.measurements import payloads

# W at 75 / 90 / 95 / 100, then X.
WORKED_OUT = {
    "listops": ((0.9703, 0.6885, 0.5639, 0.5651), (0.8982, 0.6736, 0.5864, 0.6117)),
    "parity": ((0.7041, 0.7586, 0.8030, 1.2200), (0.7225, 0.8076, 0.8617, 1.2863)),
    "even_pairs": ((3.1737, 1.9757, 1.3146, 1.7990), (3.0245, 2.1020, 1.4238, 1.8975)),
    "missing_duplicate": ((1.5310, 1.0881, 0.6658, 1.1427), (1.5286, 1.1520, 0.7184, 1.2039)),
}


@pytest.mark.parametrize("task", list(WORKED_OUT))
def test_the_paper_s_numbers_give_its_conditions_to_four_digits(task: str) -> None:
    row = published(task)
    assert row is not None
    for name, values in zip(("w", "x"), WORKED_OUT[task], strict=True):
        shown = [row["cells"][percent][name] for percent in COLUMNS]
        assert [round(value, 4) for value in shown] == list(values)


def test_vacuous_cells_of_the_paper_are_marked() -> None:
    cells = [published(task)["cells"][percent] for task in PUBLISHED for percent in COLUMNS]
    assert sum("full" in cell["vacuous"] for cell in cells) == 15
    assert [cell["sinks_outside"] for cell in cells[:4]] == [True, True, False, False]
    assert published("cycle_navigation") is None


def test_sharper_bounds_never_favour_heavy_hitters_in_the_weights() -> None:
    for task in PUBLISHED:
        for cell in published(task)["cells"].values():
            assert cell["sharper"]["w"] >= 1
    assert condition(1.0, 0.5, 4.0, 5, k=5, length=40).sharper.w == 1


def test_ties_and_masks_that_drop_nothing_are_infinite_or_finite_and_never_nan() -> None:
    tie = condition(2.0, 1.0, 0.0, 5, k=5, length=40)
    assert (tie.w, tie.x) == (math.inf, math.inf)
    assert tie.to_dict()["w"] is None
    assert tie.to_dict()["infinite"] == ["w", "x"]
    nothing_dropped = condition(2.0, 2.0, math.inf, 5, k=5, length=5)
    assert nothing_dropped.w == pytest.approx((2.0 + math.log(2)) / 2.0)
    flat = condition(0.0, 0.0, 0.0, 5, k=5, length=40)
    assert flat.w == math.inf
    for cell in (tie, nothing_dropped, flat):
        json.dumps(cell.to_dict(), allow_nan=False)


def test_no_constant_in_the_tokens_is_certified_where_queries_see_different_keys() -> None:
    numbers = {"delta_full": 2.0, "delta_heavy": 1.0, "separation": 0.5, "in_degree": 8, "k": 5, "length": 40}
    even, uneven = condition(**numbers), condition(**numbers, uneven=True)
    assert even.sharper.x is not None
    assert uneven.sharper.x is None
    assert (uneven.sharper.w, uneven.sharper.softmax, uneven.x) == (even.sharper.w, even.sharper.softmax, even.x)
    assert (even.to_dict()["uneven"], uneven.to_dict()["uneven"]) == (False, True)


def measured(fields: dict[str, Any] | None = None, **numbers: float | None) -> Dispersion:
    last = payloads.checkpoint(epoch=1.0, **numbers) | (fields or {})
    return Dispersion.from_payload(payloads.dispersion({"last": last}))


def test_two_models_take_the_full_dispersion_from_one_and_the_rest_from_the_other() -> None:
    full = measured(delta=9.0, delta_full=9.0, delta_heavy=4.0, separation=0.5, in_degree=7)
    heavy = measured(delta=2.0, delta_full=6.0, delta_heavy=2.0, separation=0.1, in_degree=8)
    cell = two_models(full, heavy)["cells"]["95"]
    assert [cell[name] for name in ("delta_full", "delta_heavy", "separation", "in_degree")] == [9.0, 2.0, 0.1, 8]
    alone = one_model(heavy)["cells"]["95"]
    assert [alone[name] for name in ("delta_full", "delta_heavy", "separation", "in_degree")] == [6.0, 2.0, 0.1, 8]


def test_measurements_that_do_not_say_how_many_keys_are_seen_are_taken_for_the_worst() -> None:
    older = measured(delta=2.0, delta_full=2.0, delta_heavy=1.0, separation=0.5, in_degree=8)
    keys = {"fewest_keys": 40, "uneven": 0}
    newer = measured(keys, delta=2.0, delta_full=2.0, delta_heavy=1.0, separation=0.5, in_degree=8)
    row = one_model(newer)
    assert (row["fewest"], row["uneven"], row["epochs"]) == (40, False, [1.0])
    assert row["cells"]["100"]["vacuous"] == []
    assert row["cells"]["100"]["sharper"]["x"] is not None
    for row in (one_model(older), two_models(older, newer), two_models(newer, older)):
        assert (row["fewest"], row["uneven"]) == (2, True)
        assert row["cells"]["100"]["vacuous"] == ["full", "heavy"]
        assert row["cells"]["100"]["sharper"]["x"] is None


def test_a_tie_is_floored_as_in_the_paper_and_an_infinite_separation_is_one() -> None:
    tied = measured(delta=2.0, delta_full=6.0, delta_heavy=2.0, separation=0.0, in_degree=8)
    assert one_model(tied)["cells"]["100"]["separation"] == 1e-9
    numbers = {"delta": 2.0, "delta_full": 2.0, "delta_heavy": 2.0, "separation": None, "in_degree": 8}
    assert one_model(measured(**numbers))["cells"] == {}
    whole = measured({"infinite": {"separation": list(COLUMNS)}}, **numbers)
    assert one_model(whole)["cells"]["100"]["infinite"] == ["separation"]


def test_a_checkpoint_that_was_not_measured_is_named() -> None:
    with pytest.raises(UsageError, match="'7' was not measured; there are: last"):
        one_model(measured(delta=1.0), "7")
