"""A world of CAGE 2 as a picture and as text: the truth, and what blue believes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from remuda.games.cage2.network import (
    ANALYSE,
    DECOYS,
    ENTERPRISE,
    EXPLOITS,
    HOSTS,
    N_HOSTS,
    NAMES,
    OP_SERVER,
    OPERATIONAL,
    SUBNETS,
    USER,
    action_name,
)
from remuda.games.cage2.state import EXPLOIT, NONE, RED_VERBS, REST, SUCCEEDED, SWEEP, decode, privilege

WIDTH, HEIGHT = 560, 360
BOX, GAP, TOP = (164, 40), 8, 34
COLUMNS = (USER, ENTERPRISE, OPERATIONAL)  # in the order in which red reaches them
TRUTH = ("", "user", "root")
BELIEF = ("", "unknown", "user", "privileged")
ACTIVITY = ("", "scan", "ATTACK", "scan*")
INK, PAPER, FAINT = (40, 44, 52), (250, 248, 243), (150, 150, 150)
FILL = ((255, 255, 255), (255, 208, 130), (240, 120, 110))  # by truth
FRAME = ((190, 190, 190), (150, 120, 200), (235, 140, 20), (200, 20, 20))  # by belief
BADGE = {"scan": (70, 130, 200), "scan*": (150, 185, 220), "ATTACK": (200, 20, 20)}
SIDES = {"red": (200, 20, 20), "blue": (40, 90, 200), "green": (30, 140, 70)}


def draw_text(s: Any, caption: str) -> str:
    """A line per host, then the last actions and the reward."""
    lines = [f"{'host':12s} {'truth':6s} {'blue thinks':12s} {'blue sees':10s} decoys"]
    levels = privilege(s)
    for subnet in COLUMNS:
        lines.append(f"{SUBNETS[subnet]}")
        for h in members(subnet):
            lines.append(
                f"  {NAMES[h]:12s}{TRUTH[levels[h]]:6s} {BELIEF[s.compromised[h]]:12s} "
                f"{ACTIVITY[s.activity[h]]:10s} {' '.join(decoy_names(s, h))}".rstrip()
            )
    return "\n".join([*lines, *last_actions(s), caption])


def draw_picture(s: Any, caption: str) -> NDArray[np.uint8]:
    """The three subnets as columns, (height, width, 3)."""
    image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    pen = ImageDraw.Draw(image)
    levels = privilege(s)
    for column, subnet in enumerate(COLUMNS):
        left = 18 + column * (BOX[0] + 16)
        pen.text((left, 12), SUBNETS[subnet], INK, _font(13))
        for row, h in enumerate(members(subnet)):
            _draw_host(pen, s, h, int(levels[h]), (left, TOP + row * (BOX[1] + GAP)))
    _legend(pen)
    for i, line in enumerate([*last_actions(s), caption]):
        pen.text((18, 284 + 18 * i), line, INK, _font(12))
    return np.asarray(image, np.uint8)


def _draw_host(pen: ImageDraw.ImageDraw, s: Any, h: int, level: int, corner: tuple[int, int]) -> None:
    x, y = corner
    belief = int(s.compromised[h])
    box = (x, y, x + BOX[0], y + BOX[1])
    pen.rectangle(box, FILL[level], FRAME[belief], 4 if belief else 1)
    pen.text((x + 8, y + 5), NAMES[h], INK, _font(12))
    decoys = decoy_names(s, h)
    names = " ".join(decoys if len(decoys) < 3 else [name[:3] for name in decoys])
    pen.text((x + 8, y + 22), names, (30, 110, 60), _font(10))
    for mark, (side, colour) in enumerate(actors(s, h)):
        spot = x + BOX[0] - 18 - 18 * mark
        pen.ellipse((spot, y + 23, spot + 13, y + 36), colour)
        pen.text((spot + 4, y + 24), side, (255, 255, 255), _font(10))
    word = ACTIVITY[s.activity[h]]
    if word:
        pen.rectangle((x + 108, y + 5, x + 157, y + 19), BADGE[word])
        pen.text((x + 113, y + 6), word, (255, 255, 255), _font(10))


def _legend(pen: ImageDraw.ImageDraw) -> None:
    """The legend, under the two shorter columns."""
    x, y = 18 + BOX[0] + 16, TOP + 4 * (BOX[1] + GAP) + 8
    pen.text((x, y), "truth (fill):", FAINT, _font(10))
    pen.text((x, y + 18), "blue thinks (frame):", FAINT, _font(10))
    for i, name in enumerate(("no red", "user", "root")):
        _sample(pen, (x + 100 + 66 * i, y), name, FILL[i], FRAME[0], 1)
    for i, name in enumerate(BELIEF[1:], 1):
        _sample(pen, (x + 34 + 66 * i, y + 18), name, FILL[0], FRAME[i], 3)


def _sample(pen: ImageDraw.ImageDraw, corner: tuple[int, int], name: str, fill: Any, frame: Any, width: int) -> None:
    x, y = corner
    pen.rectangle((x, y + 1, x + 12, y + 12), fill, frame, width)
    pen.text((x + 16, y), name, FAINT, _font(10))


def last_actions(s: Any) -> list[str]:
    """The last actions of all sides, and the reward."""
    worked = "" if s.blue_success else " (no effect)"
    service = "OTService runs" if s.service_up else "OTService is DOWN"
    green = "" if s.green_target == NONE else f"   green: scan {NAMES[s.green_target]}"
    return [
        f"blue: {action_name(int(s.blue))}{worked}{green}",
        f"red: {_red_action(s)}",
        f"reward {-int(s.cost) / 10:.1f}, {service}",
    ]


def _red_action(s: Any) -> str:
    verb, target = int(s.red), int(s.red_target)
    if verb == REST:
        return RED_VERBS[REST]
    where = SUBNETS[target] if verb == SWEEP else NAMES[target]
    exploit = int(s.exploit)
    how = f" by {EXPLOITS[exploit - 1].name}" if verb == EXPLOIT and 0 < exploit < NONE else ""
    return f"{RED_VERBS[verb]} {where}{how}: {'success' if s.red_success == SUCCEEDED else 'failure'}"


def actors(s: Any, h: int) -> list[tuple[str, tuple[int, int, int]]]:
    """The sides whose last action was aimed at this host, with their colours."""
    verb, host = decode(int(s.blue))
    red = ("R", SIDES["red"]) if s.red > SWEEP and s.red_target == h else None
    blue = ("B", SIDES["blue"]) if verb >= ANALYSE and host == h else None
    green = ("G", SIDES["green"]) if s.green_target == h else None
    return [actor for actor in (red, blue, green) if actor]


def decoy_names(s: Any, h: int) -> list[str]:
    return [DECOYS[d].name for d in np.flatnonzero(s.decoys[h])]


def members(subnet: int) -> list[int]:
    """The hosts of a subnet, the server first."""
    hosts = [h for h in range(N_HOSTS) if HOSTS[h].subnet == subnet]
    return sorted(hosts, key=lambda h: (h != OP_SERVER, h))


@cache
def _font(size: int) -> Any:
    return ImageFont.load_default(size)
