"""`semfocus pack` and `unpack`, `publish` and `rebuild`: runs on their way between machines, and to readers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from semfocus.cli.shared import RunsDirectory, Sets, names_of, print_faults, say
from semfocus.errors import UsageError, check_float

if TYPE_CHECKING:
    from semfocus.store import RunStore

_GIB = 2**30
MAX_SIZE = 1e6  # of an archive, in MiB or GiB: no limit that means anything is larger


def pack_command(
    directory: RunsDirectory = None,
    out: Annotated[Path, typer.Option(help="The path of the archive to write.")] = Path("runs.tar.xz"),
    study: Annotated[
        str | None, typer.Option(help="Pack only the runs of this study (a name or a study file).")
    ] = None,
    scale: Annotated[
        Literal["paper", "quick", "smoke"] | None, typer.Option(help="The scale at which the study was run.")
    ] = None,
    recipe: Annotated[
        Literal["clean", "paper", "authors"] | None, typer.Option(help="The recipe by which the study was run.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="The number of seeds with which the study was run.")] = None,
    sets: Sets = None,
    tasks: Annotated[str | None, typer.Option(help="Pack only runs of these tasks, separated by commas.")] = None,
    runs: Annotated[
        str | None, typer.Option(help="Pack only these runs: beginnings of ids, separated by commas.")
    ] = None,
    unfinished: Annotated[
        bool,
        typer.Option(
            "--unfinished", help="Pack interrupted runs as well, with their newest checkpoints, to go on elsewhere."
        ),
    ] = False,
    checkpoints: Annotated[
        Literal["none", "newest", "last", "kept", "all"],
        typer.Option(
            help="Which checkpoints to take (last: the newest two); each choice has those of the ones before."
        ),
    ] = "none",
    part_size: Annotated[float | None, typer.Option(help="Split into archives of at most so many MiB each.")] = None,
) -> None:
    """Pack runs into one small archive, to unpack elsewhere: configuration, metrics, times, status, measurements.

    \b
    semfocus pack runs --out runs.tar.xz
    semfocus pack runs --study figure_1 --part-size 15
    semfocus pack runs --unfinished --out sitting-1.tar.xz
    """
    from semfocus import __version__
    from semfocus.archive.pack import pack
    from semfocus.report.page.provenance import commit
    from semfocus.store import RunStore

    if part_size is not None:
        check_float("--part-size", part_size, 1, MAX_SIZE)
    store = RunStore(directory)
    ids = None if runs is None else {store.find(run).id for run in names_of("runs", runs) or []}
    given = {"scale": scale, "recipe": recipe, "seeds": seeds, "overrides": sets}
    choices = {name: value for name, value in given.items() if value is not None}
    if study is not None:
        meant = _ids_of_study(study, choices, store.root)
        ids = meant if ids is None else ids & meant
    elif choices:
        raise UsageError(f"--{', --'.join(choices)} say which runs of a study are meant; give --study too")
    about = {"semfocus": __version__, "commit": commit() or "unknown"}
    packed = pack(
        store,
        out,
        ids=ids,
        tasks=names_of("tasks", tasks),
        unfinished=unfinished,
        checkpoints=checkpoints,
        part_mib=part_size,
        about=about,
    )
    _say_left_out(packed.left_out)
    for data in data_of(store, packed.runs):
        say(
            f"{data} is not in the archive: tables, page and verdicts need none of it; to go on with these runs or to "
            "measure them elsewhere, take it along to the same place",
            err=True,
        )
    where = ", ".join(map(str, packed.paths))
    say(f"packed {len(packed.runs)} runs into {where}: {packed.bytes / 2**20:.2f} MiB")


def _say_left_out(left_out: Mapping[str, str]) -> None:
    from semfocus.archive.merge import by_reason

    for text in by_reason(left_out):
        say(f"left out: {text}", err=True)


def data_of(store: RunStore, ids: Collection[str]) -> list[str]:
    """The files whose rows these runs are trained on; a generator of rows has none."""
    from semfocus.tasks.registry import FILE_SUFFIXES
    from semfocus.tasks.stored import is_stored, stored_path

    found = []
    for entry in store.entries():
        name = str((entry.config or {}).get("task", {}).get("name", "")) if entry.name in ids else ""
        if is_stored(name):
            found.append(str(stored_path(name, store.root)))
        elif Path(name).suffix.lower() in FILE_SUFFIXES:
            found.append(name)
    return sorted(set(found))


def unpack_command(
    archives: Annotated[list[Path], typer.Argument(help="The archives, as `semfocus pack` has written them.")],
    out: Annotated[
        Path | None, typer.Option(help="The store to unpack into. Default: SEMFOCUS_RUNS, else ./runs.")
    ] = None,
    max_gib: Annotated[float, typer.Option(help="Refuse an archive that unpacks to more GiB.")] = 4,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the archive's run where both ended and were trained apart.")
    ] = False,
) -> None:
    """Unpack runs into a store and merge them with what is there. A damaged archive changes nothing.

    \b
    semfocus unpack runs.tar.xz
    semfocus unpack sitting-1.tar.xz sitting-2.tar.xz --out runs
    """
    from semfocus.archive.unpack import unpack
    from semfocus.store import RunStore

    store = RunStore(out)
    merged = unpack(archives, store, int(check_float("--max-gib", max_gib, 0, MAX_SIZE) * _GIB), replace=replace)
    for fate in ("added", "completed", "replaced", "same", "older", "refused"):
        count = len(merged.ids(fate))
        if count:
            say(f"{count} {_FATES[fate]}")
    merged.raise_if_refused()


_FATES = {
    "added": "added",
    "completed": "were there, and got checkpoints or measurements that were missing",
    "replaced": "replace what was there: they went on from it, or --replace takes them",
    "same": "were there already",
    "older": "are behind what is there, which stays",
    "refused": "refused",
}


def _ids_of_study(study: str, choices: dict[str, Any], root: Path) -> set[str]:
    from semfocus.experiments.registry import find_study
    from semfocus.experiments.run import plan

    return {job.id for job in plan(find_study(study).experiment(**choices), root).jobs}


def publish_command(
    directory: RunsDirectory = None,
    out: Annotated[Path, typer.Option(help="The folder of the tables.")] = Path("results/paper"),
    trained_at: Annotated[
        list[str] | None, typer.Option(help="A commit at which the runs were trained, for the manifest. Repeatable.")
    ] = None,
) -> None:
    """Publish the ended runs of a store as small tables, from which `semfocus rebuild` makes everything again.

    \b
    semfocus publish runs --out results/paper
    """
    from semfocus import __version__
    from semfocus.analysis.gaps import gaps
    from semfocus.analysis.results import Results
    from semfocus.archive.tables import publish
    from semfocus.report.page.provenance import commands, commit
    from semfocus.store import RunStore

    store = RunStore(directory)
    results = Results.load(store)
    again = sorted({text for group in results.groups for text in commands(group)})
    about = {"semfocus": __version__, "commit": commit() or "unknown", "trained_at": trained_at or []}
    written = publish(store, out, {**about, "commands": again})
    _say_left_out(written.left_out)
    for gap in gaps(results.only(written.runs)):
        say(gap, err=True)
    say(f"published {len(written.runs)} runs in {out}: {written.bytes / 2**20:.2f} MiB")


def rebuild_command(
    folder: Annotated[Path, typer.Argument(help="The folder of tables that `semfocus publish` has written.")],
    out: Annotated[Path, typer.Option(help="The folder in which the runs are rebuilt, and the page.")] = Path(
        "build/paper"
    ),
    scale: Annotated[
        Literal["paper", "quick", "smoke"], typer.Option(help="The scale at which the studies were run.")
    ] = "paper",
    sets: Sets = None,
) -> None:
    """Make verdicts, figures and page again from published tables. Nothing is trained.

    \b
    semfocus rebuild results/paper
    """
    from semfocus.experiments.rebuild import rebuild

    rebuilt = rebuild(folder, out, scale=scale, overrides=sets or ())
    for text in rebuilt.missing:
        say(text, err=True)
    print_faults(rebuilt.results.faults)
    for name, (there, count) in rebuilt.studies.items():
        say(f"{name}: {there} of {count} runs")
    say(f"{len(rebuilt.results.records)} runs; verdicts: {rebuilt.verdicts}; page: {rebuilt.page}")
