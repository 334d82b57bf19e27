"""Draws a film: pictures with the agents' colours and numbers, legend, score board and turn, as GIF, MP4 or WebM."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from remuda.core.errors import ConfigError, RunError, first_line
from remuda.core.scene import CELL, CROSS, DIAMOND, DISC, FRAME
from remuda.runs.film_data import Film, kinds_seen

SUFFIXES = (".gif", ".mp4", ".webm")
INK, SOFT, PAPER, LINE = "#1d2733", "#5b6775", "#fbfbf9", "#d4d9df"
PANEL, MARGIN, HEAD, ROW, LEGEND_ROW, LINE_HEIGHT = 190, 14, 40, 20, 18, 18
BOX, GAP = (156, 44), 8
MAX_AGENTS = 12
"""Agents on the score board; the rest are summed up."""
COLOURS = 160
MAX_ELONGATION = 1.25
BEAM_ALPHA = 165
PALETTE_TURNS = 6
OVERSAMPLE = 4
FACINGS = {0: (0, -1), 1: (0, 1), 2: (-1, 0), 3: (1, 0)}  # up, down, left, right as (x, y)


def write_film(film: Film, target: Path, size: int, speed: float) -> None:
    """Write the film; the ending of the file's name decides the format. The field is about `size` pixels large."""
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"{target} should end in {', '.join(SUFFIXES)}")
    try:
        if suffix == ".gif":
            palette = _palette(film, size)
            first, *rest = (
                image.quantize(palette=palette, dither=Image.Dither.NONE) for image in draw_film(film, size)
            )
            first.save(target, save_all=True, append_images=rest, duration=max(20, round(1000 / speed)), loop=0)
        else:
            _write_video(draw_film(film, size), target, speed)
    except OSError as error:
        raise RunError(f"{target} cannot be written: {error.strerror or error}") from None


def _palette(film: Film, size: int) -> Image.Image:
    """Colours for all pictures: with one palette a GIF stores only what changes, a third of the bytes.

    Those with a meaning are in it as they are: quantizing makes a thin violet frame grey.
    """
    some = list(draw_film(film, size, max(1, len(film.turns) // PALETTE_TURNS)))
    sheet = Image.new("RGB", (some[0].width, some[0].height * len(some)))
    for i, image in enumerate(some):
        sheet.paste(image, (0, i * image.height))
    found = sheet.quantize(COLOURS)
    exact = _named_colours(film)[: 256 - COLOURS]
    found.putpalette([part for colour in exact for part in colour] + (found.getpalette() or [])[: 3 * COLOURS])
    return found


def _named_colours(film: Film) -> list[tuple[int, ...]]:
    """Of ink and paper, kinds, beams on every ground, and the agents on the score board."""
    header = film.header
    kinds = [(ImageColor.getrgb(colour), shape) for _, colour, shape in header.get("kinds", ())]
    grounds = [colour for colour, shape in kinds if shape == CELL]
    beams = [ImageColor.getrgb(name) for name in {beam[2]: 0 for turn in film.turns for beam in turn.get("beams", ())}]
    lit = [_mixed(ground, beam) for beam in beams for ground in grounds]
    others = map(ImageColor.getrgb, (INK, PAPER, "#ffffff", *header["colours"][:MAX_AGENTS]))
    return list(dict.fromkeys([*others, *(colour for colour, _ in kinds), *lit]))


def _mixed(ground: tuple[int, ...], beam: tuple[int, ...]) -> tuple[int, ...]:
    """The colour of a ground under a beam."""
    share = BEAM_ALPHA / 255
    return tuple(round(below + (above - below) * share) for below, above in zip(ground, beam, strict=True))


def _write_video(images: Iterator[Image.Image], target: Path, speed: float) -> None:
    try:
        import imageio_ffmpeg
    except ImportError:
        raise ConfigError(
            f"{target.suffix} needs an encoder: pip install 'remuda-rl[video]', or write a .gif"
        ) from None
    first = next(images)
    codec = {".mp4": "libx264", ".webm": "libvpx-vp9"}[target.suffix.lower()]
    with target.open("wb"):  # says at once where nothing can be written
        pass
    writer = imageio_ffmpeg.write_frames(
        str(target), first.size, fps=speed, codec=codec, macro_block_size=2, output_params=["-crf", "22", "-b:v", "0"]
    )
    writer.send(None)
    writer.send(np.ascontiguousarray(first).tobytes())
    for image in images:
        writer.send(np.ascontiguousarray(image).tobytes())
    writer.close()


def draw_film(film: Film, size: int, every: int = 1) -> Iterator[Image.Image]:
    """The pictures of a film, one per turn or of every so many turns one, all of the same size."""
    field = _field(film, size)
    legend = kinds_seen(film)
    lines = LINE_HEIGHT * max((len(turn.get("lines", ())) for turn in film.turns), default=0)
    height = HEAD + max(field.height, _panel_height(film, legend)) + MARGIN + lines
    width = field.width + PANEL + 3 * MARGIN
    for number, turn in enumerate(film.turns):
        field.follow(turn)
        if number % every:
            continue
        image = Image.new("RGB", (width + width % 2, height + height % 2), PAPER)
        pen = ImageDraw.Draw(image)
        _head(pen, film, turn, width)
        image.paste(field.draw(turn), (MARGIN, HEAD))
        _panel(pen, film, turn, field.width + 2 * MARGIN, legend)
        top = height - MARGIN // 2 - lines
        for i, line in enumerate(turn.get("lines", ())):
            pen.text((MARGIN, top + LINE_HEIGHT * i), str(line), INK, _font(12))
        yield image


def _head(pen: ImageDraw.ImageDraw, film: Film, turn: dict[str, Any], width: int) -> None:
    header = film.header
    count = header.get("episodes")
    trained = "" if count is None else f"after {count:,} episode{'s' * (count != 1)}"
    pen.text((MARGIN, 11), f"{header['game']}  ", INK, _font(15))
    start = MARGIN + pen.textlength(f"{header['game']}   ", _font(15))
    pen.text((start, 13), trained, SOFT, _font(12))
    counter = f"turn {turn['turn']} of {film.turns[-1]['turn']}"
    pen.text((width - MARGIN - pen.textlength(counter, _font(13)), 12), counter, INK, _font(13))


def _score_rows(film: Film) -> list[str]:
    return list(film.header["agents"][:MAX_AGENTS])


def _panel_height(film: Film, legend: Sequence[Sequence[str]]) -> int:
    herd = ROW + 8 if len(film.header["agents"]) > 1 else 0
    return ROW * len(_score_rows(film)) + herd + LEGEND_ROW * len(legend)


def _panel(
    pen: ImageDraw.ImageDraw, film: Film, turn: dict[str, Any], left: int, legend: Sequence[Sequence[str]]
) -> None:
    """The score board and the legend. Who is not in the world has an empty circle."""
    names, scores, colours = film.header["agents"], turn["scores"], film.header["colours"]
    here = {agent[0] for agent in turn["agents"]} if "agents" in turn else set(range(len(names)))
    right, y = left + PANEL, HEAD
    for number, name in enumerate(_score_rows(film)):
        is_here = number in here
        pen.ellipse((left, y + 2, left + 14, y + 16), colours[number] if is_here else PAPER, colours[number])
        _centred(pen, (left + 7, y + 9), str(number), "#ffffff" if is_here else colours[number], _font(9))
        pen.text((left + 22, y + 1), _cut(pen, name, 100), INK if is_here else SOFT, _font(12))
        _right(pen, (right, y + 1), f"{scores[number]:.1f}", INK, 12)
        y += ROW
    if len(names) > 1:
        pen.line((left, y + 2, right, y + 2), LINE)
        more = f" ({len(names)} agents)" if len(names) > MAX_AGENTS else ""
        pen.text((left + 22, y + 6), f"herd{more}", SOFT, _font(12))
        _right(pen, (right, y + 6), f"{sum(scores):.1f}", INK, 12)
        y += ROW + 8
    for name, colour, shape in legend:
        image = _sprite(shape, colour, 14)
        pen._image.paste(image, (left, y + 2), image)
        pen.text((left + 22, y + 1), _cut(pen, name, PANEL - 22), SOFT, _font(11))
        y += LEGEND_ROW


class _GridField:
    """A grid: cells, what lies in them, agents and beams."""

    def __init__(self, film: Film, size: int) -> None:
        self.rows, self.cols = film.header["size"]
        # Long fields are a little longer than square ones, or their agents' numbers could not be read.
        fitting = min(size / (self.rows * self.cols) ** 0.5, MAX_ELONGATION * size / max(self.rows, self.cols))
        self.cell = max(6, int(fitting))
        self.width, self.height = self.cols * self.cell, self.rows * self.cell
        self.kinds, self.colours = film.header["kinds"], film.header["colours"]
        self.cells = np.zeros(self.rows * self.cols, np.int64)
        grounds = [ImageColor.getrgb(colour if shape == CELL else self.kinds[0][1]) for _, colour, shape in self.kinds]
        self.grounds = np.array(grounds, np.uint8)

    def follow(self, turn: dict[str, Any]) -> None:
        for index, kind in turn["cells"]:
            self.cells[index] = kind

    def draw(self, turn: dict[str, Any]) -> Image.Image:
        cell = self.cell
        ground = self.grounds[self.cells.reshape(self.rows, self.cols)].repeat(cell, axis=0).repeat(cell, axis=1)
        if cell >= 12:  # faint lines between the cells
            ground[::cell] -= (ground[::cell] // 14).astype(np.uint8)
            ground[:, ::cell] -= (ground[:, ::cell] // 14).astype(np.uint8)
        image = Image.fromarray(ground)
        pen = ImageDraw.Draw(image, "RGBA")
        for row, col, colour in turn.get("beams", ()):
            box = (col * cell, row * cell, (col + 1) * cell - 1, (row + 1) * cell - 1)
            pen.rectangle(box, (*ImageColor.getrgb(colour), BEAM_ALPHA))
        for index in np.flatnonzero([self.kinds[kind][2] != CELL for kind in self.cells]):
            _, colour, shape = self.kinds[self.cells[index]]
            sprite = _sprite(shape, colour, cell)
            image.paste(sprite, (int(index) % self.cols * cell, int(index) // self.cols * cell), sprite)
        for number, row, col, _, *rings in turn["agents"]:
            sprite = _agent_sprite(number, self.colours[number], cell, *rings)
            image.paste(sprite, (col * cell, row * cell), sprite)
        for _, row, col, facing, *_ in turn["agents"]:
            if facing in FACINGS:
                sprite = _nose_sprite(facing, cell)
                image.paste(sprite, (col * cell - cell // 2, row * cell - cell // 2), sprite)
        return image


class _BoxField:
    """Boxes in columns, such as the hosts of a network."""

    def __init__(self, film: Film, size: int) -> None:
        header = film.header
        self.columns, self.boxes, self.kinds = header["columns"], header["boxes"], header["kinds"]
        self.looks: list[list[Any]] = [[] for _ in self.boxes]
        rows = max(sum(column == own for _, own in self.boxes) for column in range(len(self.columns)))
        self.width = len(self.columns) * (BOX[0] + 14)
        self.height = 24 + rows * (BOX[1] + GAP)

    def follow(self, turn: dict[str, Any]) -> None:
        for index, *look in turn["boxes"]:
            self.looks[index] = look

    def draw(self, turn: dict[str, Any]) -> Image.Image:
        image = Image.new("RGB", (self.width, self.height), PAPER)
        pen = ImageDraw.Draw(image)
        used = [0] * len(self.columns)
        for column, name in enumerate(self.columns):
            pen.text((column * (BOX[0] + 14), 0), name, INK, _font(13))
        for (name, column), look in zip(self.boxes, self.looks, strict=True):
            corner = (column * (BOX[0] + 14), 24 + used[column] * (BOX[1] + GAP))
            used[column] += 1
            self._draw_box(pen, name, look, corner)
        return image

    def _draw_box(self, pen: ImageDraw.ImageDraw, name: str, look: list[Any], corner: tuple[int, int]) -> None:
        fill, frame, note, marks = look
        x, y = corner
        pen.rounded_rectangle((x, y, x + BOX[0], y + BOX[1]), 6, self.kinds[fill][1], self.kinds[frame][1], 3)
        pen.text((x + 9, y + 5), name, INK, _font(12))
        pen.text((x + 9, y + 24), _cut(pen, note, BOX[0] - 16), "#1e6e3c", _font(10))
        right = x + BOX[0] - 7
        for text, colour in reversed(marks):
            width = max(15, int(pen.textlength(text, _font(10))) + 8)
            pen.rounded_rectangle((right - width, y + 24, right, y + 38), 4, colour)
            _centred(pen, (right - width // 2, y + 31), text, "#ffffff", _font(10))
            right -= width + 3


class _PictureField:
    """The game's own pictures, enlarged by whole numbers where they are small."""

    def __init__(self, film: Film, size: int) -> None:
        height, width = film.header["size"]
        self.scale = max(1, size // max(height, width))
        self.width, self.height = width * self.scale, height * self.scale

    def follow(self, turn: dict[str, Any]) -> None:
        """Nothing: a picture shows everything."""

    def draw(self, turn: dict[str, Any]) -> Image.Image:
        picture = Image.open(io.BytesIO(base64.b64decode(turn["picture"]))).convert("RGB")
        return picture.resize((self.width, self.height), Image.Resampling.NEAREST)


def _field(film: Film, size: int) -> _GridField | _BoxField | _PictureField:
    header = film.header
    try:
        if "kinds" not in header:
            return _PictureField(film, size)
        return _GridField(film, size) if header["size"] else _BoxField(film, size)
    except (KeyError, ValueError, TypeError) as error:
        raise RunError(f"the film is damaged: {first_line(error)}") from None


@cache
def _sprite(shape: str, colour: str, size: int) -> Image.Image:
    """What lies in a cell, with smooth edges, on nothing."""
    big = size * OVERSAMPLE
    image = Image.new("RGBA", (big, big))
    pen = ImageDraw.Draw(image)
    low, high, middle = big * 0.2, big * 0.8, big / 2
    # Items have a dark edge and agents a white one, so that an apple is no agent although both are green.
    edge, line = _darker(colour), max(1, big // 24)
    if shape == DISC:
        pen.ellipse((low, low, high, high), colour, edge, line)
    elif shape == DIAMOND:
        points = [(middle, low * 0.7), (high, middle), (middle, big - low * 0.7), (low, middle)]
        pen.polygon(points, colour, edge, line)
    elif shape == CROSS:
        width = max(1, big // 6)
        pen.line((low, low, high, high), colour, width)
        pen.line((low, high, high, low), colour, width)
    elif shape == FRAME:
        pen.rectangle((low / 2, low / 2, big - low / 2, big - low / 2), None, colour, big // 6)
    else:
        pen.rectangle((low / 2, low / 2, big - low / 2, big - low / 2), colour, LINE, OVERSAMPLE)
    return image.resize((size, size), Image.Resampling.LANCZOS)


def _darker(colour: str) -> tuple[int, ...]:
    return tuple(part * 6 // 10 for part in ImageColor.getrgb(colour))


@cache
def _agent_sprite(number: int, colour: str, size: int, ring: str | None = None) -> Image.Image:
    """An agent: a disc with its number, and perhaps a ring."""
    big = size * OVERSAMPLE
    image = Image.new("RGBA", (big, big))
    pen = ImageDraw.Draw(image)
    inset = big * 0.06
    edge = max(1, big // (7 if ring else 24))
    pen.ellipse((inset, inset, big - inset, big - inset), colour, ring or "#ffffff", edge)
    if size >= 12:
        font = _font(max(8, round((big - 2 * inset) * (0.6 if number < 100 else 0.42))))
        _centred(pen, (big / 2, big / 2), str(number), "#ffffff", font)
    return image.resize((size, size), Image.Resampling.LANCZOS)


@cache
def _nose_sprite(facing: int, size: int) -> Image.Image:
    """Where an agent faces: two cells large, as it reaches into the next one, and drawn over whatever is there."""
    big = size * OVERSAMPLE
    image = Image.new("RGBA", (2 * big, 2 * big))
    x, y = FACINGS[facing]
    tip, base, side = big * 0.74, big * 0.36, big * 0.26
    corners = [
        (big + x * tip, big + y * tip),
        (big + x * base + y * side, big + y * base + x * side),
        (big + x * base - y * side, big + y * base - x * side),
    ]
    ImageDraw.Draw(image).polygon(corners, INK, "#ffffff", max(1, big // 20))
    return image.resize((2 * size, 2 * size), Image.Resampling.LANCZOS)


def _centred(pen: ImageDraw.ImageDraw, middle: tuple[float, float], text: str, colour: str, font: Any) -> None:
    pen.text(middle, text, colour, font, anchor="mm")


def _right(pen: ImageDraw.ImageDraw, corner: tuple[float, float], text: str, colour: str, size: int) -> None:
    pen.text((corner[0] - pen.textlength(text, _font(size)), corner[1]), text, colour, _font(size))


def _cut(pen: ImageDraw.ImageDraw, text: str, width: float) -> str:
    """The text, shortened to this width."""
    font = _font(12)
    if pen.textlength(text, font) <= width:
        return text
    while text and pen.textlength(f"{text}…", font) > width:
        text = text[:-1]
    return f"{text}…"


@cache
def _font(size: int) -> Any:
    return ImageFont.load_default(size)
