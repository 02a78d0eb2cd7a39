"""One run, as its TensorBoard events tell it.

What learns writes the same tags for the same things (`prefixgym.experiments.training.tensorboard`),
so it does not matter here who learned.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from prefixgym.experiments.training.tensorboard import ABOUT, tag_of

_WEIGHTS = ("best.safetensors", "weights.safetensors")
_OWN = ("learned", "linear_score")
"""What the learned router may be called on a card."""

_JUDGED = ("serving/attainment", "serving/ttft_p99", "charts/decisions", "charts/seconds")


@dataclass(frozen=True)
class Figures:
    """Means over episodes: share of requests within their objectives, and p99 TTFT in s."""

    attainment: float
    ttft_p99: float


@dataclass(frozen=True)
class Run:
    """What was learned, and how that was judged.

    Attributes:
        path: its folder.
        learner: what learned.
        scenario, rate: what on; requests/s.
        seed: its seed.
        settings: all that decides what is learned, but for the seed.
        decisions, seconds: of learning before each judgement, [J].
        attainment, ttft_p99: judged on validation episodes, [J]; s.
        total_decisions, total_seconds: of learning so far.
        best: of the weights that are kept.
        limit: s, the highest p99 TTFT within which attainment counts.
        handcrafted: routers on the same episodes, by tag.
        test: the kept weights on test episodes, None as long as they have not been played.
        test_handcrafted: handcrafted routers there, by tag.
    """

    path: Path
    learner: str
    scenario: str
    rate: float
    seed: int
    settings: Mapping[str, Any]
    decisions: NDArray[np.float64]
    seconds: NDArray[np.float64]
    attainment: NDArray[np.float64]
    ttft_p99: NDArray[np.float64]
    total_decisions: int
    total_seconds: float
    best: Figures
    limit: float
    handcrafted: Mapping[str, Figures]
    test: Figures | None
    test_handcrafted: Mapping[str, Figures]


def read_run(path: Path) -> Run:
    """The run in a folder.

    Raises:
        ValueError: there is no such folder, or no events of a run that was judged.
    """
    if not path.is_dir():
        raise ValueError(f"{path}: no such folder; a run's folder is wanted, as runs/NAME")
    if not any(path.glob("*tfevents*")):
        raise ValueError(
            f"{path}: found no TensorBoard events, expected those of a run of prefixgym train, "
            "evolve or imitate"
        )
    events = EventAccumulator(str(path), {"scalars": 0, "tensors": 0, "images": 1, "histograms": 1})
    events.Reload()
    about = _about(path, events)
    scalars = {tag: _by_step(events, tag) for tag in events.Tags()["scalars"]}
    if missing := [tag for tag in (*_JUDGED, "kept/attainment") if tag not in scalars]:
        raise ValueError(f"{path}: was not judged yet, its events lack {', '.join(missing)}")
    steps = sorted(set.intersection(*(set(scalars[tag]) for tag in _JUDGED)))
    attainment, ttft_p99, decisions, seconds = (
        np.array([scalars[tag][step] for step in steps]) for tag in _JUDGED
    )
    test, test_handcrafted = _tests(path)
    settings = dict(about["settings"])
    settings.pop("seed", None)
    return Run(
        path,
        about["learner"],
        about["scenario"],
        float(about["rate"]),
        int(about["seed"]),
        settings,
        decisions,
        seconds,
        attainment,
        ttft_p99,
        int(_last(scalars["charts/decisions"])),
        _last(scalars["charts/seconds"]),
        Figures(_last(scalars["kept/attainment"]), _last(scalars["kept/ttft_p99"])),
        _last(scalars["kept/ttft_p99_limit"]),
        {
            name: Figures(
                _last(scalars[f"handcrafted/attainment/{name}"]),
                _last(scalars[f"handcrafted/ttft_p99/{name}"]),
            )
            for name in _names(scalars)
        },
        test,
        test_handcrafted,
    )


def _about(path: Path, events: EventAccumulator) -> dict[str, Any]:
    tag = f"{ABOUT}/text_summary"
    if tag not in events.Tags()["tensors"]:
        found = sorted(tag for kind in ("scalars", "tensors") for tag in events.Tags()[kind])
        told = f"events with {', '.join(found[:4])}" if found else "no events that can be read"
        raise ValueError(
            f"{path}: found {told}{', …' if len(found) > 4 else ''}, expected the text {ABOUT!r}, "
            "which prefixgym train, evolve and imitate write"
        )
    text = events.Tensors(tag)[-1].tensor_proto.string_val[0]
    found_about: dict[str, Any] = json.loads(text)
    return found_about


def _by_step(events: EventAccumulator, tag: str) -> dict[int, float]:
    """What was written last for each step."""
    return {event.step: event.value for event in events.Scalars(tag)}


def _last(series: Mapping[int, float]) -> float:
    return series[max(series)]


def _names(scalars: Mapping[str, Any]) -> list[str]:
    before = "handcrafted/attainment/"
    return [tag.removeprefix(before) for tag in scalars if tag.startswith(before)]


def _tests(path: Path) -> tuple[Figures | None, dict[str, Figures]]:
    """From the card of the weights: the learned router on test episodes, and the others."""
    for file in (path / name for name in _WEIGHTS):
        if not file.exists():
            continue
        try:
            with safe_open(file, "numpy") as weights:
                table = json.loads(weights.metadata()["card"])["table"]
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{file}: its card cannot be read: {error!r}") from None
        found = {name: Figures(row["attainment"], row["ttft_p99"]) for name, row in table.items()}
        own = next((found.pop(name) for name in _OWN if name in found), None)
        return own, {tag_of(name): figures for name, figures in found.items()}
    return None, {}
