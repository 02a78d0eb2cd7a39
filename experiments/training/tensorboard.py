"""TensorBoard events of whatever learns, one tag for one thing; names as in CleanRL, `rl.md` §6.

`serving/…`: a judgement's means; `choice/…`: how the router decided in it; `handcrafted/…`: level
lines beside it; `kept/…`: the weights that are kept so far, and the limit within which attainment
counts; `charts/decisions` and `charts/seconds`: what was learned from by then, and for how long,
judgements but the first included. All else is a learner's own.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from torch.utils.tensorboard import SummaryWriter

from prefixgym.baselines.router import Router
from prefixgym.experiments.training.judge import Judge, Verdict
from prefixgym.experiments.training.onlooker import COMPARED
from prefixgym.experiments.training.score_surface import score_surface

ABOUT = "about"
"""The text that says what a run is: JSON of `learner`, `scenario`, `rate`, `seed`, `settings`."""

SHOWN = ("attainment", "ttft_p99", "worst_sessions", "hit_rate")
"""Metrics that are drawn beside those of handcrafted routers."""


class Events:
    """A run's events.

    Args:
        folder: where they go.
        judge: with the verdicts on handcrafted routers, which are drawn as level lines.
        first: the first step that will be written; what an interrupted run wrote from there on is
            dropped.
        learner: what learns.
        settings: all that decides what is learned, the seed included.
    """

    def __init__(
        self, folder: Path, judge: Judge, first: int, learner: str, settings: Mapping[str, Any]
    ) -> None:
        self._writer = SummaryWriter(str(folder), purge_step=first)
        self._judge = judge
        self._asked = dict(settings)
        self._writer.add_custom_scalars(_layout(learner, [*map(tag_of, judge.handcrafted)]))
        about = {
            "learner": learner,
            "scenario": judge.scenario.name,
            "rate": judge.rate,
            "seed": settings["seed"],
            "settings": json.loads(json.dumps(self._asked, default=str)),
        }
        self._writer.add_text(ABOUT, json.dumps(about), first)
        self._writer.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.close()

    def note(self, step: int, notes: Mapping[str, float]) -> None:
        """The scalars of a step; where it was judged, also those of handcrafted routers."""
        for tag, value in notes.items():
            self._writer.add_scalar(tag, value, step)
        if "serving/attainment" in notes:
            for name, verdict in self._judge.handcrafted.items():
                for metric in SHOWN:
                    tag = f"handcrafted/{metric}/{tag_of(name)}"
                    self._writer.add_scalar(tag, verdict.metrics[metric], step)
        self._writer.flush()  # a killed process leaves everything up to its last step

    def behaviour(self, step: int, verdict: Verdict, router: Router) -> None:
        """How a router that was judged decides.

        A histogram of how often the instance with the 1st, 2nd, … least predicted TTFT was chosen,
        and what it has learned to trade, as a picture.
        """
        seen = verdict.behaviour
        if seen is None:
            return
        self._writer.add_histogram("choice/rank_by_ttft", seen.ranks, step)
        figure = score_surface(router, seen.typical, f"step {step}")
        self._writer.add_figure("choice/score", figure, step)
        self._writer.flush()

    def result(self, final: Mapping[str, float]) -> None:
        """What was asked for and what came of it on test seeds, for the HPARAMS tab."""
        asked = {
            key: value if isinstance(value, (bool, int, float, str)) else str(value)
            for key, value in self._asked.items()
        }
        found = {f"final/{key}": value for key, value in final.items()}
        self._writer.add_hparams(asked, found, run_name=".")


def kept(verdict: Verdict, judge: Judge) -> dict[str, float]:
    """The notes on the weights that are kept."""
    return {
        "kept/attainment": verdict.attainment,
        "kept/ttft_p99": verdict.tail,
        "kept/ttft_p99_limit": judge.limit,
    }


def tag_of(name: str) -> str:
    """A handcrafted router's description as part of a tag."""
    return name.replace(":", "_").replace("/", "_").replace("=", "_")


_PPO = {
    "what is tried": ["losses/entropy", "charts/differs_from_min_ttft"],
    "how far it moves": ["losses/approx_kl", "losses/clip_fraction"],
    "what is explained": ["losses/explained_variance", "losses/variance_removed_by_group"],
}
_OFF_THE_SHELF = {
    "what is tried": ["train/entropy_loss", "rollout/exploration_rate"],
    "losses": ["train/loss", "train/value_loss"],
}
_EVOLVE = {
    "fitness": ["fitness/best", "fitness/mean", "fitness/worst"],
    "how far it looks": ["search/sigma"],
}
_IMITATE = {"agreement with the teacher": ["imitation/agreement"], "loss": ["imitation/loss"]}
_LEARNING = {"ppo": _PPO, "evolve": _EVOLVE, "imitate": _IMITATE}
"""By the first word of the learner."""


def _layout(learner: str, handcrafted: list[str]) -> dict[str, dict[str, list[Any]]]:
    """The few plots that matter."""
    judged = {
        metric: [f"serving/{metric}$", *(f"handcrafted/{metric}/{name}" for name in handcrafted)]
        for metric in SHOWN
    }
    choice = {
        "share of decisions that others would take otherwise": [
            f"choice/differs_from_{name}" for name in COMPARED
        ],
        "instances that hold a long prefix": ["choice/copies"],
    }
    learning = _LEARNING.get(learner.split()[0], _OFF_THE_SHELF)
    return {
        section: {title: ["Multiline", tags] for title, tags in plots.items()}
        for section, plots in {
            "validation": judged,
            "choice": choice,
            "learning": learning,
        }.items()
    }
