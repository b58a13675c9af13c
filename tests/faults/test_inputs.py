"""Files, sizes and names that no one expects: an error that says what is wrong, and no traceback."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from semfocus.analysis.results import Results
from semfocus.cli import app
from semfocus.config import RunConfig
from semfocus.config_files import parse_config
from semfocus.diagnostics.runs import measure_run
from semfocus.errors import CorruptData, SemfocusError, StorageError, UsageError, printable
from semfocus.landscape.sharpness import measure_sharpness
from semfocus.measurements import Sharpness, read
from semfocus.store import DamagedCheckpoint, RunDirectory, RunStore, atomic
from semfocus.tasks import get_task, readers
from semfocus.training import checkpoint_epochs
from tests.store.helpers import flip, forge
from tests.training.helpers import RUNTIME, process, runtime, tiny, trained

COMMAND = [sys.executable, "-m", "semfocus.cli"]


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("inputs") / "runs"
    trained([tiny(1), tiny(2)], root, keep_epochs=(1, 2))
    return root


@pytest.fixture
def root(store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(store, tmp_path / "runs"))


@pytest.fixture
def run(root: Path) -> RunDirectory:
    return RunStore(root).open(RunStore(root).entries()[0].name)


# --- damaged checkpoints are never passed over in silence


@pytest.mark.parametrize("file", ["state.safetensors", "manifest.json"])
def test_a_measurement_of_an_older_checkpoint_than_the_newest_says_so(run: RunDirectory, file: str) -> None:
    newest = run.checkpoint_steps()[0]
    flip(run.path / "checkpoints" / str(newest) / file, -20)
    with pytest.warns(DamagedCheckpoint, match=f"step {newest} is not used"):
        measured = measure_run(run, k=2, rows=10)
    assert measured.measured.checkpoints["last"].epoch == 2
    with pytest.warns(DamagedCheckpoint, match=f"step {newest} is not used"):
        assert measure_sharpness(run, 10, RUNTIME).epochs == [1.0, 2.0]
    sharpness = read(run, Sharpness)
    assert sharpness is not None
    assert sharpness.document["steps"] == [5, 10]


def test_a_damaged_checkpoint_is_shown_as_one(run: RunDirectory) -> None:
    newest = run.checkpoint_steps()[0]
    (run.path / "checkpoints" / str(newest) / "manifest.json").write_text("{")
    assert f"damaged checkpoints, which are not used: {newest}" in call("show", run.path).stdout


def test_without_an_intact_checkpoint_nothing_is_measured(run: RunDirectory) -> None:
    for state in run.path.glob("checkpoints/*/state.safetensors"):
        flip(state, -1)
    for measure in (lambda: measure_run(run, k=2, rows=10), lambda: measure_sharpness(run, 10, RUNTIME)):
        with pytest.raises(CorruptData, match=r"no checkpoint of run .* is intact"):
            measure()
    assert checkpoint_epochs(run)


# --- sizes


@pytest.mark.parametrize("field", ["clip", "lr", "weight_decay"])
def test_a_number_that_float32_cannot_hold_is_refused(field: str) -> None:
    with pytest.raises(UsageError, match=f"training.{field}"):
        parse_config({"task": {"name": "parity"}, "training": {field: 1e39}})


def test_rows_beyond_memory_are_refused_at_a_stated_cap() -> None:
    with pytest.raises(UsageError, match=r"length = 20000000 exceeds 1048576"):
        get_task("parity", length=20_000_000)
    task = get_task("parity", length=100_000)
    config = RunConfig(task=parse_config({"task": {"name": "parity", "train_rows": 5000}}).task)
    with pytest.raises(UsageError, match=r"task.train_rows = 5000 rows of 100000 tokens are more than 268435456"):
        config.check(task)


def test_a_small_parquet_that_unpacks_to_more_than_the_cap_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "MAX_UNPACKED_BYTES", 2**24)  # 2**31 takes half a minute to make
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "bomb.parquet"
    with duckdb.connect() as connection:
        table = "SELECT repeat('x', 2000000) AS text, i % 2 AS label FROM range(45) t(i)"
        connection.execute(f"COPY ({table}) TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
    assert path.stat().st_size < 2**16
    with pytest.raises(UsageError, match=r"'text' unpacks to 90000000 bytes, 2000000 in one cell"):
        get_task(str(path))
    with duckdb.connect() as connection:
        table = "SELECT [i % 7, i % 5, i % 3] AS tokens, ['a', 'b'][i % 2 + 1] AS label FROM range(200) t(i)"
        connection.execute(f"COPY ({table}) TO '{path}' (FORMAT parquet)")
    assert get_task(str(path)).size("train")


# --- places to write to


def test_a_directory_as_the_page_is_a_storage_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    for out in (".", str(root)):
        result = call("report", root, "--out", out)
        assert isinstance(result.exception, StorageError), result.exception
        assert "is a directory" in str(result.exception)


def test_a_long_name_is_written_and_a_longer_one_is_a_storage_error(tmp_path: Path) -> None:
    for name in ("a" * 240 + ".html", "\u00e4" * 120 + ".html"):
        atomic.write_text(tmp_path / name, "fine")
        assert (tmp_path / name).read_text() == "fine"
    with pytest.raises(StorageError, match="too long"):
        atomic.write_text(tmp_path / ("a" * 300), "not fine")
    assert len(list(tmp_path.iterdir())) == 2
    for words in (
        ["show", "a/" * 200 + "b" * 300],
        ["runs", "b" * 300],
        ["resume", "b" * 300],
        ["verdicts", "b" * 300],
    ):
        assert isinstance(call(*words).exception, UsageError), words


COMMANDS = [
    ("runs",), ("verdicts",), ("report",), ("clean",), ("show",), ("export", "--to", "csv"), ("unpack",), ("rebuild",),
    ("diagnose",), ("diagnose", "--text", "t.txt", "--model"), ("resume",), ("pack",), ("status",), ("lengths",),
    ("sharpness",), ("--plugin",), ("resume", "--out"), ("compare",),
]  # fmt: skip


@pytest.mark.parametrize("name", ["~nobody-of-this-name/x", "b" * 300, "b" * 5000 + ".py", "a\0b"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_name_that_no_file_can_have_is_refused_by_every_command(
    words: tuple[str, ...], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text("some words")
    exception = call(*words, name).exception
    assert isinstance(exception, (SemfocusError, SystemExit)), exception


@pytest.mark.parametrize("words", [["runs"], ["verdicts"]])
def test_a_full_device_as_the_output_is_exit_6(root: Path, words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *words, str(root)], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=120,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
    assert done.returncode == 6, done.stderr
    assert "Traceback" not in done.stderr
    assert "No space left" in done.stderr


def test_a_client_that_goes_away_is_no_news(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from semfocus.report.page.serving import PageServer

    with PageServer(root) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", server.server_port)) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset on close
                client.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
        server.page()
        server.shutdown()
        thread.join()
    assert "Traceback" not in capsys.readouterr().err


# --- what others wrote


NASTY = "[/x]\x1b[31m\u202ered\x07"


def test_markup_and_escape_sequences_of_a_run_are_text_in_the_terminal(run: RunDirectory, root: Path) -> None:
    forged = forge(run, lambda fields: (fields["task"].update(name=NASTY), fields["attention"].update(mechanism=NASTY)))
    assert not Results.load(root).faults
    printed = call("runs", root)
    assert printed.exit_code == 0, printed.output
    assert forged.id in printed.stdout
    assert printable(NASTY) in printed.stdout
    assert not {"\x1b", "\x07", "\u202e"} & {*printed.stdout}
    for words in (("verdicts", root), ("verdicts", root, "--long"), ("report", root, "--out", root.parent / "p.html")):
        result = call(*words)
        assert result.exit_code == 0, result.output
        assert not {"\x1b", "\x07", "\u202e"} & {*result.output}


def test_odd_names_and_times_of_files_stop_no_command(run: RunDirectory, root: Path) -> None:
    (root / os.fsdecode(b"caf\xe9 \xff")).write_text("")
    (root / "a\nb\x1b[31m").write_text("")
    os.utime(run.path / "metrics.jsonl", (2.6e11, 2.6e11))  # in the year 10209
    place = root.parent
    for words in (
        ["runs", root], ["runs", root, "--json"], ["verdicts", root], ["clean", root], ["status", root],
        ["pack", root, "--out", place / "runs.tar.xz"], ["publish", root, "--out", place / "tables"],
    ):  # fmt: skip
        result = CliRunner().invoke(app, [str(word) for word in words], color=True)  # as in a terminal
        assert result.exit_code == 0, result.output
        assert "\x1b" not in result.output
    assert call("report", root, "--out", root.parent / "page.html").exit_code == 0


@pytest.mark.parametrize("cohort", [[["x"]], [5], "abc", [{}], ["../.."]])
def test_a_cohort_that_names_no_runs_stops_nothing(run: RunDirectory, root: Path, cohort: object) -> None:
    facts = {name: value for name, value in (run.status() or {}).items() if name != "state"}
    with run.lock() as writer:
        writer.write_status("interrupted", **facts | {"cohort": cohort})
    result = call("resume", "--out", root, "--device", "cpu", "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert run.status()["state"] == "done"


# --- what killed processes leave


def _leave_drafts(root: Path) -> None:
    (root / atomic._draft_name()).mkdir()
    (root / f"{atomic._draft_name()}-report.html").write_text("half")
    os._exit(0)


def test_drafts_of_dead_processes_are_swept_at_the_next_start_and_those_of_living_ones_stay(root: Path) -> None:
    started = process(_leave_drafts, root)
    started.join()
    own = root / atomic._draft_name()
    own.mkdir()
    others = root / f"{atomic.DRAFT}{'0' * 32}"  # of another machine
    others.mkdir()
    before = {path.name for path in root.iterdir() if path.name.startswith(atomic.DRAFT)}
    assert len(before) == 4
    trained([tiny(1)], root)
    assert {path for path in root.iterdir() if path.name.startswith(atomic.DRAFT)} == {own, others}


def test_the_cohort_that_a_run_began_in_stays_in_its_status_when_some_have_ended(tmp_path: Path) -> None:
    from semfocus.execution import train
    from semfocus.training import Progress

    configs = [tiny(seed, "topk:3", epochs=6, lr=0.3, stop_accuracy=0.55) for seed in (1, 4, 2)]

    class Stop(BaseException):
        pass

    def stop(progress: Progress) -> None:
        if progress.step == 20:
            raise Stop

    with pytest.raises(Stop):
        train(configs, tmp_path, runtime(checkpoint_seconds=0), stop)
    runs = trained(configs, tmp_path)
    assert [len((run.status() or {})["cohort"]) for run in runs] == [3, 3, 3]


# --- models of others


@pytest.mark.parametrize(
    "text",
    [
        '{"model_type": "bert", "num_hidden_layers": 1000000000}',
        '{"model_type": "bert", "num_hidden_layers": "many"}',
        '{"model_type": "bert", "hidden_size": [64]}',
        '{"model_type": "bert", "vocab_size": 1e400}',
        '{"model_type": ["bert"]}',
        "[" * 100_000,
        '{"model_type": "bert", "x": ' + '{"x": ' * 20_000 + "1" + "}" * 20_001,
        "[]",
        "5",
    ],
    ids=lambda text: text[:40],
)
def test_a_config_of_a_hugging_face_model_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    pytest.importorskip("transformers")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(text)
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (tmp_path / "text.txt").write_text("some words")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = call("diagnose", "--model", folder, "--text", tmp_path / "text.txt")
    assert isinstance(result.exception, SemfocusError), repr(result.exception)
