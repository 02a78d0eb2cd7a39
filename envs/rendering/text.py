"""A frame as text of at most 100 columns, for terminals and logs."""

import itertools
from collections.abc import Callable

from prefixgym.envs.rendering import words
from prefixgym.envs.rendering.frame import GOOD, MISSED, NOTHING, Frame

WIDTH = 100
_ONE_COLUMN = 16
"""More instances stand in two columns, with less about each."""

# What SGR codes of ECMA-48 are used for; blue and orange differ for everyone.
_BOLD, _FAINT, _BLUE, _ORANGE = "1", "2", "34", "33"

Paint = Callable[[str, str], str]


def frame_text(frame: Frame, *, colours: bool = False) -> str:
    """The frame in lines of at most `WIDTH` characters, without a newline at the end.

    KV memory is drawn as `█` in use, `▒` cached, `·` free; recent requests as `|` good, `x` missed.

    Args:
        frame: what to show.
        colours: mark it up with ANSI escape sequences.
    """

    def paint(code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if colours and code and text else text

    table = _one_column if len(frame.waiting) <= _ONE_COLUMN else _two_columns
    return "\n".join([*_head(frame, paint), "", *table(frame, paint)])


def _head(frame: Frame, paint: Paint) -> list[str]:
    title = f"{frame.title}  {words.progress(frame)}"
    lines = {
        "cluster": words.cluster(frame),
        "request": words.request(frame),
        "decision": words.decision(frame),
        "so far": "  ".join(f"{name} {value}" for name, value in words.totals(frame.totals)),
    }
    return [paint(_BOLD, title[:WIDTH])] + [
        paint(_FAINT, f"{name:<9}") + line[: WIDTH - 9] for name, line in lines.items()
    ]


def _one_column(frame: Frame, paint: Paint) -> list[str]:
    label = min(16, max(map(len, frame.labels)))
    heading = (
        f"  # {'':{label}} queue  run  {'KV memory':<14} {'hit':>5} first token "
        f"{'routed':>7} {'hits':>5} missed  recent"
    )
    lines = [paint(_FAINT, heading)]
    for i in range(len(frame.waiting)):
        waiting, missed = int(frame.waiting[i]), int(frame.missed[i])
        cells = [
            f"{_mark(frame, i)}{i:>2}",
            f"{frame.labels[i][:label]:{label}}",
            paint(_ORANGE if waiting else "", f"{waiting:>5}"),
            f"{frame.running[i]:>4} ",
            _memory(frame, i, 14, paint),
            f"{words.share(frame.hit[i]):>5}",
            _first_token(frame, i, 11, paint),
            f"{frame.routed[i]:>7}",
            f"{words.share(frame.hit_rate[i]):>5}",
            paint(_ORANGE if missed else "", f"{missed:>6} "),
            _recent(frame, i, 24 - label, paint),
        ]
        lines.append(" ".join(cells))
    return lines


def _two_columns(frame: Frame, paint: Paint) -> list[str]:
    half = -(-len(frame.waiting) // 2)
    label = min(8, max(map(len, frame.labels)))
    heading = f"  # {'':{label}}  q run {'KV memory':<{17 - label}} {'hit':>5} expected miss"
    cells = [_narrow(frame, i, label, paint) for i in range(len(frame.waiting))]
    rows = ["  ".join(cells[i : i + half + 1 : half]) for i in range(half)]
    return [paint(_FAINT, f"{heading}  {heading}"), *rows]


def _narrow(frame: Frame, i: int, label: int, paint: Paint) -> str:
    waiting, missed = int(frame.waiting[i]), int(frame.missed[i])
    cells = [
        f"{_mark(frame, i)}{i:>2}",
        f"{frame.labels[i][:label]:{label}}",
        paint(_ORANGE if waiting else "", f"{waiting:>2}"),
        f"{frame.running[i]:>3}",
        _memory(frame, i, 17 - label, paint),
        f"{words.share(frame.hit[i]):>5}",
        _first_token(frame, i, 8, paint),
        paint(_ORANGE if missed else "", f"{missed:>4}"),
    ]
    return " ".join(cells)


def _mark(frame: Frame, i: int) -> str:
    """`>` where the last decision went, `x` where no request may go."""
    if frame.decision is not None and frame.decision.instance == i:
        return ">"
    return " " if frame.available[i] else "x"


def _memory(frame: Frame, i: int, width: int, paint: Paint) -> str:
    used = round(width * frame.kv_used[i])
    cached = round(width * (frame.kv_used[i] + frame.kv_cached[i])) - used
    return paint(_BLUE, "█" * used) + paint(_BLUE, "▒" * cached) + "·" * (width - used - cached)


def _first_token(frame: Frame, i: int, width: int, paint: Paint) -> str:
    """When the first token is to be expected there, by the router's ledger."""
    if frame.request is None:
        return " " * width
    expected = frame.backlog[i] + frame.prefill[i]
    late = expected > frame.request.slo_ttft
    return paint(_ORANGE if late else "", f"{words.seconds(expected):>{width}}")


def _recent(frame: Frame, i: int, width: int, paint: Paint) -> str:
    drawn = {GOOD: (_BLUE, "|"), MISSED: (_ORANGE, "x"), NOTHING: ("", "")}
    runs = itertools.groupby(frame.recent[i, -width:].tolist())
    return "".join(
        paint(code, sign * len(list(run))) for fate, run in runs for code, sign in (drawn[fate],)
    )
