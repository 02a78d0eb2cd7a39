"""SMetric: balance the first turn of a session, keep the others at their cache within the SLO.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §8.2 (arXiv 2607.08565).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates
from prefixgym.baselines.router import register
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.memory import widened
from prefixgym.envs.view.view import View

_START_SESSIONS = 256


@register
@dataclass
class SMetric(ScoredRouter):
    """Sessions stay where their cache is, as long as the TTFT objective allows it.

        wait_i = q_i + cost(L, c_i)
        cost(L, c) = c_lin · n + c_attn · n · (L - n/2)  with n = L - c uncached tokens

    1. A first turn: the instance with the least wait.
    2. So a follow-up whose best hit is below HIT_RATIO times what it left behind: its cache is
       gone.
    3. Any other follow-up: the instance with the most cached tokens, of equals the one with the
       least wait, if its wait <= SLACK · TTFT objective.
    4. If not: the instance with the least wait if that is within SLACK · TTFT objective.
    5. If none is: as in 3.

    Equals at random: waits are often 0 on several instances, and the paper does not say.

    The paper profiles c_lin, c_attn and the RATE that turns cost into seconds. Here a cost is
    `prefill_seconds` of the view, and q_i `backlog_seconds`: the step model of a profile has the
    same two terms (`b + p1` and `p2` of `CompactModel`), a constant, and the bend of small steps.

    The real router reads from a prompt's messages which turn it is. Here a session that was seen
    before is at a follow-up, and what it left behind are the full blocks of its last prompt.

    Attributes:
        HIT_RATIO: share of the expected hit below which a cache counts as lost; the paper's value
            is not known (§8.2 suggests 0.5 to 0.9).
        SLACK: share of the TTFT objective that a wait may take; not known either (0.5 to 1).
    """

    name = "smetric"
    source = "SMetric, arXiv 2607.08565 (§8.2)"
    family = "papers"
    knows = ("index", "ledger")

    HIT_RATIO: float = 0.8
    SLACK: float = 0.8

    def __post_init__(self) -> None:
        self.require("HIT_RATIO", 0 <= self.HIT_RATIO <= 1, "0 to 1")
        self.require("SLACK", self.SLACK >= 0, "at least 0")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """No session is known."""
        super().reset(cluster, seeds)
        self._block_size = cluster.block_size
        # Tokens that each session left behind; 0: not seen yet.
        self._left = np.zeros((len(seeds), _START_SESSIONS), np.int64)

    def scores(self, view: View) -> NDArray[np.float64]:
        """Waits in seconds (steps 1, 2, 4), or minus the cached tokens (3, 5)."""
        self._make_room(view)
        scores = np.empty(view.instances.shape)
        _smetric(view.requests, view.instances, self._left, self.HIT_RATIO, self.SLACK, scores)
        return scores

    def commit(self, view: View, chosen: NDArray[np.int64]) -> None:
        """The session leaves its full blocks behind."""
        prompts = view.requests["prompt_tokens"]
        left = prompts // self._block_size * self._block_size
        # At least 1, so that even a short session counts as seen.
        self._left[np.arange(view.num_envs), view.requests["session"]] = np.maximum(left, 1)

    def _make_room(self, view: View) -> None:
        sessions = self._left.shape[1]
        while view.requests["session"].max() >= sessions:
            sessions *= 2
        if sessions > self._left.shape[1]:
            self._left = widened(self._left, sessions)


@kernel
def _smetric(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    left: NDArray[np.int64],
    hit_ratio: float,
    slack: float,
    scores: NDArray[np.float64],
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    for e in range(scores.shape[0]):
        request = requests[e]
        for i in range(scores.shape[1]):
            row = instances[e, i]
            scores[e, i] = row["backlog_seconds"] + row["prefill_seconds"]
        count = candidates(instances[e], picks)
        warmest, quickest = picks[0], picks[0]
        for k in range(1, count):
            i = picks[k]
            more = instances[e, i]["hit_tokens"] - instances[e, warmest]["hit_tokens"]
            if more > 0 or (more == 0 and scores[e, i] < scores[e, warmest]):
                warmest = i
            if scores[e, i] < scores[e, quickest]:
                quickest = i
        expected = left[e, request["session"]]
        if expected == 0 or instances[e, warmest]["hit_tokens"] < hit_ratio * expected:
            continue
        limit = slack * request["slo_ttft"]
        if scores[e, warmest] <= limit or scores[e, quickest] > limit:
            for i in range(scores.shape[1]):
                # Hits are whole numbers; a wait counts as less than one of them.
                wait = scores[e, i]
                scores[e, i] = wait / (1.0 + wait) - instances[e, i]["hit_tokens"]
