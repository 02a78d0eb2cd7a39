"""TensorBoard events of a training, an update a step; names as in CleanRL, see `rl.md` §6."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch.utils.tensorboard import SummaryWriter

from prefixgym.experiments.training.config import Training
from prefixgym.experiments.training.judge import Judge, Verdict

SHOWN = ("attainment", "ttft_p99", "worst_sessions", "hit_rate")
"""Metrics that are drawn beside those of handcrafted routers."""


class Events:
    """A training's events.

    Args:
        folder: where they go.
        judge: with the verdicts on handcrafted routers, which are drawn as level lines.
        first: the first update that will be written; what an interrupted run wrote from there on
            is dropped.
    """

    def __init__(self, folder: Path, judge: Judge, first: int) -> None:
        self._writer = SummaryWriter(str(folder), purge_step=first)
        self._handcrafted: Mapping[str, Verdict] = judge.handcrafted
        self._writer.add_custom_scalars(_layout([*map(_tag, judge.handcrafted)]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.close()

    def note(self, update: int, notes: Mapping[str, float]) -> None:
        """The scalars of an update; where it was judged, also those of handcrafted routers."""
        for tag, value in notes.items():
            self._writer.add_scalar(tag, value, update)
        if "serving/attainment" in notes:
            for name, verdict in self._handcrafted.items():
                for metric in SHOWN:
                    tag = f"handcrafted/{metric}/{_tag(name)}"
                    self._writer.add_scalar(tag, verdict.metrics[metric], update)
        self._writer.flush()  # a killed process leaves everything up to its last update

    def ranks(self, update: int, ranks: NDArray[np.int64]) -> None:
        """How often the instance with the 1st, 2nd, … least predicted TTFT was chosen."""
        self._writer.add_histogram("choice/rank_by_ttft", ranks.ravel(), update)

    def hyperparameters(self, training: Training, final: Mapping[str, float]) -> None:
        """What was asked for and what came of it, for the HPARAMS tab."""
        asked: dict[str, Any] = {
            key: value if isinstance(value, (bool, int, float, str)) else str(value)
            for key, value in training.model_dump().items()
        }
        found = {f"final/{key}": value for key, value in final.items()}
        self._writer.add_hparams(asked, found, run_name=".")


def _tag(name: str) -> str:
    return name.replace(":", "_").replace("/", "_").replace("=", "_")


def _layout(handcrafted: list[str]) -> dict[str, dict[str, list[Any]]]:
    """The few plots that matter."""
    judged = {
        metric: [
            "Multiline",
            [f"serving/{metric}$", *(f"handcrafted/{metric}/{name}" for name in handcrafted)],
        ]
        for metric in SHOWN
    }
    return {
        "validation": judged,
        "learning": {
            "what is tried": ["Multiline", ["losses/entropy", "charts/differs_from_min_ttft"]],
            "how far it moves": ["Multiline", ["losses/approx_kl", "losses/clip_fraction"]],
            "what is explained": [
                "Multiline",
                ["losses/explained_variance", "losses/variance_removed_by_group"],
            ],
        },
    }
