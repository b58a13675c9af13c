"""The part of the page about measurements: what is stored with runs is shown, and what is not one does no harm."""

from __future__ import annotations

import base64
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from semfocus.analysis.dispersion_vs_speedup import dispersion_against_speed, dispersion_points
from semfocus.analysis.results import Results
from semfocus.analysis.table6 import published, two_models
from semfocus.cli import app
from semfocus.errors import UsageError
from semfocus.measurements import Dispersion
from semfocus.report.figures.style import PALETTES
from semfocus.report.page.measured import measured
from semfocus.report.page.page import render
from semfocus.report.page.pictures import Drawn, PictureMaker, PictureSpec
from semfocus.store import RunDirectory
from semfocus.store.measurements import write_measurement
from semfocus.training.loading import document
from tests.report import measured as made_up
from tests.report.helpers import configs, made, made_as
from tests.report.pages import NASTY, text_of

TITLES = [
    "Dispersion over training", "Table 6, topk:5", "Stability of the masks", "Loss surface",
    "Slopes of the loss surface", "Sharpness along training",
]  # fmt: skip


def measured_store(root: Path, tasks: tuple[str, ...] = ("even_pairs",), seeds: int = 1, **kwargs: Any) -> Path:
    for config in configs(tasks, ("full", "topk:5"), seeds, training__epochs=12):
        made_up.measure(made(root, config), **kwargs)
    return root


def runs_of(root: Path) -> dict[str, RunDirectory]:
    runs = [RunDirectory(root / record.id) for record in Results.load(root).records]
    return {run.config()["attention"]["mechanism"]: run for run in runs}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = measured_store(tmp_path_factory.mktemp("made") / "runs")
    for config in configs(("parity",), ("full", "topk:5"), 1, training__epochs=12):
        run = made(root, config)
        write_measurement(run, "dispersion", made_up.dispersion(run))
    return render(Results.load(root))


class Undrawn(dict[str, Any], PictureMaker):
    """Draws nothing; keeps by title what each picture would be drawn from."""

    def __call__(self, spec: PictureSpec, beside: Path | None = None) -> dict[str, Any]:
        assert isinstance(spec.draw, partial)
        self[spec.title] = spec.draw.args
        data = f"data:{spec.title}"
        return {"title": spec.title, "note": spec.note, "light": data, "dark": data, "width": None}


@pytest.fixture
def undrawn() -> Undrawn:
    return Undrawn()


def test_runs_without_measurements_have_no_such_section(tmp_path: Path) -> None:
    for config in configs(seeds=1, training__epochs=6):
        made(tmp_path / "runs", config)
    page = render(Results.load(tmp_path / "runs"))
    assert 'id="measured"' not in page
    assert "#measured" not in page
    assert "data:image" not in page


def test_every_kind_of_measurement_is_a_panel_of_its_task(page: str) -> None:
    part = page[page.index('id="measured"') : page.index('<section id="runs">')]
    titles = re.findall(r"<h[34][^>]*><bdi>(.*?)</bdi>", part)
    start, end = (f"Dispersion against speed-up, {when} of training" for when in ("start", "end"))
    assert titles == [start, end, "even_pairs", *TITLES, "parity", *TITLES[:2]]
    assert "Rank correlation" not in text_of(page)  # it stands in the picture
    assert "not enough data: 2 items" in _picture(part, 0).decode()


def _picture(part: str, number: int) -> bytes:
    return base64.b64decode(re.findall(r'src="data:image/(?:svg\+xml|webp);base64,([^"]+)"', part)[number])


def test_pictures_are_inside_the_page_once_for_light_and_once_for_dark(page: str) -> None:
    images = re.findall(r'<img class="on-(light|dark)" src="data:image/(svg\+xml|webp);base64,[^"]+"', page)
    assert len(images) == len(re.findall("<img", page)) == 2 * (2 + 5 + 1)
    assert [theme for theme, _ in images] == ["light", "dark"] * 8
    assert [kind for _, kind in images].count("webp") == 2
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:image/)""", page)
    assert " style=" not in page
    for place, theme in ((4, "light"), (5, "dark")):
        drawn = _picture(page, place).decode()  # dispersion over training
        assert "The k heaviest keys" in drawn
        assert PALETTES[theme].ground in drawn


def test_table_6_has_w_and_x_of_the_runs_beside_the_paper_s_and_marks_what_is_vacuous(tmp_path: Path) -> None:
    root = measured_store(tmp_path / "runs")
    runs = runs_of(root)
    own = two_models(*(Dispersion.from_payload(made_up.dispersion(runs[name])) for name in ("full", "topk:5")))
    paper = published("even_pairs")
    assert paper is not None
    page = render(Results.load(root))
    table = page[page.index("Table 6, topk:5</bdi>") :]
    lines = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", line) for line in re.findall(r"<tr.*?</tr>", table, re.DOTALL)]
    by_line = {(line[0], line[1]): line for line in lines[1:]}
    for row, line in ((own, by_line["75\u00a0%", "two models, 1 pair"]), (paper, lines[3])):
        cell = row["cells"]["75"]
        assert line[6:8] == [f"{cell['w']:.3g}", f"{cell['x']:.3g}"]
        assert line[2] == f"{cell['delta_full']:.3g}"
        assert ("vacuous" in line[-1]) == bool(cell["vacuous"])
    assert lines[3][1] == "the paper"
    assert lines[3][6] == "3.17"  # worked out from the paper's numbers
    worst = re.findall(r"<tr.*?</tr>", table, re.DOTALL)[12]
    assert "the paper" in worst
    assert worst.count('class="number vacuous"') == 4  # W, X and what the sharper bounds say


def test_numbers_are_medians_over_seeds_and_pairs_are_of_one_seed(tmp_path: Path, undrawn: Undrawn) -> None:
    root = measured_store(tmp_path / "runs", seeds=3)
    words = text_of(render(Results.load(root), picture=undrawn))
    assert "two models, 3 pairs" in words
    assert "Median over 3 seeds." in words
    (lines,) = undrawn["Dispersion over training"]
    own = [run for run in Results.load(root).records if run.mechanism == "full"]
    last = [made_up.dispersion(RunDirectory(root / run.id))["checkpoints"]["20"]["delta_full"]["95"] for run in own]
    assert lines[0]["mechanism"] == "full"
    assert lines[0]["checkpoints"]["20"]["delta_full"]["95"] == pytest.approx(sorted(last)[1])


def test_surfaces_stand_side_by_side_full_first_and_of_one_seed(tmp_path: Path, undrawn: Undrawn) -> None:
    root = measured_store(tmp_path / "runs", seeds=2)
    first = min(record.seed for record in Results.load(root).records)
    words = text_of(render(Results.load(root), picture=undrawn))
    (surfaces,) = undrawn["Loss surface"]
    assert list(surfaces) == ["full", "topk:5"]
    assert f"seed {first}, 21 x 21 points over 100 rows, one colour scale for all" in words


def test_what_was_measured_in_another_way_is_not_mixed_in(tmp_path: Path, undrawn: Undrawn) -> None:
    root = measured_store(tmp_path / "runs", seeds=2)
    run = runs_of(root)["topk:5"]
    write_measurement(run, "dispersion", made_up.dispersion(run) | {"split": "heldout"})
    words = text_of(render(Results.load(root), picture=undrawn))
    assert "1 measured in another way left out." in words
    assert "two models, 1 pair" in words


@pytest.mark.parametrize("mechanism", ["full", "topk:5"])
@pytest.mark.parametrize("name", ["dispersion", "mask_stability"])
def test_runs_of_one_mechanism_are_of_one_k(tmp_path: Path, undrawn: Undrawn, mechanism: str, name: str) -> None:
    root = measured_store(tmp_path / "runs", seeds=3)
    run = runs_of(root)[mechanism]
    write_measurement(run, name, getattr(made_up, name)(run) | {"k": 2})
    notes = _notes(root, undrawn)
    title = {"dispersion": "Dispersion over training", "mask_stability": "Stability of the masks"}[name]
    assert "Median over 2 to 3 seeds. 1 measured in another way left out." in notes[title]


def test_mechanisms_may_have_each_a_k_of_its_own(tmp_path: Path, undrawn: Undrawn) -> None:
    root = measured_store(tmp_path / "runs")
    run = runs_of(root)["topk:5"]
    write_measurement(run, "dispersion", made_up.dispersion(run) | {"k": 8})
    notes = _notes(root, undrawn)
    assert "left out" not in notes["Dispersion over training"]
    assert [line["mechanism"] for line in undrawn["Dispersion over training"][0]] == ["full", "topk:5"]


def test_masks_of_different_checkpoints_are_not_mixed_and_the_last_is_shown(tmp_path: Path, undrawn: Undrawn) -> None:
    root = measured_store(tmp_path / "runs")
    run = runs_of(root)["full"]
    write_measurement(run, "mask_stability", made_up.mask_stability(run) | {"checkpoint": "0"})
    assert "One seed. 1 measured in another way left out." in _notes(root, undrawn)["Stability of the masks"]
    assert [line["mechanism"] for line in undrawn["Stability of the masks"][0]] == ["topk:5"]


def _notes(root: Path, undrawn: Undrawn) -> dict[str, str]:
    section = measured(Results.load(root), undrawn)
    return {panel["title"]: panel["note"] for group in section.groups for panel in group["panels"]}


def test_a_checkpoint_that_does_not_say_how_few_keys_a_query_sees_may_have_queries_of_two(tmp_path: Path) -> None:
    (run,) = (made(tmp_path / "runs", config) for config in configs(("parity",), ("full",), 1))
    payload = made_up.dispersion(run)
    last = Dispersion.from_payload(payload).checkpoints["last"]
    assert (last.fewest_keys, last.uneven) == (2, 1)
    payload["checkpoints"]["last"] |= {"fewest_keys": 7, "uneven": 0}
    last = Dispersion.from_payload(payload).checkpoints["last"]
    assert (last.fewest_keys, last.uneven) == (7, 0)


BROKEN: list[tuple[str, Any]] = [
    ("dispersion", {}),
    ("dispersion", {"k": 5, "rows": 1, "checkpoints": {"last": 3}}),
    ("dispersion", {"k": 5, "rows": 1, "checkpoints": {"last": {"epoch": 0, "keys": 4, "delta": {"75": "high"}}}}),
    ("dispersion", {"k": 0, "rows": 1, "checkpoints": {}}),
    ("mask_stability", {"k": 5, "rows": 1, "noise": [1], "kept": [1, 2], "by_separation": {"borders": [], "kept": []}}),
    ("mask_stability", {"k": 5, "rows": 1, "noise": [None], "kept": [1.0], "by_separation": 7}),
    ("surface", {"directions": "sideways", "squares": []}),
    ("surface", {"directions": "random", "squares": [0.1], "grid": 10**9, "extent": 1, "rows": 1}),
    ("sharpness", {"epochs": [0, 1], "gradient_norm": [1], "hessian_top": [1, 2], "rows": 1}),
    ("sharpness", {"epochs": [1e300], "gradient_norm": [1], "hessian_top": [1], "rows": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "payload"), BROKEN)
def test_a_measurement_that_is_not_one_is_named_and_the_rest_is_shown(
    tmp_path: Path, undrawn: Undrawn, name: str, payload: dict[str, Any]
) -> None:
    root = measured_store(tmp_path / "runs")
    run = runs_of(root)["topk:5"]
    write_measurement(run, name, payload)
    words = text_of(render(Results.load(root), picture=undrawn))
    assert f"{run.id} corrupt: the measurement '{name}' is not shown:" in words
    assert "1 not readable as a run" in words
    assert "Loss surface" in undrawn  # of the full run, or of both


def test_a_surface_without_its_losses_is_left_out_and_a_damaged_one_is_named(tmp_path: Path, undrawn: Undrawn) -> None:
    root = measured_store(tmp_path / "runs")
    runs = runs_of(root)
    (runs["full"].path / "measurements" / "surface.safetensors").unlink()
    (runs["topk:5"].path / "measurements" / "surface.safetensors").write_bytes(b"\x00" * 40)
    words = text_of(render(Results.load(root), picture=undrawn))
    assert "Loss surface" not in undrawn
    assert "Slopes of the loss surface" in undrawn
    assert f"{runs['topk:5'].id} its loss surface is not shown:" in words


def test_pictures_beyond_the_budget_are_left_out_and_tables_stay(tmp_path: Path, undrawn: Undrawn) -> None:
    results = Results.load(measured_store(tmp_path / "runs", ("even_pairs", "parity")))
    section = measured(results, undrawn, max_bytes=600)  # what stands for a picture is its title: one task has room
    panels = [*section.cross_task, *(panel for group in section.groups for panel in group["panels"])]
    assert sum(len(panel.get("light", "")) + len(panel.get("dark", "")) for panel in panels) <= 600
    assert sum(panel["note"].startswith("Left out, for the page would grow too large") for panel in panels) == 1
    assert sum(panel["title"] == "Table 6, topk:5" for panel in panels) == 2


def test_what_has_not_changed_is_not_drawn_again_and_what_has_is(tmp_path: Path) -> None:
    drawn: list[str] = []

    def note(draw: Any, kind: str) -> Drawn:
        drawn.append(draw.func.__name__)
        return Drawn("data:light", "data:dark", None)

    picture = PictureMaker(note)
    root = measured_store(tmp_path / "runs")
    first = render(Results.load(root), picture=picture)
    assert len(drawn) == 5
    assert render(Results.load(root), picture=picture) == first
    assert len(drawn) == 5
    run = runs_of(root)["topk:5"]
    write_measurement(run, "sharpness", made_up.sharpness(run) | {"hessian_top": [9.0, 8.0, 7.0, 6.0]})
    render(Results.load(root), picture=picture)
    assert drawn[5:] == ["draw_sharpness"]


def test_markup_in_a_mechanism_s_name_stays_text_in_every_panel(tmp_path: Path) -> None:
    (config,) = configs(seeds=1, mechanisms=["full"], training__epochs=4)
    fields = document(config, config.task.build()) | {"label": "x"}
    fields["attention"] |= {"mechanism": f"topk:5{NASTY}"}
    run = made_as(tmp_path / "runs", config, fields)
    write_measurement(run, "dispersion", made_up.dispersion(run))
    page = render(Results.load(tmp_path / "runs"))
    assert page.count("<script") == 2
    assert not re.findall(r"<img(?! class=\"on-)", page)
    assert f"Table 6, topk:5{NASTY}" not in page
    drawn = _picture(page, 0).decode()
    assert "alert(1)" in drawn
    assert "<script" not in drawn


def test_masks_of_two_tasks_are_held_against_how_soon_they_learn(tmp_path: Path, undrawn: Undrawn) -> None:
    root = measured_store(tmp_path / "runs", ("even_pairs", "parity"), seeds=2)
    (panel,) = [one for one in measured(Results.load(root), undrawn).cross_task if one["title"].startswith("Stability")]
    (points,) = undrawn["Stability of masks against speed"]
    assert [(point.task, point.seeds, point.kept is None) for point in points] == [
        ("even_pairs", 2, False), ("parity", 2, False),
    ]  # fmt: skip
    assert "left out" not in panel["note"]


def test_dispersion_against_speed_up_is_drawn_from_the_command_line(tmp_path: Path) -> None:
    tasks = ("even_pairs", "parity", "missing_duplicate", "cycle_navigation")
    for config in configs(tasks, ("full", "topk:5"), 2, training__epochs=60):
        run = made(tmp_path / "runs", config)
        write_measurement(run, "dispersion", made_up.dispersion(run))
    figures = tmp_path / "figures"
    result = CliRunner().invoke(app, ["theory", "speed", "--runs", str(tmp_path / "runs"), "--out", str(figures)])
    assert result.exit_code == 0, result.output
    points = dispersion_points(Results.load(tmp_path / "runs").records, Results.load(tmp_path / "runs").measurements)
    correlation = dispersion_against_speed(points)
    assert correlation.rho is not None
    for point in points:
        assert re.search(rf"{point.task}\s+{point.start:.3g}\s+{point.end:.3g}\s", result.output)
    assert f"start of training: Rank correlation {correlation.rho:.2f} (95 %:" in result.output
    names = {f"dispersion-speed-{when}{end}" for when in ("start", "end") for end in ("", "-dark")}
    assert {path.name for path in figures.iterdir()} == {f"{n}.{kind}" for n in names for kind in ("svg", "pdf", "png")}
    assert "missing_duplicate" in (figures / "dispersion-speed-start.svg").read_text()


def test_without_a_measured_pair_the_command_says_what_to_measure(tmp_path: Path) -> None:
    for config in configs(seeds=1, training__epochs=6):
        made(tmp_path / "runs", config)
    result = CliRunner().invoke(app, ["theory", "speed", "--runs", str(tmp_path / "runs")])
    assert isinstance(result.exception, UsageError)
    assert "no task with a measured dispersion of both full and topk:5" in str(result.exception)
    assert "semfocus diagnose" in str(result.exception)
