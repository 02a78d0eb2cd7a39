"""The spectator of a simulation: makes frames without disturbing it.

Everything is read from the state and from the recorded outcomes when a frame is asked for; the
simulation itself does nothing for it. The decision taken last is the one thing it has to be told.
"""

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.cluster.state import FINISHED, NONE, settings_row
from prefixgym.envs.rendering.frame import (
    NOTHING,
    RECENT,
    Frame,
    ShownDecision,
    ShownRequest,
    Totals,
)
from prefixgym.envs.simulation import Simulation


class Spectator:
    """Watches all environments of a simulation.

    Args:
        simulation: made with `record=True`.
        title: what is played, in a few words.

    Raises:
        ValueError: the simulation keeps no outcomes.
    """

    def __init__(self, simulation: Simulation, title: str) -> None:
        if not simulation.record:
            raise ValueError("simulation: found record=False, frames need its outcomes")
        self.simulation = simulation
        self.title = title
        self._profiles = tuple(i.profile.name for i in simulation.cluster.instances)
        self._decisions: list[ShownDecision | None] = [None] * simulation.num_envs

    def restart(self, chosen: NDArray[np.bool_]) -> None:
        """New episodes begin in the chosen environments, bool [E]."""
        for e in np.flatnonzero(chosen).tolist():
            self._decisions[e] = None

    def note(self, actions: NDArray[np.int64]) -> None:
        """These actions [E] are about to be taken: call it before the simulation's step.

        Of pairs [E, 2] the first is shown, where a request is prefilled.
        """
        view = self.simulation.view
        actions = actions if actions.ndim == 1 else actions[:, 0]
        for e in np.flatnonzero(~self.simulation.done).tolist():
            request, hits = view.requests[e], view.instances[e]["hit_tokens"]
            instance = int(actions[e]) if actions[e] < len(hits) else None
            self._decisions[e] = ShownDecision(
                index=int(request["index"]),
                instance=instance,
                prompt_tokens=int(request["prompt_tokens"]),
                hit_tokens=0 if instance is None else int(hits[instance]),
                best_hit_tokens=int(hits.max()),
            )

    def frame(self, e: int) -> Frame:
        """Environment e now.

        Raises:
            gymnasium.error.ResetNeeded: no episode was started.
        """
        arrays, view = self.simulation.arrays, self.simulation.view
        episode, shown = arrays.episodes[e], view.requests[e]
        if episode["num_requests"] == 0:
            raise gym.error.ResetNeeded("no episode was started: call reset before render")
        outcomes = self.simulation.outcomes(e)
        over = bool(episode["done"])
        request = None
        if not over:
            request = ShownRequest(
                index=int(shown["index"]),
                session=int(shown["session"]),
                prompt_tokens=int(shown["prompt_tokens"]),
                gap=float(shown["gap"]),
                slo_ttft=float(shown["slo_ttft"]),
                slo_tpot=float(shown["slo_tpot"]),
            )
        # When an episode is over, its cluster has drained beyond the last arrival.
        time = float(outcomes["end"].max() if over else shown["time"])
        status, known = arrays.cluster.status[e], view.instances[e]
        blocks = arrays.cluster.limits["num_blocks"][settings_row(arrays.cluster, e)]
        divisor = np.maximum(blocks, 1)  # an instance that is not there has none
        num_instances = len(status)
        routed = outcomes[outcomes["instance"] != NONE]
        placed, good = routed["instance"], routed["good"] != 0
        ended = np.bincount(placed, minlength=num_instances)
        waiting, running = status["waiting"].astype(np.int64), status["running"].astype(np.int64)
        return Frame(
            title=self.title,
            time=time,
            decisions=int(episode["decisions"]),
            num_requests=int(episode["num_requests"]),
            profiles=self._profiles,
            request=request,
            decision=self._decisions[e],
            totals=_totals(outcomes, time),
            available=view.available[e],
            waiting=waiting,
            running=running,
            kv_used=(blocks - status["free_blocks"]) / divisor,
            kv_cached=_cached_blocks(arrays.cluster.slots[e], blocks) / divisor,
            hit=np.zeros(num_instances) if over else known["hit_tokens"] / shown["prompt_tokens"],
            backlog=known["backlog_seconds"].copy(),
            prefill=np.zeros(num_instances) if over else known["prefill_seconds"].copy(),
            routed=ended + waiting + running,
            missed=np.bincount(placed[~good], minlength=num_instances),
            hit_rate=_hit_rates(outcomes, num_instances),
            recent=_recent(placed, good, num_instances),
        )


def _cached_blocks(slots: NDArray[np.void], blocks: NDArray[np.int32]) -> NDArray[np.int64]:
    """Blocks that can be found in the cache and that no running request uses, of slots [N, C]."""
    unused = (slots["key"] != NONE) & (slots["users"] == 0)
    unused &= np.arange(slots.shape[1]) < blocks[:, None]  # instances differ in size
    return unused.sum(axis=1)


def _totals(outcomes: NDArray[np.void], time: float) -> Totals:
    ended, good = len(outcomes), int(outcomes["good"].sum())
    finished = outcomes[outcomes["status"] == FINISHED]
    p50, p99 = np.quantile(finished["ttft"], (0.50, 0.99)) if len(finished) else (np.nan, np.nan)
    tpot = finished["tpot"][finished["output_tokens"] > 1]
    prompt = finished["prompt_tokens"].sum()
    return Totals(
        ended=ended,
        good=good,
        goodput=good / time if time > 0 else np.nan,
        attainment=good / ended if ended else np.nan,
        ttft_p50=float(p50),
        ttft_p99=float(p99),
        tpot_p99=float(np.quantile(tpot, 0.99)) if len(tpot) else np.nan,
        hit_rate=float(finished["hit_tokens"].sum() / prompt) if prompt else np.nan,
    )


def _hit_rates(outcomes: NDArray[np.void], num_instances: int) -> NDArray[np.float64]:
    finished = outcomes[outcomes["status"] == FINISHED]
    hit = np.bincount(finished["instance"], finished["hit_tokens"], num_instances)
    prompt = np.bincount(finished["instance"], finished["prompt_tokens"], num_instances)
    return np.divide(hit, prompt, out=np.full(num_instances, np.nan), where=prompt > 0)


def _recent(
    placed: NDArray[np.int32], good: NDArray[np.bool_], num_instances: int
) -> NDArray[np.int8]:
    """`Frame.recent` of requests that ended in this order, on instances `placed` [ended]."""
    recent = np.full((num_instances, RECENT), NOTHING, np.int8)
    for i in range(num_instances):
        last = good[np.flatnonzero(placed == i)[-RECENT:]]
        if len(last):
            recent[i, -len(last) :] = last
    return recent
