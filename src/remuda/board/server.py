"""The board's server: files of the package, and JSON about runs. It listens on this machine only, and reads only.

Every answer forbids the browser to run or load anything that did not come with remuda. Names of runs are looked up in
what the scan of the folder found, so a request cannot name another file.
"""

from __future__ import annotations

import gzip
import hmac
import ipaddress
import json
import select
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from remuda.board import control, files
from remuda.board.catalogue import Catalogue
from remuda.board.follow import ALIVE_S, EVERY_S, LOOK_S, Follower, Wish
from remuda.board.studies import study_view
from remuda.board.tables import ColumnCache, CurveRequest, curve
from remuda.board.tokens import new_token
from remuda.board.views import Views
from remuda.core.errors import ConfigError, RemudaError
from remuda.core.json_text import to_json
from remuda.studies.html import LOOK

SCRIPTS = ("app", "charts", "dom", "film", "follow", "lanes", "study")
STATIC = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/board.css": ("board.css", "text/css; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in SCRIPTS},
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""For pages of studies, which are files like any other: shown, never executed."""
MAX_BODY = 1 << 12
MIN_ZIPPED = 20_000
"""Bytes from which an answer is compressed: below that it takes more time than it saves."""
NONSENSE = (OSError, KeyError, ValueError, TypeError, OverflowError, RecursionError)
"""What a request raises that asks for what is not there, or cannot be read."""
TABLES = ("metrics.csv", "evaluations.csv", "system.csv")
COOKIE = "remuda-board"


@dataclass
class Board:
    """What the server shows, and what it allows."""

    root: Path
    allow_control: bool = False
    token: str | None = None  # asked for where others can reach the port
    control_token: str = field(default_factory=new_token)

    def __post_init__(self) -> None:
        self.catalogue = Catalogue(self.root)
        self.cache = ColumnCache(self.root)
        self.views = Views(self.root, self.cache)
        self._ids: set[str] = set()
        self._studies: dict[str, str] = {}  # kind by id

    def listing(self) -> dict[str, Any]:
        """Every run and study."""
        found = self.catalogue.listing()
        self._ids = {run["id"] for run in found["runs"]}
        self._studies = {study["id"]: study["kind"] for study in found["studies"]}
        return {"root": str(self.root), "control": self.allow_control, **found}

    def known(self, name: str) -> str:
        """The id of a run that there is."""
        if name not in self._ids:
            self.listing()
        if name not in self._ids:
            raise FileNotFoundError(name)
        return name

    def study(self, name: str) -> dict[str, Any]:
        """What the page shows of a study that there is."""
        if name not in self._studies:
            self.listing()
        return study_view(self.root, name, self._studies[name])


class BoardServer(ThreadingHTTPServer):
    """The server of one board."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, board: Board, host: str = "127.0.0.1", port: int = 0) -> None:
        self.board = board
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        if not is_loopback(host) and board.token is None:
            raise ConfigError(f"host={host} can be reached from outside: a token is needed")
        try:
            super().__init__((host, port), BoardHandler)
        except OSError as error:
            raise ConfigError(f"port {port} cannot be used: {error.strerror}; choose another with --port") from None

    @property
    def url(self) -> str:
        """Where to point a browser."""
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}/" + (f"?token={self.board.token}" if self.board.token else "")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser that closed its page is no error."""

    def start(self) -> threading.Thread:
        """Serve in a thread."""
        thread = threading.Thread(target=self.serve_forever, name="board", daemon=True)
        thread.start()
        return thread


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class BoardHandler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    server_version = "remuda"
    sys_version = ""
    timeout = 60
    server: BoardServer

    def log_message(self, format: str, *arguments: Any) -> None:  # the name is that of the base class
        """Keep the terminal quiet."""

    def do_GET(self) -> None:  # the name is that of the base class
        """Files of the page, and JSON."""
        try:
            url = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(url.query, max_num_fields=20).items()}
            if self._is_allowed(query):
                self._get(url.path, query)
        except NONSENSE:
            self._send_json({"error": "there is no such thing"}, HTTPStatus.NOT_FOUND)

    def _get(self, path: str, query: dict[str, str]) -> None:
        board = self.server.board
        if path in STATIC:
            file, kind = STATIC[path]
            self._send((package_files("remuda.board") / "static" / file).read_bytes(), kind)
        elif path == "/look.css":
            self._send(LOOK.read_bytes(), "text/css; charset=utf-8")
        elif path == "/api/runs":
            self._send_json(board.listing())
        elif path == "/api/run":
            self._send_json(board.views.run(board.known(query["id"])))
        elif path == "/api/system":
            self._send_json(board.views.system(board.known(query["id"])))
        elif path == "/api/study":
            self._send_json(board.study(query["id"]))
        elif path == "/api/film":
            self._send(board.views.film(board.known(query["id"]), query["episodes"]), "application/json")
        elif path == "/api/curve":
            found: Any = curve(board.cache, self._curve_request(query))  # has no nan, so that it needs no second look
            self._send(json.dumps(found, allow_nan=False).encode(), "application/json")
        elif path == "/api/follow":
            self._follow(Wish.read(query["wish"]))
        elif path == "/api/control":
            self._send_json({"token": board.control_token if board.allow_control else None})
        elif path == "/page":
            self._send_page(query["id"], query["file"])
        else:
            raise FileNotFoundError(path)

    def _curve_request(self, query: dict[str, str]) -> CurveRequest:
        if query["table"] not in TABLES:
            raise KeyError(query["table"])
        return CurveRequest(
            self.server.board.known(query["id"]), query["table"], query["metric"], query.get("x", "episodes"),
            float(query.get("first", -np.inf)), float(query.get("last", np.inf)), int(query.get("points", 400)),
        )  # fmt: skip

    def _follow(self, wish: Wish) -> None:
        """Lines of JSON, one whenever something has changed, until the page goes away."""
        board = self.server.board
        follower = Follower(board.listing, board.catalogue.summaries, board.cache, wish)
        self.close_connection = True  # the answer has no length: its end is the end of the connection
        self._send_head("application/x-ndjson")
        said = 0.0
        with suppress(OSError):  # the page is gone
            while True:
                changes = follower.changes()
                if changes or time.monotonic() - said > ALIVE_S:
                    self.wfile.write(to_json(changes).encode() + b"\n")
                    said = time.monotonic()
                # A page says nothing more, so what comes is the end of the connection.
                if select.select([self.connection], [], [], EVERY_S if changes else LOOK_S)[0]:
                    return

    def _send_page(self, name: str, file: str) -> None:
        """A page that a study wrote."""
        pages = self.server.board.catalogue.listing()["pages"]
        if {"id": name, "file": file} not in pages:
            raise FileNotFoundError(file)
        content = files.read(self.server.board.root, name, file, 64 << 20)
        self._send(content, "text/html; charset=utf-8", policy=PAGE_POLICY)

    def do_POST(self) -> None:
        """Stop or extend, only where the board was started with --allow-control."""
        body = self._body()
        try:
            if not self._is_allowed({}):
                return
            board = self.server.board
            sent = self.headers.get("X-Remuda-Control", "")
            if not board.allow_control or not hmac.compare_digest(sent.encode(), board.control_token.encode()):
                self._send_json({"error": "not allowed: start the board with --allow-control"}, HTTPStatus.FORBIDDEN)
                return
            asked = json.loads(body)
            name = board.known(str(asked["id"]))
            if self.path == "/api/stop":
                said = control.stop(board.root, name)
            elif self.path == "/api/extend":
                said = control.extend(board.root, name, int(asked["total_episodes"]))
            else:
                raise FileNotFoundError(self.path)
            self._send_json({"said": said})
        except RemudaError as error:
            self._send_json({"error": str(error)}, HTTPStatus.CONFLICT)
        except NONSENSE:
            self._send_json({"error": "there is no such thing"}, HTTPStatus.NOT_FOUND)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or len(length) > len(str(MAX_BODY)) or int(length) > MAX_BODY:
            self.close_connection = True
            return b""
        return self.rfile.read(int(length))

    def _is_allowed(self, query: dict[str, str]) -> bool:
        """Refuse other sites, other names of this machine (DNS rebinding), and who lacks the token if there is one."""
        host = self.headers.get("Host", "")
        name = urlsplit(f"//{host}").hostname or ""
        served = str(self.server.server_address[0])
        origin = self.headers.get("Origin")
        if not (is_loopback(name) or name == served or (served in ("0.0.0.0", "::") and _is_address(name))):
            return self._refuse("this name is not known here")
        if origin is not None and urlsplit(origin).netloc != host:
            return self._refuse("other sites may not ask")
        # Another port of this machine is the same site to a browser, but somebody else's program.
        if self.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site") and urlsplit(self.path).path != "/":
            return self._refuse("other sites may not ask")
        token = self.server.board.token
        if token is not None and not any(
            hmac.compare_digest(own.encode("utf-8", "replace"), token.encode())
            for own in (query.get("token", ""), self._cookie())
        ):
            return self._refuse("the token is missing: use the address that the board printed")
        return True

    def _cookie(self) -> str:
        try:
            found = SimpleCookie(self.headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            return ""
        return found.value if found is not None else ""

    def _refuse(self, why: str) -> bool:
        self._send_json({"error": why}, HTTPStatus.FORBIDDEN)
        return False

    def _send_json(self, content: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(to_json(content).encode(), "application/json", status)

    def _send(self, content: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK, policy: str = POLICY) -> None:
        zipped = len(content) > MIN_ZIPPED and "gzip" in self.headers.get("Accept-Encoding", "")
        body = gzip.compress(content, 3) if zipped else content
        extra = {"Content-Encoding": "gzip"} if zipped else {}
        self._send_head(kind, status, policy, {"Content-Length": str(len(body)), **extra})
        self.wfile.write(body)

    def _send_head(
        self, kind: str, status: HTTPStatus = HTTPStatus.OK, policy: str = POLICY, extra: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in (extra or {"Connection": "close"}).items():
            self.send_header(name, value)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        if self.server.board.token is not None and status == HTTPStatus.OK:
            self.send_header("Set-Cookie", f"{COOKIE}={self.server.board.token}; HttpOnly; SameSite=Strict; Path=/")
        self.end_headers()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
