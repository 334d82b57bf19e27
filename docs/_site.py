"""Hooks of the documentation site: reference pages made from the source, and links into the source."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import remuda
from remuda.cli.main import app
from remuda.core.options import Options
from remuda.core.plan import ParallelSwitches, Plan
from remuda.core.rewards import RewardOptions
from remuda.games.registry import SHIPPED, find_game
from remuda.learners.registry import SHIPPED_LEARNERS
from remuda.runs.settings import OTHER_UNITS, PEER_NAMES, PRESETS


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the source."""
    pages = {"names": names_page(), "settings": settings_page(), "commands": commands_page()}
    for name, lines in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(lines)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files outside docs/ into links to the repository: on GitHub the relative ones work."""
    del files
    up = re.escape("../" * (1 + page.file.src_uri.count("/")))  # out of docs/
    return re.sub(rf"\]\({up}([^)]+)\)", rf"]({config.extra['repository']}/blob/main/\1)", markdown)


def names_page() -> Iterator[str]:
    """Every public name with its signature and docstring."""
    yield "# Public names\n\nEverything that a program may rely on is imported from `remuda`; the rest may change.\n"
    for name in sorted(set(remuda.__all__) - {"__version__"}, key=str.lower):
        thing = getattr(remuda, name)
        yield f"## `{name}`\n"
        if callable(thing):
            yield f"```python\n{name}{_signature(thing)}\n```\n"
        yield inspect.getdoc(thing) or ""
        for method, function in vars(thing).items() if inspect.isclass(thing) else ():
            if not method.startswith("_") and (doc := inspect.getdoc(function)) and callable(function):
                yield f"- `{method}{_signature(function)}`: {doc.splitlines()[0]}"
        yield ""


def _signature(thing: Any) -> str:
    try:
        return str(inspect.signature(thing))
    except ValueError:  # an exception class has none
        return "(…)"


def settings_page() -> Iterator[str]:
    """Every setting of the plan, of the shipped games and learners, and of presets."""
    yield "# Settings\n"
    yield "A setting has the same name on the command line (`name=value`), in YAML and in Python.\n"
    yield "## Of the plan\n"
    yield from _options_table(Plan)
    for name, kind in SHIPPED_LEARNERS.items():
        yield f"\n## Of the learner `{name}`\n"
        yield from _options_table(kind.options_type())
    for game in SHIPPED:
        yield f"\n## Of the game `{game}`\n"
        yield from _options_table(find_game(game).options)
    yield "\n## `reward.NAME`\n"
    yield "What reaches the agents of any game: [the formulas](../games/social.md#what-reaches-an-agent).\n"
    yield from _options_table(RewardOptions)
    yield "\n## `parallel={…}`\n\nSwitches that stand for an engine and a training interval.\n"
    yield from _options_table(ParallelSwitches)
    yield "\n## Presets\n\n| preset | what it sets |\n| --- | --- |"
    for name, preset in PRESETS.items():
        yield f"| `{name}` | {' '.join(f'`{key}={value}`' for key, value in preset.items())} |"
    yield "\n## Names in other libraries\n\n| there | here |\n| --- | --- |"
    for name, ours in PEER_NAMES.items():
        here = " or ".join(f"`{one}`" + (f", which {OTHER_UNITS[one]}" if one in OTHER_UNITS else "") for one in ours)
        yield f"| `{name}` | {here} |"


def _options_table(options: type[Options]) -> Iterator[str]:
    yield "| setting | default | what it does |\n| --- | --- | --- |"
    for name, info in options.model_fields.items():
        default = "" if info.is_required() else f"`{info.get_default(call_default_factory=True)}`"
        yield f"| `{name}` | {default} | {_cell(info.description)} |"


def _cell(text: str | None) -> str:
    """Text in a table; braces would be read as attributes of the cell, and vanish."""
    return (text or "").replace("|", ",").replace("{", "&#123;").replace("}", "&#125;")


def commands_page() -> Iterator[str]:
    """Every command of the command line with its arguments and flags."""
    yield "# Commands\n"
    yield from _commands(typer.main.get_command(app), "remuda")


def _commands(group: Any, prefix: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix} {name}")
            continue
        yield f"## `{prefix} {name}`\n\n{inspect.cleandoc(command.help or '')}\n"
        yield "| argument | what it is |\n| --- | --- |"
        for parameter in command.params:
            words = ", ".join(f"`{one}`" for one in parameter.opts) or parameter.name
            yield f"| {words} | {_cell(getattr(parameter, 'help', None))} |"
        yield ""
