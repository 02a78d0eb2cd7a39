"""DisaggregatedRouting-v0: one instance prefills a request, another decodes it."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from prefixgym.envs.episodes import Episodes, Observation
from prefixgym.envs.reward import RewardChoice
from prefixgym.envs.routing import Info, PrefixRoutingEnv
from prefixgym.envs.scenarios.randomisation import Randomisation
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.envs.surface import Surface, TwoPools
from prefixgym.envs.vector import PrefixRoutingVectorEnv


class DisaggregatedRoutingEnv(PrefixRoutingEnv):
    """Route LLM requests in a cluster whose instances prefill or decode.

    ## Description

    As `PrefixRouting-v0`, but every request is given two instances: one computes its prompt, then
    its KV is moved over the cluster's link (`prefixgym.envs.cluster.transfers`), and the other
    makes its tokens. The first token is out when the second has admitted it. An instance of the
    role `mixed` is in both pools, and may do both halves of one request.

    ## Action space

    `MultiDiscrete([P, D])`: which of the P instances that may prefill, and which of the D that may
    decode, in the order of the cluster.

    ## Observation space

    `Dict(request: Box[R], prefill: Box[P·F_p], decode: Box[D·F_d])`, float32 in [0, 1]: the request
    and a table for each pool, laid out row by row, with the columns `PREFILL_COLUMNS` and
    `DECODE_COLUMNS` of `prefixgym.envs.observation`: queue, uncached tokens and hit there; KV in
    use, active sequences and headroom to TPOT here.

    ## Rewards, starting state, episode end, information

    As for `PrefixRouting-v0`. `action_mask` is of the P instances and then of the D. Requests
    cannot be rejected, and there is no rendering yet.

    ## Arguments

    Args:
        scenario: one whose instances have roles.
        rate, num_requests, reward, discount_time, randomise: as for `PrefixRouting-v0`.

    Raises:
        ValueError: an argument that is not allowed; in `step`, an action that is not.
    """

    metadata = {"render_modes": []}  # noqa: RUF012  # Gymnasium's own convention
    action_space: gym.spaces.MultiDiscrete  # type: ignore[assignment]

    def __init__(
        self,
        scenario: str | Scenario = "split-8",
        rate: float | None = None,
        num_requests: int | None = None,
        reward: RewardChoice = "goodput",
        *,
        discount_time: float | None = None,
        randomise: Randomisation | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            scenario, rate, num_requests, reward, discount_time=discount_time, randomise=randomise
        )

    def step(  # type: ignore[override]
        self, action: NDArray[np.int64]
    ) -> tuple[Observation, float, bool, bool, Info]:
        """Prefill the current request on one instance and decode it on another, [2]."""
        return super().step(action)  # type: ignore[arg-type]

    @staticmethod
    def _surface(episodes: Episodes) -> Surface:
        return TwoPools(episodes)


class DisaggregatedRoutingVectorEnv(PrefixRoutingVectorEnv):
    """`num_envs` independent `DisaggregatedRoutingEnv`s that step together; actions [E, 2].

    Args:
        num_envs: E.
        scenario, rate, num_requests, reward, discount_time, randomise: as for
            `DisaggregatedRoutingEnv`.
        autoreset_mode, threads, copy, max_episode_steps: as for `PrefixRoutingVectorEnv`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        scenario: str | Scenario = "split-8",
        rate: float | None = None,
        num_requests: int | None = None,
        reward: RewardChoice = "goodput",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        threads: int | None = None,
        copy: bool = True,
        max_episode_steps: int | None = None,
        *,
        discount_time: float | None = None,
        randomise: Randomisation | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            num_envs,
            scenario,
            rate,
            num_requests,
            reward,
            autoreset_mode,
            threads,
            copy,
            max_episode_steps=max_episode_steps,
            discount_time=discount_time,
            randomise=randomise,
        )

    @staticmethod
    def _surface(episodes: Episodes) -> Surface:
        return TwoPools(episodes)
