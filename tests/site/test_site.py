"""The site builds strictly, shows every public name, loads nothing from elsewhere, and its search works from a folder.

Without mkdocs or Chromium these tests skip and say so.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from semfocus.config import AttentionConfig, ModelConfig, RunConfig, TaskConfig, TrainingConfig
from tests.chromium import CHROMIUM

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'semfocus[docs]'")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed: pip install 'semfocus[docs]'")

ROOT = Path(__file__).parents[2]
NARROW = ("index.html", "kernels.html", "theory.html", "evidence.html", "reference/commands.html", "studies.html")
SCHEMES = {"light": "default", "dark": "slate"}
LOADS = r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^\"'>\s]+"


def hook(name: str) -> ModuleType:
    spec = spec_from_file_location(f"site_{name}", ROOT / "docs" / "hooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mkdocs(config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = mkdocs(ROOT / "mkdocs.yml", out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: make browser")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(offline=True)  # of its own: the site remembers which ground a reader chose
    yield context.new_page()
    context.close()


def test_a_built_page_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    found = {page.name: hits for page in pages if (hits := re.findall(LOADS, page.read_text(encoding="utf-8")))}
    assert found == {}


def test_search_finds_a_word_in_pages_opened_from_a_folder(site: Path, page: Page) -> None:
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((site / "index.html").as_uri())
    page.locator("input.md-search__input").fill("in-degree")
    first = page.locator(".md-search-result__item a").first
    first.wait_for(state="attached", timeout=30_000)
    assert page.locator(".md-search-result__item").count() >= 2
    assert [address for address in asked if not address.startswith(("file:", "data:", "blob:"))] == []
    assert complaints == []


@pytest.mark.parametrize("scheme", list(SCHEMES))
def test_no_page_is_wider_than_a_telephone(site: Path, page: Page, scheme: str) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.emulate_media(color_scheme=scheme)
    wide = {}
    for name in NARROW:
        page.goto((site / name).as_uri())
        assert page.locator("body").get_attribute("data-md-color-scheme") == SCHEMES[scheme]
        broken = "[...document.images].filter(i => getComputedStyle(i).display !== 'none' && !i.naturalWidth).length"
        assert page.evaluate(broken) == 0, f"{name} has a picture that does not load"
        wide[name] = page.evaluate("document.documentElement.scrollWidth")
    assert wide == dict.fromkeys(NARROW, 390)


CONTRAST = """element => {
  const channel = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4
  const light = c => { const [r, g, b] = c.match(/[0-9.]+/g).map(Number)
                       return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b) }
  const clear = c => /^rgba\\(.*, 0\\)$/.test(c)
  let ground = element
  while (ground.parentElement && clear(getComputedStyle(ground).backgroundColor)) ground = ground.parentElement
  const ink = light(getComputedStyle(element).color), paper = light(getComputedStyle(ground).backgroundColor)
  return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)
}"""


@pytest.mark.parametrize("scheme", list(SCHEMES))
def test_the_ways_into_the_site_can_be_read_on_either_ground(site: Path, page: Page, scheme: str) -> None:
    """On a dark ground two of the three were dark."""
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.goto((site / "index.html").as_uri())
    buttons = page.locator(".md-button")
    assert buttons.count() == 3
    page.wait_for_timeout(500)  # colours change gradually
    contrasts = [button.evaluate(CONTRAST) for button in buttons.all()]
    assert min(contrasts) > 4.5, contrasts


def test_public_names_without_page_or_docstring_are_faults(tmp_path: Path) -> None:
    (tmp_path / "little").mkdir()
    (tmp_path / "little" / "__init__.py").write_text(
        'from little.part import shown, bare\n__all__ = ["shown", "bare", "hidden", "gone"]\n'
        'def hidden():\n    """Documented, on no page."""\n'
    )
    (tmp_path / "little" / "part.py").write_text('def shown():\n    """Fine."""\ndef bare(): ...\n')
    names = hook("public_names")
    found = names.faults(names.load("little", tmp_path), {"little.shown", "little.bare"})
    assert found == [
        "little.bare is public but has no docstring",
        "little.hidden is public but on no page of docs/reference",
        "little.gone is in __all__ but nowhere defined",
    ]


def test_every_room_with_public_names_is_checked() -> None:
    names = hook("public_names")
    rooms = {module.path for module in names.public_modules(names.load("semfocus", ROOT / "src"))}
    assert {"semfocus", "semfocus.attention", "semfocus.theory", "semfocus.integrations.transformers"} <= rooms


def test_the_reference_has_every_field_that_set_names(site: Path) -> None:
    text = (site / "reference" / "training.html").read_text()
    parts = {"task": TaskConfig, "attention": AttentionConfig, "model": ModelConfig, "training": TrainingConfig}
    names = [name for name in RunConfig.model_fields if name not in parts]
    names += [f"{part}.{name}" for part, cls in parts.items() for name in cls.model_fields]
    assert not [name for name in names if f"<td><code>{name}</code></td>" not in text]
    assert "<td>pre, post</td>" in text
    assert "<td>factor of the learning rate, once an epoch</td>" in text


@pytest.mark.parametrize(
    ("text", "fault"),
    [("[there](nowhere.md)", "nowhere.md"), ("[there](#nothing)", "nothing"), ("![a](missing.png)", "missing.png")],
)
def test_a_broken_link_fails_the_build(tmp_path: Path, text: str, fault: str) -> None:
    validation = re.search(r"^validation:\n(?:  .*\n)+", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert validation is not None
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Here\n\n{text}\n")
    (tmp_path / "mkdocs.yml").write_text(f"site_name: little\nplugins: []\n{validation[0]}")
    done = mkdocs(tmp_path / "mkdocs.yml", tmp_path / "out")
    assert done.returncode == 1
    assert fault in done.stderr


def test_verdicts_and_figures_come_from_results_or_are_said_to_be_missing(tmp_path: Path) -> None:
    results = hook("results")
    assert results.lowered(tmp_path / "verdicts.md") == ""
    assert "holds no published runs" in results.NO_VERDICTS
    assert results.figures(tmp_path / "figures") == "There are none yet."
    (tmp_path / "verdicts.md").write_text("# Verdicts on the claims\n\n| claim |\n| --- |\n| C1 |\n\n## Reasons\n")
    (tmp_path / "figures").mkdir()
    for name in ("figure_1.svg", "figure_1-dark.svg", "figure_10-1.svg", "levels-tf32.svg"):
        (tmp_path / "figures" / name).write_text("<svg/>")
    assert results.lowered(tmp_path / "verdicts.md") == "| claim |\n| --- |\n| C1 |\n\n### Reasons"
    shown = results.figures(tmp_path / "figures")
    assert "![Speed and accuracy, three tasks](results/paper/figures/figure_1.svg#only-light)" in shown
    assert "(results/paper/figures/figure_1-dark.svg#only-dark)" in shown
    assert "![Grid: training accuracy, first four tasks](results/paper/figures/figure_10-1.svg)" in shown
    assert "![Speed-up by level of training accuracy](results/paper/figures/levels-tf32.svg)" in shown


def test_lists_in_columns_keep_their_columns() -> None:
    fenced = hook("docstrings").fenced
    assert fenced("A sum.\n\na    one\nb    two\n     more\n\nEnd.") == (
        "A sum.\n\n\n```text\na    one\nb    two\n     more\n```\n\n\nEnd."
    )
    assert fenced("A sentence.\n\n    code  # stays\n") == "A sentence.\n\n    code  # stays"
