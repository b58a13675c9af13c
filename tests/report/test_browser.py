"""The page in a real browser with the network off. Without Chromium these tests skip and say so: `make browser`."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from semfocus.report.page.page import write_page
from semfocus.store.measurements import write_arrays, write_measurement
from semfocus.training.loading import document
from tests.chromium import CHROMIUM
from tests.report.helpers import configs, made, made_as, rows, store
from tests.report.measured import mask_stability, surface

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install 'semfocus[dev]'"
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: make browser")
NASTY = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
NASTY_TASK = "<script>alert(1)</script><b onclick=alert(2)>x</b>"  # no dot: it would be taken for a file's name


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # root has no other way
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks, one under two settings, with a label that a spreadsheet would run."""
    root = tmp_path_factory.mktemp("made")
    store(root / "runs", ("even_pairs", "parity"), ("full", "topk:5", "banded:5"), 3, training__epochs=14)
    store(root / "runs", ("parity",), ("full", "topk:5"), 2, training__epochs=14, model__blocks=2)
    (config,) = configs(("parity",), ("topk:9",), 1, training__epochs=14)
    made(root / "runs", config.model_copy(update={"label": "=1+1", "seed": 2**62 + 1}), "diverged", rows(config)[:3])
    return write_page(root / "runs", root / "report.html")


@dataclass
class Visit:
    """An open page, and everything it tried or complained about."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    contexts: list[Any] = []

    def open_page(path: Path, **options: Any) -> Visit:
        context = browser.new_context(offline=True, accept_downloads=True, **options)
        contexts.append(context)
        visited = Visit(context.new_page())
        visited.page.on("request", lambda request: visited.requests.append(request.url))
        visited.page.on("console", lambda message: visited.complaints.append(message.text))
        visited.page.on("dialog", lambda dialog: (visited.complaints.append(dialog.message), dialog.dismiss()))
        visited.page.on("pageerror", lambda error: visited.complaints.append(str(error)))
        visited.page.goto(path.as_uri())
        return visited

    yield open_page
    for context in contexts:
        context.close()


def test_it_opens_with_the_network_off_asks_for_nothing_and_complains_of_nothing(
    report: Path, visit: Callable[..., Visit]
) -> None:
    visited = visit(report)
    assert visited.page.locator("h1").inner_text().startswith("topk:5 needs ")
    assert visited.page.locator(".group").count() == 3
    assert visited.page.locator("[data-chart=curves] svg path.line").count() == 3 + 3 + 2 + 1  # and the one of topk:9
    assert visited.page.locator("[data-chart=waiting] svg path.line").count() == 3 + 3 + 2 + 1
    assert visited.requests == [report.as_uri()]
    assert visited.complaints == []


def test_a_mechanism_is_hidden_and_shown_everywhere_at_once(report: Path, visit: Callable[..., Visit]) -> None:
    page = visit(report).page
    lines = page.locator("path.line")
    before = lines.count()
    first = page.locator(".toggle", has_text="topk:5").first
    first.click()
    assert first.get_attribute("aria-pressed") == "false"
    assert lines.count() == before - 6  # two charts in each of three groups
    page.reload()
    assert lines.count() == before - 6  # a page that is written again keeps what its reader chose
    page.locator(".all").first.click()
    assert lines.count() == before


def test_the_metric_single_seeds_and_the_scale_can_be_chosen(report: Path, visit: Callable[..., Visit]) -> None:
    page = visit(report).page
    panel = page.locator("[data-chart=curves]").first
    assert "95%" in panel.locator("svg[viewBox]").text_content()
    panel.locator("select").select_option("heldout_accuracy")
    assert "chance, majority, shortcut" in panel.locator("svg[viewBox]").text_content()
    assert panel.locator("path.one").count() == 0
    assert panel.locator("path.band").count() == 3
    panel.get_by_label("each seed").check()
    assert panel.locator("path.one").count() == 9
    start = panel.locator("path.line").first.get_attribute("d")
    panel.get_by_label("log epochs").check()
    assert panel.locator("path.line").first.get_attribute("d") != start


def test_hovering_shows_values_and_dragging_zooms(report: Path, visit: Callable[..., Visit]) -> None:
    page = visit(report, viewport={"width": 1200, "height": 900}).page
    canvas = page.locator("[data-chart=curves] .canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, middle)
    assert canvas.locator(".tip").inner_text().startswith("epoch 7")
    assert canvas.locator(".tip tr").count() == 3
    assert canvas.locator(".tip").bounding_box()["height"] < 130  # a line for each
    whole = canvas.locator("svg[viewBox]").text_content()
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, middle, steps=3)
    page.mouse.up()
    assert canvas.locator("svg[viewBox]").text_content() != whole
    canvas.dblclick()
    assert canvas.locator("svg[viewBox]").text_content() == whole


def test_everything_can_be_done_by_keyboard_and_focus_is_seen(report: Path, visit: Callable[..., Visit]) -> None:
    page = visit(report).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    chart = page.locator("[data-chart=curves] .canvas").first
    chart.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator("#spoken").inner_text().endswith("epoch 2")
    assert "topk:5" in page.locator("#spoken").inner_text()
    whole = chart.locator("svg[viewBox]").text_content()
    page.keyboard.press("+")
    assert chart.locator("svg[viewBox]").text_content() != whole
    page.keyboard.press("0")
    assert chart.locator("svg[viewBox]").text_content() == whole
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.locator(".toggle").first.focus()
    page.keyboard.press("Space")
    assert page.locator(".toggle").first.get_attribute("aria-pressed") == "false"
    page.locator("button.run").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("#run-dialog").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#run-dialog").is_visible()


def test_a_table_sorts_by_number_and_what_never_came_stands_last(report: Path, visit: Callable[..., Visit]) -> None:
    page = visit(report).page
    table = page.locator("table.data").first
    names = table.locator("tbody th bdi")
    assert names.all_inner_texts() == ["full", "topk:5", "banded:5"]
    button = table.get_by_role("button", name="median epochs")
    button.click()
    assert names.all_inner_texts() == ["topk:5", "full", "banded:5"]
    head = table.locator("th", has_text="median epochs")
    assert head.get_attribute("aria-sort") == "ascending"
    button.click()
    assert names.all_inner_texts() == ["banded:5", "full", "topk:5"]


def test_a_csv_downloads_and_no_cell_of_it_is_a_formula(
    report: Path, visit: Callable[..., Visit], tmp_path: Path
) -> None:
    page = visit(report).page
    saved = []
    for number, button in enumerate((page.locator("button.csv").first, page.locator("#runs button.csv"))):
        with page.expect_download() as download:
            button.click()
        saved.append(tmp_path / f"{number}.csv")
        download.value.save_as(saved[-1])
        assert download.value.suggested_filename == ("even-pairs-convergence.csv", "runs.csv")[number]
    table, runs = ([*csv.reader(path.read_text(encoding="utf-8-sig").splitlines())] for path in saved)
    assert table[0][:3] == ["mechanism", "seeds, by epoch", "median epochs"]
    assert [line[0] for line in table[1:]] == ["full", "topk:5", "banded:5"]
    assert table[1][1].startswith("seed ")
    assert len(runs) == 1 + 9 + 9 + 4 + 1
    labels = [line[-1] for line in runs[1:] if line[-1]]
    assert labels == ["'=1+1"]
    assert not [cell for line in (*table, *runs) for cell in line if cell.startswith(("=", "@", "\t"))]


def test_runs_are_found_by_words_and_each_opens_with_its_own_config(report: Path, visit: Callable[..., Visit]) -> None:
    page = visit(report).page
    page.locator("#find").fill("diverged topk:9")
    assert page.locator("#count").inner_text() == "1 runs"
    page.locator("#all-runs button.run:visible").click()
    config = json.loads(page.locator("#run-config").inner_text())
    assert config["attention"]["mechanism"] == "topk:9"
    assert config["label"] == "=1+1"
    assert config["seed"] == 2**62 + 1  # to the last digit
    assert config["training"]["epochs"] == 14
    assert "data" not in config


def test_markup_in_names_is_shown_as_text_and_never_runs(visit: Callable[..., Visit], tmp_path: Path) -> None:
    (config,) = configs(seeds=1, mechanisms=["full"], training__epochs=4)
    fields = document(config, config.task.build()) | {"label": NASTY}
    fields["task"] |= {"name": NASTY_TASK}
    fields["attention"] |= {"mechanism": NASTY}
    made_as(tmp_path / "runs", config, fields)
    visited = visit(write_page(tmp_path / "runs", tmp_path / "report.html", title="mine"))
    assert visited.page.title() == "mine"
    assert visited.page.locator(".task h2").inner_text() == NASTY_TASK
    assert NASTY in visited.page.locator(".toggle").first.inner_text()
    visited.page.locator("[data-chart=curves] .canvas").hover()
    assert NASTY in visited.page.locator(".tip").first.inner_text()
    visited.page.locator("button.run").click()
    assert visited.page.title() == "mine"
    assert visited.page.locator("img").count() == 0
    assert visited.requests[1:] == []
    assert visited.complaints == []


def test_a_script_that_got_in_would_not_run(report: Path, visit: Callable[..., Visit], tmp_path: Path) -> None:
    """Escaping is the first wall; the policy is the second."""
    page = report.read_text().replace(
        "</body>", "<script>document.title='owned'</script><img src='http://x.example/'></body>"
    )
    (tmp_path / "tampered.html").write_text(page)
    visited = visit(tmp_path / "tampered.html")
    assert visited.page.title() != "owned"
    assert any("Content Security Policy" in text for text in visited.complaints)


def test_dark_follows_the_system_and_the_button_and_paper_is_always_light(
    report: Path, visit: Callable[..., Visit]
) -> None:
    dark, light = "rgb(21, 23, 28)", "rgb(255, 255, 255)"
    page = visit(report, color_scheme="dark").page
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == dark
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(ground) == light
    page.emulate_media(media="screen", color_scheme="dark")
    page.locator("#theme").click()
    assert page.evaluate(ground) == light
    page.reload()
    assert page.evaluate(ground) == light
    page.locator("#theme").click()
    assert page.evaluate(ground) == dark


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_sticks_out_of_a_phone(report: Path, visit: Callable[..., Visit], width: int) -> None:
    page = visit(report, viewport={"width": width, "height": 800}).page
    assert page.evaluate("document.documentElement.scrollWidth") == width
    chart = page.locator("[data-chart=curves] svg[viewBox]").first.bounding_box()
    assert chart["x"] >= 0
    assert chart["x"] + chart["width"] <= width


@pytest.mark.parametrize(("size", "masks"), [((1280, 900), ("banded:5", "block_local:5")), ((390, 844), ())])
def test_every_setting_is_seen_without_scrolling(
    size: tuple[int, int], masks: tuple[str, ...], visit: Callable[..., Visit], tmp_path: Path
) -> None:
    """The sentences stood above the table of settings, which began where the screen ended."""
    mechanisms = ("full", "topk:5", "banded:5+1g", "block_local:5+1g", *masks)
    store(tmp_path, ("even_pairs", "parity", "listops"), mechanisms, 2)
    page = visit(write_page(tmp_path, tmp_path / "report.html"), viewport={"width": size[0], "height": size[1]}).page
    cells = page.locator("#top .heat td:not(:empty)")
    assert cells.count() == 3 * (len(mechanisms) - 1)
    for i in range(cells.count()):
        box = cells.nth(i).bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= size[0]
        assert box["y"] + box["height"] <= size[1]


def test_a_curve_of_a_single_evaluation_is_seen(visit: Callable[..., Visit], tmp_path: Path) -> None:
    """It was a line from a point to itself, which no browser draws."""
    store(tmp_path, ("parity",), ("full", "topk:5"), 1, training__epochs=1)
    page = visit(write_page(tmp_path, tmp_path / "report.html")).page
    assert page.locator("[data-chart=curves] circle.dot").count() == 2
    store(tmp_path / "more", ("parity",), ("full", "topk:5"), 1, training__epochs=3)
    page = visit(write_page(tmp_path / "more", tmp_path / "more.html")).page
    assert page.locator("[data-chart=curves] circle.dot").count() == 0


def test_without_scripts_words_and_tables_are_still_there(report: Path, visit: Callable[..., Visit]) -> None:
    page = visit(report, java_script_enabled=False).page
    assert "topk:5 needs" in page.locator("h1").inner_text()
    assert page.locator("table.data").count() == 2 * 3 + 1
    assert "need JavaScript" in page.locator("noscript").inner_text()


def test_an_empty_store_opens_without_a_complaint(visit: Callable[..., Visit], tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    visited = visit(write_page(tmp_path / "runs", tmp_path / "report.html"))
    assert "No runs yet" in visited.page.locator("h1").inner_text()
    assert visited.complaints == []


def test_measured_figures_are_seen_and_follow_the_theme(tmp_path: Path, visit: Callable[..., Visit]) -> None:
    for config in configs(("even_pairs",), ("full", "topk:5"), 1, training__epochs=6):
        run = made(tmp_path / "runs", config)
        write_measurement(run, "mask_stability", mask_stability(run))
        payload, arrays = surface(run, 11)
        write_measurement(run, "surface", payload)
        write_arrays(run, "surface", arrays)
    visited = visit(write_page(tmp_path / "runs", tmp_path / "report.html"), color_scheme="light")
    images = visited.page.locator("#measured img")
    assert images.count() == 2 * 3
    assert images.evaluate_all("all => all.every(image => image.complete && image.naturalWidth > 100)")
    light, dark = visited.page.locator("#measured .on-light"), visited.page.locator("#measured .on-dark")
    assert (light.first.is_visible(), dark.first.is_visible()) == (True, False)
    visited.page.locator("#theme").click()
    assert (light.first.is_visible(), dark.first.is_visible()) == (False, True)
    visited.page.emulate_media(media="print")
    assert (light.first.is_visible(), dark.first.is_visible()) == (True, False)
    assert visited.complaints == []
