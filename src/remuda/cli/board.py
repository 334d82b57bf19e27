"""The command board: a page in the browser about runs, those under way included."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer


def board(
    folder: Annotated[Path, typer.Argument(help="where the runs are, at any depth")] = Path("runs"),
    port: Annotated[int, typer.Option(help="0: any free one", min=0, max=65535)] = 8410,
    no_open: Annotated[bool, typer.Option("--no-open", help="do not open a browser")] = False,
    host: Annotated[str, typer.Option(help="address to listen on; beyond this machine a token is asked for")] = (
        "127.0.0.1"
    ),
    allow_control: Annotated[bool, typer.Option("--allow-control", help="the page may stop and extend runs")] = False,
    newest: Annotated[bool, typer.Option("--newest", help="show the run that is under way")] = False,
    with_process: Annotated[int | None, typer.Option(hidden=True, help="end when this process ends")] = None,
) -> None:
    """Show runs in the browser, live: the herd at play, curves, where time goes, what went wrong, the plan.

    `remuda board runs`

    It only reads files, and only this machine can open it. Runs appear as they start, whoever starts them.
    """
    from remuda.board.serve import make_server

    server = make_server(folder, host, port, allow_control)
    with suppress(OSError):
        os.nice(10)  # a training on the same cores comes first
    url = server.url + ("#newest=1" if newest else "")
    print(f"{folder} is shown at {url} (Ctrl-C ends it)", flush=True)
    thread = server.start()
    if not no_open:
        with suppress(Exception):  # there may be no browser
            webbrowser.open(url)
    with suppress(KeyboardInterrupt):
        while thread.is_alive() and (with_process is None or _runs(with_process)):
            time.sleep(0.5)
    server.shutdown()


def _runs(process: int) -> bool:
    return os.getppid() == process


@contextmanager
def board_beside(folder: Path) -> Iterator[None]:
    """A board in a process of its own while a run trains; it ends with the training."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "remuda", "board", str(folder), "--newest", "--port", "0"]
    # Its one line goes to where progress is shown: the output may be the JSON of --json.
    server = subprocess.Popen([*command, "--with-process", str(os.getpid())], start_new_session=True, stdout=2)
    try:
        yield
        if sys.stdin is not None and sys.stdin.isatty():
            with suppress(EOFError, KeyboardInterrupt):
                input("the board is still open; Enter closes it ")
    finally:
        server.terminate()
        server.wait()
