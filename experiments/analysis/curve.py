"""Learning curves: runs that differ by nothing but their seed are one."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from prefixgym.experiments.analysis.run import Run
from prefixgym.experiments.statistics import mean_estimate

Axis = Literal["decisions", "seconds"]
Metric = Literal["attainment", "ttft_p99"]


@dataclass(frozen=True)
class Group:
    """Runs on one scenario at one load that differ by nothing but their seed.

    Attributes:
        label: the learner and, where others have the same one, what is different here.
        runs: at least one.
    """

    label: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Curve:
    """Means over a group's seeds, where all of them have got to.

    Attributes:
        x: decisions or seconds of learning, [P].
        mean, low, high: with the ends of a 95 % interval, [P]; these are NaN with one seed.
    """

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def panels_of(runs: Sequence[Run]) -> dict[tuple[str, float], list[Group]]:
    """Groups by scenario and load, in the order of their first runs."""
    panels: dict[tuple[str, float], dict[str, list[Run]]] = {}
    for run in runs:
        key = json.dumps([run.learner, run.settings], sort_keys=True)
        panels.setdefault((run.scenario, run.rate), {}).setdefault(key, []).append(run)
    return {
        panel: [Group(_label(members, list(groups.values())), tuple(members))
                for members in groups.values()]
        for panel, groups in panels.items()
    }  # fmt: skip


def _label(members: Sequence[Run], groups: Sequence[Sequence[Run]]) -> str:
    mine = members[0]
    alike = [group[0] for group in groups if group[0].learner == mine.learner]
    keys = sorted({key for run in alike for key in run.settings})
    differing = [
        key for key in keys if len({json.dumps(run.settings.get(key)) for run in alike}) > 1
    ]
    told = ", ".join(f"{key}={_shown(mine.settings.get(key))}" for key in differing)
    return f"{mine.learner}, {told}" if told else mine.learner


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}={_shown(item)}" for key, item in value.items()) + "}"
    return str(value)


def curve(group: Group, metric: Metric, axis: Axis) -> Curve:
    """The group's curve; between two judgements a seed is on the line between them."""
    seen = [(getattr(run, axis), getattr(run, metric)) for run in group.runs]
    first, last = max(x[0] for x, _ in seen), min(x[-1] for x, _ in seen)
    places = np.unique(np.concatenate([x for x, _ in seen]))
    places = places[(places >= first) & (places <= last)]
    if len(places) == 0:  # one seed ended before another was judged for the first time
        places = np.array([last])
    values = np.array([np.interp(places, x, y) for x, y in seen])
    found = np.array([mean_estimate(column) for column in values.T])
    return Curve(places, *found.T)
