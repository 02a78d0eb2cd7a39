"""Rewards: what a decision earns, read from the simulation after each step.

Every request is rewarded once, when it has ended, and rejected requests are requests like others.
With n the requests that ended since the last decision, good_n = 1 if n met its TTFT and its TPOT
objective, else 0, and tardiness_n in [0, cap] how late it was:

    goodput, attributed:   r = Σ_n (good_n − w · tardiness_n)
    shaped:                r = Σ_n (good_n − w · tardiness_n) + γ Φ(s') − Φ(s)

    tardiness_n = min(cap, max(0, TTFT / S_TTFT − 1, TPOT / S_TPOT − 1)), and cap if n was rejected

w is 0 by default. Goodput alone is gained by sacrificing requests that are late anyway (`rl.md`
§5.4); tardiness makes them count. Source of the term and of its cap of 8: `rl.md` §5.4, §5.5.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.credit import Credit
from prefixgym.envs.simulation import Simulation


class Attribution(NamedTuple):
    """What each request that ended has earned, as three arrays of one length, sorted by `env`.

    Attributes:
        env: in which environment.
        decision: number, within the episode, of the decision that routed (or rejected) it.
        units: what it earned; those of an environment add up to its reward.
    """

    env: NDArray[np.int64]
    decision: NDArray[np.int64]
    units: NDArray[np.float64]


@dataclass(frozen=True)
class Goodput:
    """+1 for every request that met TTFT and TPOT, paid when its last token is out.

    The rewards of an episode add up to its number of good requests, less w times the tardiness of
    all its requests.

    Attributes:
        tardiness: w, price of one unit of tardiness.
        cap: most tardiness of one request.
    """

    tardiness: float = 0.0
    cap: float = 8.0

    def __post_init__(self) -> None:
        self._require("tardiness", self.tardiness >= 0, "a number of at least 0")
        self._require("cap", self.cap > 0, "a number above 0")

    def _require(self, parameter: str, holds: bool, allowed: str) -> None:
        if not holds:
            found = getattr(self, parameter)
            raise ValueError(f"reward.{parameter}: found {found!r}, allowed: {allowed}")

    @property
    def credit(self) -> Credit:
        """What the simulation must keep for this reward."""
        return Credit(tardiness_cap=self.cap if self.tardiness > 0 else 0.0)

    def __call__(
        self, simulation: Simulation, discount: NDArray[np.float64] | None
    ) -> NDArray[np.float64]:
        """Rewards [E]; environments that were done and not stepped are not looked at.

        Args:
            simulation: after a step.
            discount: the step's wall-time discounts [E], None if the environment has none.
        """
        rewards = simulation.good.astype(np.float64)
        if self.tardiness > 0:
            rewards -= self.tardiness * simulation.tardiness
        return rewards

    def attribution(self, simulation: Simulation, stepped: NDArray[np.bool_]) -> Attribution:
        """Whose the last rewards of the environments `stepped` [E] are, if `credit` keeps that."""
        env, settled = simulation.settled(stepped)
        units = settled["good"] - self.tardiness * settled["tardiness"]
        return Attribution(env, settled["decision"].astype(np.int64), units)


@dataclass(frozen=True)
class Attributed(Goodput):
    """Goodput's rewards, and whose they are: the decision of every request that ended.

    Over an episode each decision is named once, in the step in which its request ends. So a learner
    can pay a decision itself instead of the one that happened to be taken when the request ended.
    """

    @property
    def credit(self) -> Credit:
        """As for goodput, and the decisions."""
        return dataclasses.replace(super().credit, attribution=True)


@dataclass(frozen=True)
class Shaped(Goodput):
    """Goodput's rewards and γ Φ(s') − Φ(s), which come sooner and leave the optimum as it is.

    Φ(s) is the sum over the requests in flight of what is expected of each: before its first token
    min(1, max(0, 2 − T / S_TTFT)) with T the TTFT predicted when it was routed (prefill booked
    ahead of it + its own + frontend); after it, 1 if the first token came in time, else 0. Nothing
    is in flight at an episode's start and end, so Φ is 0 there and Σ_t γ^t (γ Φ(s_t+1) − Φ(s_t)) =
    0: the return of every episode is that of goodput (Ng, Harada, Russell, ICML 1999), with γ = 1
    also its plain sum.

    Attributes:
        gamma: γ, which must be what the learner discounts by. None: the environment's wall-time
            discount, or 1 if it has none.
    """

    gamma: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        holds = self.gamma is None or 0 < self.gamma <= 1
        self._require("gamma", holds, "a number above 0 and at most 1")

    @property
    def credit(self) -> Credit:
        """As for goodput, and the promises Φ."""
        return dataclasses.replace(super().credit, promises=True)

    def __call__(
        self, simulation: Simulation, discount: NDArray[np.float64] | None
    ) -> NDArray[np.float64]:
        """Goodput's rewards and the shaping, [E]."""
        before, now = simulation.promised
        if self.gamma is not None:
            now = self.gamma * now
        elif discount is not None:
            now = discount * now
        return super().__call__(simulation, discount) + now - before


REWARDS: dict[str, type[Goodput]] = {
    "goodput": Goodput,
    "attributed": Attributed,
    "shaped": Shaped,
}
"""Rewards by name."""

RewardChoice = str | Mapping[str, Any] | Goodput
"""A name, a mapping with the name under `mode` beside parameters, or the reward itself."""


def make_reward(choice: RewardChoice) -> Goodput:
    """The reward that is chosen.

    Raises:
        ValueError: there is none of that name, or it has no such parameter or value.
    """
    if isinstance(choice, Goodput):
        return choice
    parameters = {"mode": choice} if isinstance(choice, str) else dict(choice)
    mode = parameters.pop("mode", None)
    if mode not in REWARDS:
        raise ValueError(f"reward: found {mode!r}, allowed: {', '.join(REWARDS)}")
    allowed = [field.name for field in dataclasses.fields(REWARDS[mode])]
    for key, value in parameters.items():
        if key not in allowed:
            raise ValueError(f"reward.{key}: no such key of {mode}, allowed: {', '.join(allowed)}")
        if not isinstance(value, (int, float)) and not (key == "gamma" and value is None):
            raise ValueError(f"reward.{key}: found {value!r}, expected a number")
    return REWARDS[mode](**parameters)
