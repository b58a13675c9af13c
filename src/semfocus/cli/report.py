"""`semfocus report`: a page and figures of the runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semfocus.cli.shared import RunsDirectory, print_faults, say
from semfocus.errors import UsageError


def report_command(
    runs: RunsDirectory = None,
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="The title of the page, instead of the names of the tasks.")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Write every figure into this folder as well: SVG, PDF and PNG, light and dark.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Write the page again when runs change, until Ctrl-C.")
    ] = False,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the page to this machine alone, until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option(help="The port for --serve; 0 takes a free one.")] = 0,
) -> None:
    """Write one self-contained page about the runs: what was asked, what was found, and everything behind it.

    \b
    semfocus report runs --out report.html
    semfocus report runs --figures figures
    semfocus report runs --serve
    """
    from semfocus.store import RunStore

    root = RunStore(runs).root
    if watch and serve:
        raise UsageError("--watch writes a file, --serve needs none; give one of them")
    if figures is not None:
        from semfocus.report.figures.gallery import write_figures

        say(f"wrote {len(write_figures(root, figures))} figures to {figures}")
    if watch:
        _watch(root, out, title)
    elif serve:
        _serve(root, port, title)
    else:
        from semfocus.analysis.results import Results
        from semfocus.report.page.page import write_page

        results = Results.load(root)
        say(f"wrote {write_page(results, out, title=title)}")
        print_faults(results.faults)


def _watch(root: Path, out: Path, title: str | None) -> None:
    from semfocus.report.page.serving import watch

    try:
        watch(root, out, title=title, told=lambda text: say(f"{text}; Ctrl-C ends"))
    except KeyboardInterrupt:
        say("stopped")


def _serve(root: Path, port: int, title: str | None) -> None:
    from semfocus.report.page.serving import PageServer

    with PageServer(root, port=port, title=title) as server:
        try:
            server.page()  # errors in the runs are reported here, not in a browser
            say(f"{server.url}  (Ctrl-C ends)")
            server.serve_forever()
        except KeyboardInterrupt:
            say("stopped")
