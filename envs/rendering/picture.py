"""A frame as a picture, drawn with Pillow: one row an instance, dark on light."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont

from prefixgym.envs.rendering import words
from prefixgym.envs.rendering.frame import GOOD, NOTHING, Frame

# Okabe and Ito's colours, which colour-blind people tell apart, the second blue lightened.
_BLUE, _SKY, _ORANGE, _GREEN = "#0072B2", "#A9D3EE", "#E69F00", "#009E73"
_VERMILLION = "#D55E00"
_INK, _GREY, _PALE, _RULE = "#1A1A1A", "#666666", "#B0B0B0", "#E3E3E3"
_PAPER, _CHOSEN = "#FFFFFF", "#FFF1BF"

_MARGIN = 16
_HEAD = 124
"""Height of what stands above the table."""
_HEADING = 40
"""Height of the table's own head."""
_PANEL_ROWS = 24
"""More instances stand in two panels, with less about each."""


def draw(frame: Frame) -> NDArray[np.uint8]:
    """The frame as a picture, uint8 [height, width, 3]; equal frames give equal pictures.

    The size depends on the number of instances alone.
    """
    num_instances = len(frame.waiting)
    layout = _WIDE if num_instances <= _PANEL_ROWS else _NARROW
    rows = -(-num_instances // layout.panels)
    panel_width = sum(column.width for column in layout.columns)
    width = layout.panels * (panel_width + _MARGIN) + _MARGIN
    height = _HEAD + _HEADING + rows * layout.row + _MARGIN
    image = Image.new("RGB", (width, height), _PAPER)
    pen = _Pen(ImageDraw.Draw(image), frame, layout.text, layout.row)
    _draw_head(pen, width)
    for i in range(num_instances):
        panel, row = divmod(i, rows)
        x = _MARGIN + panel * (panel_width + _MARGIN)
        if row == 0:
            _draw_heading(pen, layout.columns, x)
        _draw_row(pen, layout.columns, x, _HEAD + _HEADING + row * layout.row, i)
    return np.array(image)


@functools.cache
def colours() -> Image.Image:
    """What pictures are made of, as the palette of an image: inks, and their blends with grounds
    at the edges of letters."""
    blends = [
        round(ink + (ground - ink) * k / 12)
        for background in (_PAPER, _CHOSEN)
        for colour in (_INK, _GREY, _PALE, _BLUE, _VERMILLION)
        for k in range(13)
        for ink, ground in zip(
            ImageColor.getrgb(colour)[:3], ImageColor.getrgb(background)[:3], strict=True
        )
    ]
    for colour in (_SKY, _ORANGE, _GREEN, _RULE):
        blends += ImageColor.getrgb(colour)
    palette = Image.new("P", (1, 1))
    palette.putpalette(blends)
    return palette


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise ImportError("pictures need a Pillow that was built with FreeType, as its wheels are")
    # The basic layout is in every build, so that pictures are the same everywhere.
    return font.font_variant(layout_engine=ImageFont.Layout.BASIC)


@functools.lru_cache(4096)  # most words and numbers come back from frame to frame
def _written(text: str, size: int) -> Image.Image:
    """The text as a mask, 2·size pixels high, its middle in the middle."""
    font = _font(size)
    mask = Image.new("L", (max(1, math.ceil(font.getlength(text))), 2 * size))
    ImageDraw.Draw(mask).text((0, size), text, 255, font, "lm")
    return mask


@dataclass(frozen=True)
class _Pen:
    """What a column needs to draw its cell of one row."""

    canvas: ImageDraw.ImageDraw
    frame: Frame
    size: int
    row: int

    def write(
        self, x: int, middle: int, text: str, colour: str = _INK, size: int = 0, end: bool = False
    ) -> int:
        """Write from `x`, or up to `x` if `end`; where the text ends."""
        mask = _written(text, size or self.size)
        left = x - mask.width if end else x
        self.canvas.bitmap((left, middle - mask.height // 2), mask, colour)
        return left + mask.width

    def bar(self, x: int, middle: int, width: int, *parts: tuple[float, str]) -> None:
        """A frame of `width` pixels, filled from the left by shares in colours."""
        reach = round(self.row * 0.28)
        top, bottom = middle - reach, middle + reach
        left = 0.0
        for value, colour in parts:
            right = min(1.0, left + value)
            if right > left:
                span = (x + round(width * left), top, x + round(width * right), bottom)
                self.canvas.rectangle(span, colour)
            left = right
        self.canvas.rectangle((x, top, x + width, bottom), outline=_PALE)


# --- columns --------------------------------------------------------------------------------------

# Draws instance i between x and x + width, around the height `middle`.
Cell = Callable[[_Pen, int, int, int, int], None]


def _instance(pen: _Pen, x: int, width: int, middle: int, i: int) -> None:
    frame = pen.frame
    if frame.decision is not None and frame.decision.instance == i:
        pen.canvas.polygon([(x, middle - 6), (x + 9, middle), (x, middle + 6)], _VERMILLION)
    colour = _INK if frame.available[i] else _PALE
    pen.write(x + 31, middle, str(i), colour, pen.size + 1, end=True)
    pen.write(x + 37, middle, frame.labels[i], _GREY, pen.size - 2)


def _queue(pen: _Pen, x: int, width: int, middle: int, i: int) -> None:
    running, waiting = int(pen.frame.running[i]), int(pen.frame.waiting[i])
    most = _queue_scale(pen.frame)
    bar = width - 66
    pen.bar(x, middle, bar, (running / most, _BLUE), (waiting / most, _ORANGE))
    end = pen.write(x + bar + 6, middle, f"{running}", _BLUE)
    if waiting:
        pen.write(end + 4, middle, f"+ {waiting}", _VERMILLION)


def _queue_scale(frame: Frame) -> int:
    """Requests that a full bar stands for, the same on all instances: 16, 24, 32, 48, 64, …"""
    most, scale = int((frame.running + frame.waiting).max()), 16
    while scale < most:
        scale = scale * 3 // 2 if scale.bit_count() == 1 else scale * 4 // 3
    return scale


def _memory(pen: _Pen, x: int, width: int, middle: int, i: int) -> None:
    used, cached = float(pen.frame.kv_used[i]), float(pen.frame.kv_cached[i])
    bar = width - 48
    pen.bar(x, middle, bar, (used, _BLUE), (cached, _SKY))
    pen.write(x + bar + 6, middle, words.share(used))


def _hit(pen: _Pen, x: int, width: int, middle: int, i: int) -> None:
    if pen.frame.request is not None:
        hit = float(pen.frame.hit[i])
        bar = width - 54
        pen.bar(x, middle, bar, (hit, _GREEN))
        pen.write(x + bar + 6, middle, words.share(hit))


def _first_token(pen: _Pen, x: int, width: int, middle: int, i: int) -> None:
    """Backlog and prefill against the objective, which stands in the middle of the bar."""
    frame = pen.frame
    if frame.request is None:
        return
    backlog, prefill = float(frame.backlog[i]), float(frame.prefill[i])
    objective = frame.request.slo_ttft
    bar = width - 60
    full = 2 * objective
    pen.bar(x, middle, bar, (backlog / full, _ORANGE), (prefill / full, _SKY))
    mark, reach = x + bar // 2, round(pen.row * 0.38)
    pen.canvas.line((mark, middle - reach, mark, middle + reach), _INK, 2)
    late = backlog + prefill > objective
    pen.write(x + bar + 6, middle, words.seconds(backlog + prefill), _VERMILLION if late else _INK)


def _routed(pen: _Pen, x: int, width: int, middle: int, i: int) -> None:
    pen.write(x + width - 16, middle, f"{pen.frame.routed[i]:,}", end=True)


def _hit_rate(pen: _Pen, x: int, width: int, middle: int, i: int) -> None:
    pen.write(x + width - 16, middle, words.share(float(pen.frame.hit_rate[i])), end=True)


def _missed(pen: _Pen, x: int, width: int, middle: int, i: int) -> None:
    missed = int(pen.frame.missed[i])
    pen.write(x + width - 12, middle, f"{missed:,}", _VERMILLION if missed else _GREY, end=True)


def _recent(pen: _Pen, x: int, width: int, middle: int, i: int) -> None:
    """A tick for each: low and blue is good, high and vermillion is missed."""
    recent = pen.frame.recent[i]
    pitch = width // len(recent)
    for k, fate in enumerate(recent.tolist()):
        if fate != NOTHING:
            left, reach = x + k * pitch, 4 if fate == GOOD else 9
            span = (left, middle - reach, left + pitch - 2, middle + reach)
            pen.canvas.rectangle(span, _BLUE if fate == GOOD else _VERMILLION)


@dataclass(frozen=True)
class _Column:
    """One column: its heading, and under that what its colours mean."""

    heading: str
    legend: tuple[tuple[str, str], ...]  # word, colour
    width: int
    cell: Cell


@dataclass(frozen=True)
class _Layout:
    """Panels side by side, each a table; sizes in pixels."""

    panels: int
    row: int
    text: int
    columns: tuple[_Column, ...]


_QUEUE = (("running", _BLUE), ("waiting", _ORANGE))
_MEMORY = (("in use", _BLUE), ("cached", _SKY))
_HIT = (("this request", _GREEN),)
_TIMES = (("queue", _ORANGE), ("prefill", _SKY), ("SLO", _INK))
_FATES = (("met", _BLUE), ("missed", _VERMILLION))

_WIDE = _Layout(
    panels=1,
    row=32,
    text=14,
    columns=(
        _Column("", (), 104, _instance),
        _Column("requests", _QUEUE, 200, _queue),
        _Column("KV memory", _MEMORY, 168, _memory),
        _Column("prefix hit", _HIT, 122, _hit),
        _Column("first token expected", _TIMES, 190, _first_token),
        _Column("routed", (), 64, _routed),
        _Column("hit rate", (), 64, _hit_rate),
        _Column("missed", (), 60, _missed),
        _Column("latest requests", _FATES, 144, _recent),
    ),
)
_NARROW = _Layout(
    panels=2,
    row=20,
    text=12,
    columns=(
        _Column("", (), 76, _instance),
        _Column("requests", _QUEUE, 130, _queue),
        _Column("KV memory", _MEMORY, 120, _memory),
        _Column("prefix hit", _HIT, 100, _hit),
        _Column("first token", _TIMES, 160, _first_token),
        _Column("missed", (), 52, _missed),
    ),
)


# --- the picture's parts --------------------------------------------------------------------------


def _draw_head(pen: _Pen, width: int) -> None:
    frame, left, right = pen.frame, _MARGIN, width - _MARGIN
    end = pen.write(left, 24, frame.title, size=19)
    pen.write(end + 16, 25, words.cluster(frame), _GREY, 14)
    pen.write(right, 25, words.progress(frame), size=15, end=True)
    for middle, name, line in (
        (54, "request", words.request(frame)),
        (76, "decision", words.decision(frame)),
        (104, "so far", ""),
    ):
        pen.write(left, middle, name, _GREY, 15)
        pen.write(left + 76, middle, line, size=15)
    x = left + 76
    for name, value in words.totals(frame.totals):
        x = pen.write(x, 104, name, _GREY, 15)
        x = pen.write(x + 8, 103, value, size=19) + 26


def _draw_heading(pen: _Pen, columns: Sequence[_Column], x: int) -> None:
    left = x
    for column in columns:
        pen.write(x, _HEAD + 8, column.heading, size=13)
        at = x
        for word, colour in column.legend:
            pen.canvas.rectangle((at, _HEAD + 21, at + 8, _HEAD + 29), colour)
            at = pen.write(at + 12, _HEAD + 25, word, _GREY, 12) + 9
        x += column.width
    pen.canvas.line((left, _HEAD + _HEADING - 4, x, _HEAD + _HEADING - 4), _GREY)


def _draw_row(pen: _Pen, columns: Sequence[_Column], x: int, top: int, i: int) -> None:
    right, bottom = x + sum(column.width for column in columns), top + pen.row - 1
    if pen.frame.decision is not None and pen.frame.decision.instance == i:
        pen.canvas.rectangle((x - 4, top, right, bottom), _CHOSEN)
    pen.canvas.line((x, bottom, right, bottom), _RULE)
    for column in columns:
        column.cell(pen, x, column.width, top + pen.row // 2, i)
        x += column.width
