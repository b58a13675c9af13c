"""Shows each notebook of docs/notebooks as a page with its stored pictures; the notebook is there to download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File
from nbconvert import MarkdownExporter

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def on_files(files: Any, config: Any) -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        name = f"notebooks/{path.stem}"
        exported, resources = MarkdownExporter().from_filename(
            str(path), resources={"output_files_dir": f"{path.stem}_files"}
        )
        assert isinstance(exported, str)
        title, _, rest = exported.partition("\n")
        page = f"{title}\n\n[Download this notebook]({path.name}){{ download }}\n{rest}"
        files.append(File.generated(config, f"{name}.md", content=page))
        for picture, content in resources["outputs"].items():
            files.append(File.generated(config, f"notebooks/{picture}", content=content))
