"""A page that follows its runs: written again when they change, or served on the loopback interface."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from semfocus.analysis.results import Results, fingerprint
from semfocus.errors import StorageError, UsageError
from semfocus.report.page.page import REFRESH, render, write_page

EVERY = 2.0  # seconds between checks of the runs
FRESH = 1.0  # seconds for which a page is served without a look at the runs: thousands of files take a fifth of that
LOOPBACK = "127.0.0.1"


def watch(
    store_root: Path,
    out: Path,
    *,
    title: str | None = None,
    every: float = EVERY,
    told: Callable[[str], None] = lambda text: None,
    stop: threading.Event | None = None,
) -> None:
    """Write the page, and again whenever a run changes, until `stop` is set or Ctrl-C raises KeyboardInterrupt."""
    stop = stop or threading.Event()
    seen = None
    while True:
        now = fingerprint(store_root)
        if now != seen:
            write_page(store_root, out, title=title, live=True)
            told(f"wrote {out}")
            seen = now
        if stop.wait(every):
            return


class PageServer(ThreadingHTTPServer):
    """Serves one page at `/` on the loopback interface; the page is rendered again when the runs have changed."""

    daemon_threads = True

    def __init__(self, store_root: Path, *, port: int = 0, title: str | None = None) -> None:
        self.store_root, self.title = store_root, title
        self._lock = threading.Lock()
        self._seen: object = None
        self._page = b""
        self._looked_at = 0.0
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(f"cannot serve on port {port}: {error}; choose another with --port") from error

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/"

    @property
    def names(self) -> set[str]:
        """The host names of requests from this machine; any other host is an attack by another site."""
        return {f"{host}:{self.server_port}" for host in (LOOPBACK, "localhost")}

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that has gone away; anything else is shown as ever."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def page(self) -> bytes:
        """The page of the runs as they are now."""
        with self._lock:
            if self._page and time.monotonic() - self._looked_at < FRESH:
                return self._page
            now = fingerprint(self.store_root)
            self._looked_at = time.monotonic()
            if now != self._seen or not self._page:
                results = Results.load(self.store_root)
                refresh = REFRESH if "running" in results.states else None
                self._page, self._seen = render(results, title=self.title, refresh=refresh).encode(), now
            return self._page


class _Handler(BaseHTTPRequestHandler):
    server_version = "semfocus"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        server = self.server
        if not isinstance(server, PageServer) or self.headers.get("Host") not in server.names:
            return self._send(403, b"this page is for this machine alone\n", "text/plain", body)
        if self.path.partition("?")[0] != "/":
            return self._send(404, b"there is one page here: /\n", "text/plain", body)
        try:
            page = server.page()
        except (StorageError, UsageError) as error:
            return self._send(503, f"{error}\n".encode(errors="backslashreplace"), "text/plain", body)
        return self._send(200, page, "text/html", body)

    def _send(self, code: int, content: bytes, kind: str, body: bool) -> None:
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a reload every few seconds would fill the terminal."""
