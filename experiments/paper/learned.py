"""Learned routers in studies: where their weights come from, and what they are worth there."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prefixgym.baselines.router import router_class
from prefixgym.experiments.described import described
from prefixgym.experiments.leaderboard import cell_path
from prefixgym.experiments.paper.study import Arm, Setting, Study, Sweep, TraceSweep, Trial
from prefixgym.experiments.statistics import mean_estimate, ratio_of_means
from prefixgym.experiments.table import Table, percent, times

_SETTING, _SCENARIO = "{setting}", "{scenario}"


def with_learned(study: Study, texts: Sequence[str]) -> tuple[Study, list[str]]:
    """The study with learned routers besides, and what is left out for want of weights.

    Args:
        study: which.
        texts: as `described` takes them. With `{setting}` in it a text is another router in each
            setting, by the setting's `slug`, and `{scenario}` is the sweep's; where there are no
            weights for one, it is left out there.

    Raises:
        ValueError: unknown router, or `{setting}` in a study whose settings have no slugs.
    """
    missing: list[str] = []
    everywhere = [described(text) for text in texts if _SETTING not in text]
    apiece = [text for text in texts if _SETTING in text]
    if apiece and not any(s.slug for sweep in study.sweeps for s in sweep.settings):
        raise ValueError(f"--learned: found {apiece[0]!r}, but {study.name} has no weights apiece")

    def of_setting(sweep: Sweep, setting: Setting) -> Setting:
        arms = []
        for text in apiece:
            own = text.replace(_SCENARIO, sweep.scenario).replace(_SETTING, setting.slug)
            try:
                found = described(own)
            except (ValueError, OSError) as error:
                missing.append(f"{sweep.name}, {setting.label}: {error}")
                continue
            arms.append(Arm(_label(text), found.router, found.parameters))
        return replace(setting, arms=(*setting.arms, *arms))

    sweeps = tuple(
        replace(
            sweep,
            arms=(*sweep.arms, *everywhere),
            settings=tuple(of_setting(sweep, setting) for setting in sweep.settings),
        )
        for sweep in study.sweeps
    )
    return replace(study, sweeps=sweeps), missing


def _label(text: str) -> str:
    return f"{text.partition(':')[0].partition('/')[0]}, own"


def with_trace(study: Study, trace: Path | None) -> tuple[Study, list[str]]:
    """The study with the trace of that path; sweeps whose trace is absent are left out.

    Returns:
        The study, and what is left out.
    """
    kept: list[Sweep] = []
    missing = []
    for sweep in study.sweeps:
        if isinstance(sweep, TraceSweep):
            if trace is not None:
                sweep = replace(sweep, trace=trace)
            if not sweep.trace.exists():
                missing.append(f"{sweep.name}: no trace at {sweep.trace} (use --trace)")
                continue
        kept.append(sweep)
    return replace(study, sweeps=tuple(kept)), missing


def worth_table(sweep: Sweep, trials: Sequence[Trial], folder: Path) -> Table | None:
    """Learned routers beside the best handcrafted one of each setting; None if there are none.

    The best is the best on these very seeds, which favours it a little.
    """
    found: dict[str, list[tuple[Arm, pl.DataFrame]]] = {}
    for trial in trials:
        path = cell_path(folder, trial.cell)
        if trial.sweep is sweep and path.exists():
            played = found.setdefault(trial.setting.label, [])
            played.append((trial.arm, pl.read_parquet(path)))
    rows: list[tuple[str, ...]] = []
    for setting, played in found.items():
        handcrafted = [(arm, table) for arm, table in played if not _is_learned(arm)]
        if not handcrafted or len(handcrafted) == len(played):
            continue
        best, base = max(handcrafted, key=lambda pair: float(_attainment(pair[1]).mean()))
        rows += [
            (
                setting,
                best.label,
                percent(mean_estimate(_attainment(base))),
                arm.label,
                percent(mean_estimate(_attainment(own))),
                times(ratio_of_means(1 - _attainment(own), 1 - _attainment(base))),
                f"{np.mean(own['ttft_p99'].to_numpy()) / np.mean(base['ttft_p99'].to_numpy()):.2f}",
            )
            for arm, own in played
            if _is_learned(arm)
        ]
    headings = (
        "setting", "best handcrafted", "attainment %", "learned", "attainment %",
        "violations / best", "TTFT p99 / best",
    )  # fmt: skip
    return Table(f"{sweep.title}: learned beside the best", headings, rows) if rows else None


def _is_learned(arm: Arm) -> bool:
    return router_class(arm.router).family == "learned"


def _attainment(episodes: pl.DataFrame) -> NDArray[np.float64]:
    return episodes["attainment"].to_numpy()
