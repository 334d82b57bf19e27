"""Starts a board: for the command, and from Python."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from pathlib import Path

from remuda.board.server import Board, BoardServer, is_loopback
from remuda.board.tokens import new_token
from remuda.core.errors import ConfigError
from remuda.core.paths import is_folder


def make_server(folder: Path, host: str, port: int, allow_control: bool) -> BoardServer:
    """A server for the runs in a folder that does not answer yet; beyond this machine it asks for a token."""
    if not is_folder(folder):
        raise ConfigError(f"{folder} is not a directory: give the one that has your runs, or train one first")
    token = None if is_loopback(host) else new_token()
    return BoardServer(Board(folder.absolute(), allow_control, token), host, port)


def serve_board(
    folder: Path | str = "runs",
    port: int = 0,
    *,
    host: str = "127.0.0.1",
    allow_control: bool = False,
    open_browser: bool = True,
) -> BoardServer:
    """Show the runs in a folder in the browser, live, and return the server: `url` is its address.

    It answers in a thread of this process, until `shutdown()` or the end of the process. Port 0 is any free one.
    """
    server = make_server(Path(folder), host, port, allow_control)
    server.start()
    if open_browser:
        with suppress(Exception):  # there may be no browser
            webbrowser.open(server.url)
    return server
