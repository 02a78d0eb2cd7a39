"""How numbers and sentences of a frame read, the same in text and in pictures."""

import math

from prefixgym.envs.rendering.frame import Frame, Totals


def share(value: float) -> str:
    """A share as per cent, `-` if there is none."""
    return "-" if math.isnan(value) else f"{100 * value:.0f} %"


def seconds(value: float) -> str:
    """A duration with two or three significant digits, `-` if there is none."""
    if math.isnan(value):
        return "-"
    if value < 1:
        return f"{1000 * value:.0f} ms"
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def cluster(frame: Frame) -> str:
    """How many instances, and what all their profiles have in common."""
    parts = zip(*(name.split("/") for name in frame.profiles), strict=True)
    same = "/".join(part[0] for part in parts if len(set(part)) == 1)
    return f"{len(frame.profiles)} x {same}" if same else f"{len(frame.profiles)} instances"


def totals(totals: Totals) -> list[tuple[str, str]]:
    """The figures of the episode so far, each with its name."""
    return [
        ("SLO met", share(totals.attainment)),
        ("good", "-" if math.isnan(totals.goodput) else f"{totals.goodput:.1f}/s"),
        ("p50 TTFT", seconds(totals.ttft_p50)),
        ("p99 TTFT", seconds(totals.ttft_p99)),
        ("p99 TPOT", seconds(totals.tpot_p99)),
        ("hits", share(totals.hit_rate)),
    ]


def progress(frame: Frame) -> str:
    """How far the episode is."""
    return f"{frame.decisions:,} of {frame.num_requests:,} requests routed, {frame.time:.2f} s"


def request(frame: Frame) -> str:
    """The request that waits, and what it asks for."""
    shown = frame.request
    if shown is None:
        return "none is left: the episode is over"
    return (
        f"{shown.index}: {shown.prompt_tokens:,} tokens of session {shown.session}, "
        f"{seconds(shown.gap)} after the last; "
        f"wanted: {seconds(shown.slo_ttft)} TTFT, {seconds(shown.slo_tpot)} TPOT"
    )


def decision(frame: Frame) -> str:
    """The decision taken last."""
    taken = frame.decision
    if taken is None:
        return "none yet"
    if taken.instance is None:
        return f"{taken.index} turned away, {taken.prompt_tokens:,} tokens"
    best = "" if taken.hit_tokens == taken.best_hit_tokens else f", best {taken.best_hit_tokens:,}"
    return (
        f"{taken.index} to instance {taken.instance}: "
        f"{taken.hit_tokens:,} of {taken.prompt_tokens:,} tokens cached{best}"
    )
