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
    found = {path.stem: path for path in sorted(_folder().iterdir()) if path.suffix in (".py", ".yaml")}
    if name is None:
        table = Table("example", "what it shows")
        for stem, path in found.items():
            table.add_row(stem, _summary(path))
        QuietConsole(markup=False).print(table)
        print("copy one with `remuda examples NAME`")
        return
    stem = name.removesuffix(".py").removesuffix(".yaml")
    if stem not in found:
        raise UnknownName("example", name, found)
    target = to / found[stem].name
    try:
        to.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:
            file.write(found[stem].read_text("utf-8"))
    except FileExistsError:
        taken = target if to.is_dir() else to
        raise ConfigError(f"{taken} exists already: choose another folder with --to") from None
    except OSError as error:
        raise ConfigError(f"--to {to}: {error.strerror}; name a folder that can be written to") from None
    print(target)


def _summary(path: Path) -> str:
    """The first line of a module's docstring, or of the comment at the top of a study file."""
    text = path.read_text("utf-8")
    told = ast.get_docstring(ast.parse(text)) if path.suffix == ".py" else text.removeprefix("# ")
    return (told or "").split("\n")[0]


def _folder() -> Path:
    """The examples inside an installed package, or beside the package in a checkout."""
    package = Path(str(files("remuda")))
    installed = package / "_examples"
    return installed if installed.is_dir() else package.parents[1] / "examples"
