"""The zoo: trained agents that come with remuda (`zoo:game/name`). Each is a small run directory of data files."""

from __future__ import annotations

from pathlib import Path

from remuda.core.errors import UnknownName

PREFIX = "zoo:"
FOLDER = Path(__file__).parents[1] / "zoo"


def is_zoo_name(target: object) -> bool:
    """Whether the target names an agent of the zoo."""
    return isinstance(target, str | Path) and str(target).startswith(PREFIX)


def zoo_names() -> list[str]:
    """All agents of the zoo, as game/name."""
    return sorted(f"{path.parent.parent.name}/{path.parent.name}" for path in FOLDER.glob("*/*/config.yaml"))


def zoo_path(target: Path | str) -> Path:
    """The run directory of an agent of the zoo. Only names of the list are followed, never a path."""
    name = str(target).removeprefix(PREFIX)
    if name not in zoo_names():
        raise UnknownName("agent of the zoo", name, zoo_names())
    return FOLDER / name
