"""A page that keeps up: rewritten when runs change, served to this machine alone, ended by Ctrl-C without a fuss."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from semfocus.errors import UsageError
from semfocus.report.page import serving
from semfocus.report.page.serving import PageServer, watch
from tests.report.helpers import configs, made, rows, store


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests change runs faster than people do."""
    monkeypatch.setattr(serving, "FRESH", 0.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PageServer]:
    store(tmp_path / "runs", seeds=1, training__epochs=4)
    with PageServer(tmp_path / "runs") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server: PageServer, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    reply = answer.status, dict(answer.getheaders()), answer.read().decode()
    connection.close()
    return reply


def test_the_page_is_served_fresh_and_never_kept_by_a_browser(server: PageServer, tmp_path: Path) -> None:
    status, headers, page = get(server)
    assert status == 200
    assert headers["Cache-Control"] == "no-store"
    assert "2 done" in page
    (other,) = configs(seeds=1, mechanisms=["banded:5"], training__epochs=4)
    made(tmp_path / "runs", other)
    assert "3 done" in get(server)[2]
    status, headers, page = get(server, method="HEAD")
    assert (status, page) == (200, "")


def test_many_requests_look_at_the_runs_once(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "FRESH", 60.0)
    get(server)
    monkeypatch.setattr(serving, "fingerprint", lambda root: pytest.fail("looked again"))
    assert get(server)[0] == 200


def test_nothing_but_the_page_is_served_and_to_nobody_else(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert get(server, "/../../etc/passwd")[0] == 404
    assert get(server, "/runs/config.json")[0] == 404
    status, _, text = get(server, Host="attacker.example")  # a foreign name that was made to point here
    assert status == 403
    assert "done" not in text


def test_a_store_that_vanishes_is_said_to_the_reader(server: PageServer, tmp_path: Path) -> None:
    (tmp_path / "runs").rename(tmp_path / "gone")
    status, _, text = get(server)
    assert status == 503
    assert "not a directory of runs" in text


def test_a_port_in_use_is_an_error_that_says_what_to_do(server: PageServer, tmp_path: Path) -> None:
    for port in (server.server_port, 99999):
        with pytest.raises(UsageError, match="choose another with --port"):
            PageServer(tmp_path / "runs", port=port)


def test_watching_rewrites_the_page_when_a_run_changes_and_only_then(tmp_path: Path) -> None:
    first, second = configs(seeds=1, training__epochs=4)
    made(tmp_path / "runs", first, "running", rows(first)[:2])
    told: list[str] = []
    stop = threading.Event()
    keys = {"every": 0.02, "told": told.append, "stop": stop}
    thread = threading.Thread(target=watch, args=(tmp_path / "runs", tmp_path / "report.html"), kwargs=keys)
    thread.start()
    try:
        _until(lambda: len(told) == 1)
        time.sleep(0.2)
        assert len(told) == 1  # nothing changed, nothing written
        made(tmp_path / "runs", second)
        _until(lambda: "1 done" in (tmp_path / "report.html").read_text())
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("end", ["given back", "killed"])
def test_the_end_of_a_process_changes_the_page_though_it_changes_no_file_that_is_shown(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (config,) = configs(seeds=1, mechanisms=["full"], training__epochs=4)
    run = made(tmp_path, config, "done" if end == "given back" else "running")
    with PageServer(tmp_path) as server:
        with run.lock():
            assert b"1 running" in server.page()
            if end == "killed":  # what a killed process holds, the kernel lets go; the lock file stays as it is
                monkeypatch.setattr(os, "ftruncate", lambda handle, size: None)
        assert (b"1 done" if end == "given back" else b"1 interrupted") in server.page()


@pytest.mark.parametrize("name", ["notes", f".tmp-{'a' * 32}", "feedfacecafe"])
def test_a_lock_in_what_is_no_run_does_not_end_the_page(name: str, tmp_path: Path) -> None:
    """A folder of somebody's own, a run that is being removed right now, a link to a run."""
    (config,) = configs(seeds=1, mechanisms=["full"], training__epochs=4)
    run = made(tmp_path / "runs", config)
    if name == "feedfacecafe":
        (tmp_path / "runs" / name).symlink_to(run.path)
    else:
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "lock").write_text("")
    with PageServer(tmp_path / "runs") as server:
        assert b"1 done" in server.page()


def test_a_page_looks_for_a_newer_one_only_while_a_run_is_training(tmp_path: Path) -> None:
    (config,) = configs(seeds=1, mechanisms=["full"], training__epochs=4)
    run = made(tmp_path, config, "running", rows(config)[:2])
    with PageServer(tmp_path) as server:
        with run.lock():
            assert b'data-live="5"' in server.page()
        assert b'data-live=""' in server.page()  # nobody holds it any more: interrupted


@pytest.mark.parametrize("option", ["--watch", "--serve"])
def test_ctrl_c_ends_the_command_cleanly(option: str, tmp_path: Path) -> None:
    store(tmp_path / "runs", seeds=1, mechanisms=["full"], training__epochs=2)
    command = [sys.executable, "-m", "semfocus.cli", "report", str(tmp_path / "runs"), option]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "report.html")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "Ctrl-C ends" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=30)
    assert (process.returncode, rest, errors) == (0, "stopped\n", "")
    assert (tmp_path / "report.html").exists() == (option == "--watch")


def _until(done: object, seconds: float = 20.0) -> None:
    limit = time.monotonic() + seconds
    while not done():  # type: ignore[operator]
        assert time.monotonic() < limit
        time.sleep(0.02)
