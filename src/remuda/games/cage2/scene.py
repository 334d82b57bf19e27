"""A world of CAGE 2 as a scene: a box per host, filled by the truth, framed by what blue believes."""

from __future__ import annotations

from typing import Any

from remuda.core.scene import FRAME as LINE
from remuda.core.scene import Scene, SceneBox, SceneKind
from remuda.games.cage2.network import NAMES, SUBNETS
from remuda.games.cage2.picture import (
    ACTIVITY,
    BADGE,
    BELIEF,
    COLUMNS,
    FILL,
    FRAME,
    SIDES,
    actors,
    decoy_names,
    last_actions,
    members,
)
from remuda.games.cage2.state import privilege


def _hex(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


TRUTHS = ("no red", "red: user", "red: root")
SEEN = {"scan": "blue sees a scan", "ATTACK": "blue sees an attack", "scan*": "a scan of a new decoy"}
KINDS = (
    *(SceneKind(f"truth, {name}", _hex(FILL[i])) for i, name in enumerate(TRUTHS)),
    *(SceneKind(f"blue thinks {name or 'clean'}", _hex(FRAME[i]), LINE) for i, name in enumerate(BELIEF)),
    *(SceneKind(f"{name[0].upper()}: {name} acts here", _hex(colour)) for name, colour in SIDES.items()),
    *(SceneKind(f"{word}: {meaning}", _hex(BADGE[word])) for word, meaning in SEEN.items()),
)


def draw_scene(s: Any, caption: str) -> Scene:
    """The three subnets as columns, and the last actions in words."""
    levels = privilege(s)
    boxes = tuple(
        SceneBox(
            NAMES[h], column, int(levels[h]), len(TRUTHS) + int(s.compromised[h]), " ".join(decoy_names(s, h)),
            (*((side, _hex(colour)) for side, colour in actors(s, h)), *_badge(int(s.activity[h]))),
        )
        for column, subnet in enumerate(COLUMNS)
        for h in members(subnet)
    )  # fmt: skip
    columns = tuple(SUBNETS[subnet] for subnet in COLUMNS)
    return Scene(KINDS, columns=columns, boxes=boxes, lines=(*last_actions(s), caption))


def _badge(activity: int) -> tuple[tuple[str, str], ...]:
    word = ACTIVITY[activity]
    return ((word, _hex(BADGE[word])),) if word else ()
