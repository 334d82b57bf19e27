"""The command that shows the examples and copies them out of the installed package."""

from __future__ import annotations

import ast
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from remuda.core.console import QuietConsole
from remuda.core.errors import ConfigError, UnknownName


def examples(
    name: Annotated[str | None, typer.Argument(help="copy this one, e.g. commons; without: list all")] = None,
    to: Annotated[Path, typer.Option(help="the folder to copy it to")] = Path(),
) -> None:
    """List the examples, or copy one to read and change it."""
    found = {path.stem: path for path in sorted(_folder().glob("*.py"))}
    if name is None:
        table = Table("example", "what it shows")
        for stem, path in found.items():
            table.add_row(stem, (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n")[0])
        QuietConsole(markup=False).print(table)
        print("copy one with `remuda examples NAME`")
        return
    stem = name.removesuffix(".py")
    if stem not in found:
        raise UnknownName("example", name, found)
    target = to / found[stem].name
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(found[stem].read_text("utf-8"))
    except FileExistsError:
        raise ConfigError(f"{target} exists already: choose another folder with --to") from None
    except OSError as error:
        raise ConfigError(f"--to {to}: {error.strerror}; name a folder that can be written to") from None
    print(target)


def _folder() -> Path:
    """The examples inside an installed package, or beside the package in a checkout."""
    package = Path(str(files("remuda")))
    installed = package / "_examples"
    return installed if installed.is_dir() else package.parents[1] / "examples"
