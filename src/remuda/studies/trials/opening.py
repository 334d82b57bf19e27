"""Makes the places that `on` asks for: processes of this machine, or actors of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from remuda.core.errors import ConfigError
from remuda.core.plan import Plan
from remuda.studies.trials.places import RAY, Places, on_ray
from remuda.studies.trials.process_places import ProcessPlaces

if TYPE_CHECKING:
    from remuda.studies.trials.ray_places import RayPlaces


def open_places(
    on: str,
    size: int,
    folder: Path,
    plans: Sequence[Plan],
    objects: Iterable[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Places | None:
    """Places for `size` trials of these plans, with directories below `folder`; None: run them here, one by one.

    `objects` are names of games and networks of this Python session, which the processes get.
    """
    if on_ray(on) and plans:
        return _open_ray(on, size, folder, plans, objects, say)
    return None if size == 1 or not plans else ProcessPlaces(size, objects)


def _open_ray(
    on: str, size: int, folder: Path, plans: Sequence[Plan], objects: Iterable[str], say: Callable[[str], None]
) -> RayPlaces:
    from remuda.studies.trials.ray_places import RayPlaces

    if any(plan.engine == RAY for plan in plans):
        raise ConfigError(
            f"on={on} has each trial on one node, and engine=ray would spread it again: choose another engine, "
            "or leave out on"
        )
    return RayPlaces(on.partition(":")[2] or None, size, folder, plans, objects, say)
