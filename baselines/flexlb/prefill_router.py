"""What FlexLB's prefill strategies share: predictor, ledger, batcher and who is eligible.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §1.2 - §1.7, §1.11; alibaba/rtp-llm,
`rtp_llm/flexlb`, 2026-08-20 at 4b8d39cd5. Parameters have the names of the environment variables
that set FlexlbConfig, in lower case.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.flexlb.auto_tpm import auto_tpm_slo_ms, auto_tpm_wait_ms
from prefixgym.baselines.flexlb.batch_features import NUM_FEATURES
from prefixgym.baselines.flexlb.batch_queue import enqueue
from prefixgym.baselines.flexlb.books import Books, clock_ms, empty_books, grow
from prefixgym.baselines.flexlb.fixed_window import order_window, window_wait_ms
from prefixgym.baselines.flexlb.ledger import commit_alone, inflight_ms
from prefixgym.baselines.flexlb.prefill_predictor import (
    DEEPSEEK_V4_FLASH,
    LEARNING,
    LINEAR,
    estimate_ms,
)
from prefixgym.baselines.flexlb.slo_budget import (
    SloBudget,
    guard_ms,
    head_start_ms,
    note_arrival,
    order_budget,
)
from prefixgym.baselines.flexlb.status_reports import admit
from prefixgym.baselines.router import Router, router_keys
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import Record, kernel
from prefixgym.envs.view.view import MOST_BATCHES, View


class Settings(NamedTuple):
    """The parameters that kernels need."""

    predictor: int
    status_poll_ms: int
    queue_threshold: int
    reopen_threshold: float
    batch_enabled: bool
    slo_budget: bool
    auto_tpm: bool
    priority: int
    size_max: int
    fixed_wait: int
    predict_threshold: int
    capacity: int
    fixed_max_batches: int
    budget: SloBudget


@dataclass
class PrefillRouter(Router):
    """A FlexLB prefill strategy; subclasses choose among the eligible workers.

    Eligible is what is available and has fewer than `prefill_queue_size_threshold` requests
    pending; one that had too many comes back at `hysteresis_bias_percent` below that. Pending are
    the members of the batches in the ledger, the batcher's queue, and what the engine has that the
    ledger does not know: here requests that were sent without a batcher, once a status poll named
    them, or requests waiting at the last poll beyond those in the ledger. Requests that decode do
    not count (the real prefill workers have none). With nobody eligible the request is rejected
    (NO_AVAILABLE_WORKER). Engines never refuse what is sent to them, so no worker is ever left out
    for having refused.

    A worker's hit is its leading cached blocks, in tokens; where they cover the prompt, FlexLB
    takes L - block size, the view the last block boundary below L: the same unless the last block
    is partial and cached.

    Attributes:
        prefill_predictor_type: `formula` or `learning`.
        cost_formula: `linear`, the three coefficients below, or `deepseek_v4_flash`.
        cost_formula_batch_ms: ms for each batch.
        cost_formula_compute_ms: ms for each token that is not cached.
        cost_formula_hit_ms: ms for each cached token.
        prefill_queue_size_threshold: requests.
        hysteresis_bias_percent: percent.
        status_poll_ms: ms between status polls of a worker.
        flexlb_batch_enabled: hold requests back in a batcher for each worker; off: send at once.
        flexlb_batch_algorithm: `fixed_window` or `slo_budget`.
        flexlb_batch_size_max: requests in a batch.
        flexlb_batch_max_capacity: padded tokens in a batch (fixed_window), tokens (slo_budget).
        flexlb_batch_fixed_wait_ms: ms, the window of fixed_window.
        flexlb_batch_predict_threshold_ms: ms of predicted time at which a batch leaves; 0: off.
        flexlb_batch_fixed_max_inflight_batches: batches on a worker, for fixed_window; 0: any.
        flexlb_batch_window_ms: ms, the window of slo_budget.
        flexlb_batch_min_size: requests.
        flexlb_batch_emergency_budget_ms: ms.
        flexlb_batch_dispatch_guard_ms: ms.
        flexlb_batch_arrival_ema_alpha: weight of the latest gap between arrivals.
        flexlb_batch_arrival_wait_guard_ms: ms.
        flexlb_batch_scan_ahead: requests behind the head that are looked at.
        flexlb_batch_slo_max_inflight_batches: batches on a worker, for slo_budget; 0: any.
        cost_slo_ms: ms, objective that slo_budget and the SLO filter go by.
        cost_slo_buckets: objectives by prompt length instead, as "tokens:ms,tokens:ms".
        auto_tpm_enabled: estimate waits by dispatch intervals, and let slo_budget go by Auto-TPM's
            objectives.
        auto_tpm_default_priority: 1..100, of all requests.
    """

    source: ClassVar[str]
    family = "FlexLB"
    knows = ("index", "ledger", "telemetry")
    may_reject = True

    prefill_predictor_type: str = "formula"
    cost_formula: str = "linear"
    cost_formula_batch_ms: float = 0.0
    cost_formula_compute_ms: float = 1.0
    cost_formula_hit_ms: float = 0.3
    prefill_queue_size_threshold: int = 64
    hysteresis_bias_percent: int = 15
    status_poll_ms: int = 20
    flexlb_batch_enabled: bool = True
    flexlb_batch_algorithm: str = "fixed_window"
    flexlb_batch_size_max: int = 8
    flexlb_batch_max_capacity: int = 1_048_576
    flexlb_batch_fixed_wait_ms: int = 300
    flexlb_batch_predict_threshold_ms: int = 0
    flexlb_batch_fixed_max_inflight_batches: int = 0
    flexlb_batch_window_ms: int = 300
    flexlb_batch_min_size: int = 3
    flexlb_batch_emergency_budget_ms: int = 150
    flexlb_batch_dispatch_guard_ms: int = 40
    flexlb_batch_arrival_ema_alpha: float = 0.2
    flexlb_batch_arrival_wait_guard_ms: int = 20
    flexlb_batch_scan_ahead: int = 64
    flexlb_batch_slo_max_inflight_batches: int = 2
    cost_slo_ms: int = 500
    cost_slo_buckets: str = ""
    auto_tpm_enabled: bool = False
    auto_tpm_default_priority: int = 50

    def __post_init__(self) -> None:
        for parameter, allowed in (
            ("prefill_predictor_type", ("formula", "learning")),
            ("cost_formula", ("linear", "deepseek_v4_flash")),
            ("flexlb_batch_algorithm", ("fixed_window", "slo_budget")),
        ):
            self.require(parameter, getattr(self, parameter) in allowed, ", ".join(allowed))
        for parameter in (
            "cost_formula_batch_ms",
            "cost_formula_compute_ms",
            "cost_formula_hit_ms",
            "flexlb_batch_fixed_wait_ms",
            "flexlb_batch_predict_threshold_ms",
            "flexlb_batch_window_ms",
            "flexlb_batch_emergency_budget_ms",
            "flexlb_batch_dispatch_guard_ms",
            "flexlb_batch_arrival_wait_guard_ms",
            "flexlb_batch_scan_ahead",
            "cost_slo_ms",
        ):
            value = getattr(self, parameter)
            self.require(parameter, 0 <= value < np.inf, "at least 0 and finite")
        for parameter in (
            "prefill_queue_size_threshold",
            "status_poll_ms",
            "flexlb_batch_size_max",
            "flexlb_batch_max_capacity",
            "flexlb_batch_min_size",
        ):
            self.require(parameter, getattr(self, parameter) >= 1, "at least 1")
        for parameter in (
            "flexlb_batch_fixed_max_inflight_batches",
            "flexlb_batch_slo_max_inflight_batches",
        ):
            allowed_batches = 0 <= getattr(self, parameter) <= MOST_BATCHES
            self.require(parameter, allowed_batches, f"0 to {MOST_BATCHES}")
        bias = self.hysteresis_bias_percent
        self.require("hysteresis_bias_percent", 0 <= bias <= 100, "0 to 100")
        alpha = self.flexlb_batch_arrival_ema_alpha
        self.require("flexlb_batch_arrival_ema_alpha", 0 <= alpha <= 1, "0 to 1")
        priority = self.auto_tpm_default_priority
        self.require("auto_tpm_default_priority", 1 <= priority <= 100, "1 to 100")
        self._slo_buckets()

    def _slo_buckets(self) -> NDArray[np.int64]:
        """`cost_slo_buckets` as rows (tokens, ms), shortest first; without any, `cost_slo_ms`."""
        rows = []
        for entry in self.cost_slo_buckets.split(",") if self.cost_slo_buckets else []:
            words = entry.split(":")
            holds = len(words) == 2 and all(word.strip().isdecimal() for word in words)
            self.require("cost_slo_buckets", holds, 'entries "tokens:ms", separated by commas')
            rows.append([int(word) for word in words])
        return np.array(sorted(rows) or [[0, self.cost_slo_ms]], np.int64)

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Nothing in flight, predictors at their initial values."""
        self._keys = router_keys(seeds)
        self._books = empty_books(len(seeds), len(cluster.instances))
        predictor = LEARNING
        if self.prefill_predictor_type == "formula":
            predictor = LINEAR if self.cost_formula == "linear" else DEEPSEEK_V4_FLASH
            self._books.parameters[..., :3] = (
                self.cost_formula_batch_ms,
                self.cost_formula_compute_ms,
                self.cost_formula_hit_ms,
            )
        self._buckets = self._slo_buckets()
        self._scratch = np.zeros(NUM_FEATURES)
        self._settings = Settings(
            predictor,
            self.status_poll_ms,
            self.prefill_queue_size_threshold,
            self.prefill_queue_size_threshold * (1 - self.hysteresis_bias_percent / 100),
            self.flexlb_batch_enabled,
            self.flexlb_batch_algorithm == "slo_budget",
            self.auto_tpm_enabled,
            self.auto_tpm_default_priority,
            self.flexlb_batch_size_max,
            self.flexlb_batch_fixed_wait_ms,
            self.flexlb_batch_predict_threshold_ms,
            self.flexlb_batch_max_capacity,
            self.flexlb_batch_fixed_max_inflight_batches,
            SloBudget(
                self.flexlb_batch_size_max,
                self.flexlb_batch_window_ms,
                self.flexlb_batch_min_size,
                self.flexlb_batch_emergency_budget_ms,
                self.flexlb_batch_dispatch_guard_ms,
                self.flexlb_batch_arrival_wait_guard_ms,
                self.flexlb_batch_arrival_ema_alpha,
                self.flexlb_batch_scan_ahead,
                self.flexlb_batch_slo_max_inflight_batches,
            ),
        )

    def route(self, view: View) -> NDArray[np.int64]:
        """The strategy's choice; N where no worker is eligible."""
        self._books = grow(self._books, view.num_slots, view.num_events)
        chosen = np.empty(view.num_envs, np.int64)
        self._choose(view, chosen)
        return chosen

    def _choose(self, view: View, chosen: NDArray[np.int64]) -> None:
        """Hear, choose and place every request; write the choices."""
        raise NotImplementedError


@kernel
def slo_ms(buckets: NDArray[np.int64], prompt: int) -> int:
    """The objective of the first bucket that the prompt fits in, else of the last."""
    for k in range(len(buckets)):
        if prompt <= buckets[k, 0]:
            return buckets[k, 1]
    return buckets[len(buckets) - 1, 1]


@kernel
def pending(b: Books, e: int, i: int, waiting: int) -> int:
    """P_i: requests that worker i has to get through before it is free.

    `waiting` is what the engine reported as queued.
    """
    endpoint = b.endpoints[e, i]
    unknown = max(endpoint.reported_alone, waiting - endpoint.members)
    return endpoint.members + endpoint.queued + max(0, unknown)


@kernel
def is_eligible(b: Books, s: Settings, e: int, i: int, num_pending: int) -> bool:
    """Whether worker i takes requests, with `num_pending` of them there."""
    endpoint = b.endpoints[e, i]
    if num_pending >= s.queue_threshold:
        endpoint.closed = 1
    elif num_pending <= s.reopen_threshold:
        endpoint.closed = 0
    return endpoint.closed == 0


@kernel
def batcher_wait_ms(b: Books, s: Settings, e: int, i: int, now: int) -> int:
    """T_batcher: how long a new request would be held back for worker i.

    Also asked without batching, where the queue is always empty: a whole window then.
    """
    endpoint = b.endpoints[e, i]
    age = 0
    if endpoint.queued > 0:
        age = now - clock_ms(b.members[e, endpoint.first_queued].enqueued)
    if s.auto_tpm:
        window = s.budget.window if s.slo_budget else s.fixed_wait
        return auto_tpm_wait_ms(
            endpoint.queued, age, s.size_max, endpoint.dispatch_interval, window
        )
    if not s.slo_budget:
        return window_wait_ms(endpoint.queued, age, s.size_max, s.fixed_wait)
    if endpoint.queued == 0:
        return 0
    return max(0, head_start_ms(b, e, i) - now)


@kernel
def place(
    b: Books,
    s: Settings,
    scratch: NDArray[np.float64],
    buckets: NDArray[np.int64],
    e: int,
    request: Record,
    hit: int,
    i: int,
    predicted: int,
    hold: Record,
) -> bool:
    """The current request goes to worker i: into its batcher, or at once with `predicted` ms.

    False if the batcher drops it, see `slo_budget`.
    """
    now, prompt, q = request.time, request.prompt_tokens, request.slot
    now_ms = clock_ms(now)
    if s.batch_enabled and s.slo_budget:
        alone = estimate_ms(s.predictor, b.parameters[e, i], scratch, prompt, hit)
        if s.auto_tpm:
            latest_start = now_ms + auto_tpm_slo_ms(prompt, s.priority) - alone
        else:
            wait = alone + inflight_ms(b, s.status_poll_ms, e, i, now_ms)
            latest_start = now_ms + max(0, slo_ms(buckets, prompt) - wait)
        most = s.budget.max_inflight_batches
        full = 0 < most <= b.endpoints[e, i].entries
        if full and latest_start - now_ms <= guard_ms(s.budget):
            return False
        admit(b, s.predictor, e, q, prompt, hit, i, now)
        b.members[e, q].latest_start = latest_start
        enqueue(b, e, q)
        note_arrival(b, s.budget, e, i, now_ms)
        hold.most_batches = most
        order_budget(b, s.predictor, s.budget, s.capacity, scratch, e, i, hold, now)
        return True
    admit(b, s.predictor, e, q, prompt, hit, i, now)
    if s.batch_enabled:
        enqueue(b, e, q)
        hold.most_batches = s.fixed_max_batches
        order_window(
            b,
            s.predictor,
            s.size_max,
            s.fixed_wait,
            s.predict_threshold,
            s.capacity,
            scratch,
            e,
            i,
            hold,
            now,
        )
    else:
        commit_alone(b, e, i, q, predicted, now_ms)
    return True
