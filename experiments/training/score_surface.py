"""What a router has learned to trade: its score over cached share and queue, as a picture."""

from collections.abc import Callable

import numpy as np
import torch
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from prefixgym.agents.learned_router import LearnedRouter
from prefixgym.agents.linear_score import LinearScore, weight_row, weights_of
from prefixgym.baselines.router import Router
from prefixgym.experiments.training.moment import Moment

Scores = Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.float64]]
"""request [B, R] and instances [B, N, F] to scores [B, N]."""

_STEPS = 60


def scores_of(router: Router) -> Scores:
    """What a router takes the highest of.

    Raises:
        TypeError: it scores no observations.
    """
    if isinstance(router, LinearScore):
        row = weight_row(weights_of(router))
        return lambda request, instances: instances @ row
    if not isinstance(router, LearnedRouter):
        raise TypeError(f"router: found {router.name}, which scores no observations")

    def scores(request: NDArray[np.float32], instances: NDArray[np.float32]) -> NDArray[np.float64]:
        with torch.no_grad():
            found = router.network(torch.from_numpy(request), torch.from_numpy(instances))
        return found.numpy()[:, : instances.shape[1]].astype(np.float64)

    return scores


def lead(
    scores: Scores,
    moment: Moment,
    instance: int,
    hit: NDArray[np.float64],
    backlog: NDArray[np.float64],
) -> NDArray[np.float64]:
    """By how much an instance is scored above the best other available one, [B].

    Args:
        scores: the router's.
        moment: of whose request and other instances.
        instance: which one is varied.
        hit, backlog: as for `Moment.varied`, [B].
    """
    found = scores(*moment.varied(instance, hit, backlog))
    own = found[:, instance].copy()
    found[
        :, (moment.instances["available"] == 0) | (np.arange(found.shape[1]) == instance)
    ] = -np.inf
    best = found.max(1)
    return own - np.where(np.isfinite(best), best, 0.0)


def score_surface(router: Router, moment: Moment, title: str) -> Figure:
    """The surface for the instance that the router would choose at this moment.

    It is drawn as a lead over the best other instance: where it is above 0, the instance is chosen.
    """
    scores, rows = scores_of(router), moment.instances
    shares = rows["hit_tokens"] / moment.prompt_tokens
    there = rows["available"] != 0
    as_it_was = moment.varied(0, shares[:1].astype(float), rows["backlog_seconds"][:1])
    chosen = int(np.where(there, scores(*as_it_was)[0], -np.inf).argmax())
    longest = max(moment.slo_ttft, 1.1 * float(rows["backlog_seconds"][there].max(initial=0.0)))
    hit, backlog = np.meshgrid(np.linspace(0, 1, _STEPS), np.linspace(0, longest, _STEPS))
    found = lead(scores, moment, chosen, hit.ravel(), backlog.ravel()).reshape(hit.shape)

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    ax = figure.add_subplot()
    most = max(float(np.abs(found).max()), 1e-9)
    norm = TwoSlopeNorm(0.0, -most, most)
    mesh = ax.pcolormesh(100 * hit, backlog, found, cmap="RdBu", norm=norm, shading="gouraud")
    if found.min() < 0 < found.max():
        ax.contour(100 * hit, backlog, found, levels=[0.0], colors="black", linewidths=1.2)
    other = there & (np.arange(len(rows)) != chosen)
    for mask, marker, label in ((other, "o", "other instances"), ([chosen], "*", "this one")):
        ax.plot(
            100 * shares[mask], rows["backlog_seconds"][mask], marker, color="black",
            markerfacecolor="white", markersize=11 if marker == "*" else 6, label=label,
            clip_on=False, zorder=5,
        )  # fmt: skip
    ax.set_xlabel("cached share of the prompt, %")
    ax.set_ylabel("prefill booked ahead, s")
    ax.set_title(f"{title}: a request of {moment.prompt_tokens:,} tokens", fontsize=10)
    figure.colorbar(mesh, ax=ax, label="score above the best other instance (> 0: chosen)")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure
