"""An upper bound on attainment that holds for every router, whatever it knows.

The cluster is relaxed until what is left is a linear programme. Each step of the argument only adds
to what a router could do, so that no router, clairvoyant ones included, attains more.

**Pooled machine.** Instances become one preemptive, work-conserving machine with their summed
speed. A step of P prompt tokens and B decoding sequences (K tokens in their KV) takes at least

    t ≥ φ + (σ + p1)·P + p2·Σ c(k + c/2) + h1·chunks + V,    V = (σ + h1 + d1)·B + d2·K       (1)

for any slope σ, with φ(σ) = min_n (step of n tokens without its other terms − σ·n), where n is what
an engine admits: the parts that do not grow linearly in the tokens (weights are read once a step,
whatever its size) are replaced by a line below them. Each σ gives other prices for prompt tokens,
output tokens and steps; the bound uses several. φ is counted only for steps that decode.

**Shared, infinite caches.** A block of a prompt is charged to the request that certainly arrives
first of all that have it, and to no other. If that one is good, the block was computed on its
instance between its arrival and its first token, for nobody could have computed it before. Blocks
of which no one is certainly the first, and those that decoding fills, are free.

**Decoding within TPOT.** φ is paid once a step, and B requests share it; in (1) alone B could be as
large as an engine admits. But the steps of a good request last at most S = its TPOT objective on
average. Add these conditions to the time that the steps take, each times μ·v, with v = σ + h1 +
d1 + d2·L the least that a token of the request adds to V. A step then weighs at least

    φ + V + μV(φ + V) ≥ V·(1 + μφ + 2√(φμ)),

and with μ = φ / (S − φ)² that is, net of μ·v·S a token, V·(1 + φ / (S − φ)): a share φ / S of the
time goes to the steps themselves. Classes with laxer objectives are left out where that is better.
Preemption is taken for a loss: a token that comes out of recomputation is charged like one that was
decoded, though it may cost less if all its blocks are still cached.

**Intervals.** A good request that arrives at a computes its prompt within [a, a + S_TTFT −
frontend], and its output until S_TPOT·(tokens − 1) later at most. For every interval [s, e], with
x_r = 1 if request r is good,

    Σ_r x_r · work of r whose window lies within [s, e]  ≤  (Σ_i speed of i) · (e − s).         (2)

max Σ x_r with 0 ≤ x_r ≤ 1 under (2) is the bound; violated intervals are added until there are none
on a grid, or a round limit is reached (fewer constraints only weaken the bound).

**Alone.** A request that would be late alone on every instance, with all the hits that it can have,
or that fits into no instance's memory, has x_r = 0.

**Follow-ups** come when routing lets them: their windows are not fixed, so (2) leaves them out.
They count as good unless they fail alone. In closed loops the bound is weak for that.

What the relaxation gives away is what routing is about: which instance holds a prefix, copies,
evictions, queues behind long prefills. Where the bound is near 100 %, the cluster as a whole has
room, and what is missed is missed by routing, or by its being split into instances.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack

from prefixgym.envs.clock import TICKS_PER_MS, TICKS_PER_SECOND
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.cluster.step_time import COMPACT, linear_ms
from prefixgym.envs.slo import Slo
from prefixgym.envs.workload.tape import NO_ROW, Tape

_SLOPES = 9
_GRID = 400
_ROUNDS = 12
_ROWS_A_ROUND = 40
_SLACK = 1e-6
"""Relative; far above the rounding of step times to ticks, far below anything of interest."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StepPrices:
    """Right-hand side of (1) for one instance and one σ, in s; all at least 0.

    Attributes:
        step: φ of steps that decode.
        prefill_step: φ of steps that do not.
        prompt_token: σ + p1.
        attention: p2, per token².
        chunk: h1.
        output_token: σ + h1 + d1.
        context_token: d2, per token in KV and output token.
    """

    step: float
    prefill_step: float
    prompt_token: float
    attention: float
    chunk: float
    output_token: float
    context_token: float

    def as_array(self) -> Floats:
        """The prices in this order."""
        return np.array(astuple(self))


def step_prices(instance: InstanceSpec) -> list[StepPrices]:
    """Prices of an instance for σ from 0 to the largest with φ ≥ 0, in ascending order.

    Raises:
        ValueError: the instance's step times are not of the compact model.
    """
    cost = instance.profile.step_cost()
    if cost["kind"] != COMPACT:
        raise ValueError(
            f"profile: found {instance.profile.name!r}, the upper bound needs step times of the "
            "compact model (prefixgym.envs.cluster.step_time)"
        )
    tokens = np.arange(1, instance.max_batched_tokens + 1)
    sequences = tokens[: instance.max_sequences]
    with_prefill = np.array([linear_ms(cost, int(n), False) for n in tokens])
    decode_only = np.array([linear_ms(cost, int(n), True) for n in sequences])
    prefill = cost["h0"] + cost["p0"] + with_prefill
    mixed = prefill + cost["d0"]
    decode = cost["h0"] + cost["d0"] + decode_only
    steepest = min((prefill / tokens).min(), (mixed / tokens).min(), (decode / sequences).min())
    prices = []
    for slope in np.linspace(0.0, max(steepest, 0.0), _SLOPES):
        step = min((mixed - slope * tokens).min(), (decode - slope * sequences).min())
        found = StepPrices(
            step=max(0.0, step),
            prefill_step=max(0.0, (prefill - slope * tokens).min()),
            prompt_token=slope + cost["p1"],
            attention=cost["p2"],
            chunk=cost["h1"],
            output_token=slope + cost["h1"] + cost["d1"],
            context_token=cost["decode_slope"] / TICKS_PER_MS,
        )
        if found.as_array().min() < 0:
            raise ValueError(f"profile: {instance.profile.name!r} has a negative step time")
        prices.append(StepPrices(*(found.as_array() / 1e3)))
    return prices


@dataclass(frozen=True)
class Demand:
    """What each of R requests needs at least.

    Attributes:
        arrival: s; NaN for follow-ups, whose arrival is not fixed.
        new_tokens: prompt tokens that it certainly computes.
        attention: Σ of the tokens that these attend to, token².
        decode_tokens: output tokens after the first.
        context: Σ of the tokens in KV over these, token.
        prompt_tokens: L.
        prefill_time: s between arrival and first token in the engine to be in time.
        tpot: s a token, the objective.
    """

    arrival: Floats
    new_tokens: Floats
    attention: Floats
    decode_tokens: Floats
    context: Floats
    prompt_tokens: Floats
    prefill_time: Floats
    tpot: Floats


def demand_of(tape: Tape, slos: Sequence[Slo], frontend_latency: float) -> Demand:
    """The demand of a tape's requests."""
    requests = tape.requests
    prompt = requests["prompt_tokens"].astype(np.float64)
    hit = tape.block_size * possible_hits(tape).astype(np.float64)
    decode = requests["output_tokens"].astype(np.float64) - 1
    base, slope, tpot = np.array([(s.ttft, s.ttft_per_token, s.tpot) for s in slos])[
        requests["slo_class"]
    ].T
    root = requests["parent"] == NO_ROW
    return Demand(
        arrival=np.where(root, requests["arrival"] / TICKS_PER_SECOND, np.nan),
        new_tokens=prompt - hit,
        attention=(prompt**2 - hit**2) / 2,
        decode_tokens=decode,
        context=decode * prompt + decode * (decode + 1) / 2,
        prompt_tokens=prompt,
        prefill_time=base + slope * prompt - frontend_latency,
        tpot=tpot,
    )


def possible_hits(tape: Tape) -> NDArray[np.int64]:
    """For each request, the leading blocks that another one may have computed for it, [R].

    All others are charged to it: the last block, those that engines do not publish, and those that
    it certainly has first.
    """
    requests = tape.requests
    ids = [tape.block_ids(row)[: requests["cacheable_blocks"][row]] for row in range(len(requests))]
    earliest = _earliest_arrivals(requests)
    # Whoever does not have a block from its parent may be the first to have it.
    first: dict[int, int] = {}
    contested: set[int] = set()
    order = np.argsort(earliest, kind="stable").tolist()
    inherited = [_common_length(ids, row, int(requests["parent"][row])) for row in order]
    for row, known in zip(order, inherited, strict=True):
        for block in ids[row][known:].tolist():
            if first.setdefault(block, row) != row:
                contested.add(block)
    limits = np.minimum(
        requests["cacheable_blocks"], (requests["prompt_tokens"] - 1) // tape.block_size
    )
    hits = np.zeros(len(requests), np.int64)
    for row, known in zip(order, inherited, strict=True):
        fixed = requests["parent"][row] == NO_ROW  # a root arrives before all that follow in order
        hit = min(known, int(limits[row]))
        while hit < limits[row]:
            block = int(ids[row][hit])
            if first[block] == row and (fixed or block not in contested):
                break  # and so are all blocks after it: who has them has this one
            hit += 1
        hits[row] = hit
    return hits


def _earliest_arrivals(requests: NDArray[np.void]) -> NDArray[np.int64]:
    """Ticks before which a request cannot arrive: think times after the root's arrival."""
    earliest = requests["arrival"].copy()
    for row in np.flatnonzero(requests["parent"] != NO_ROW):
        earliest[row] += earliest[requests["parent"][row]]
    return earliest


def _common_length(ids: Sequence[NDArray[np.int64]], row: int, parent: int) -> int:
    """Leading blocks that `row` shares with its parent."""
    if parent == NO_ROW:
        return 0
    length = min(len(ids[row]), len(ids[parent]))
    differ = np.flatnonzero(ids[row][:length] != ids[parent][:length])
    return int(differ[0]) if len(differ) > 0 else length


def feasible_alone(tape: Tape, demand: Demand, cluster: ClusterSpec) -> NDArray[np.bool_]:
    """Requests that some instance would serve in time if it did nothing else, bool [R]."""
    requests = tape.requests
    most = requests["prompt_tokens"].astype(np.int64) + requests["output_tokens"] - 1
    feasible = np.zeros(len(requests), np.bool_)
    for instance, blocks in _kinds(cluster):
        prefill = np.zeros(len(requests))
        steps = np.ceil(demand.new_tokens / instance.max_batched_tokens)
        prices = step_prices(instance)
        for p in prices:  # the highest of the lines below the step times
            time = steps * (p.prefill_step + p.chunk) + p.prompt_token * demand.new_tokens
            prefill = np.maximum(prefill, time + p.attention * demand.attention)
        flat = prices[0]
        decode = (flat.step + flat.output_token) * demand.decode_tokens
        decode += flat.context_token * demand.context
        fits = -(-most // tape.block_size) <= blocks
        in_time = prefill <= demand.prefill_time * (1 + _SLACK)
        steady = decode <= demand.tpot * demand.decode_tokens * (1 + _SLACK)
        feasible |= fits & in_time & steady
    return feasible


def _kinds(cluster: ClusterSpec) -> list[tuple[InstanceSpec, int]]:
    """The different instances and their blocks."""
    found = {}
    for i, instance in enumerate(cluster.instances):
        found[instance] = cluster.kv_blocks(i)
    return list(found.items())


def _pooled(cluster: ClusterSpec) -> list[tuple[StepPrices, float]]:
    """Prices that are below those of every instance, and the machine's speed at these prices.

    An instance whose prices are all at least ρ ≥ 1 times as high has the speed 1/ρ.
    """
    by_kind = {kind: step_prices(kind) for kind, _ in _kinds(cluster)}
    pooled = []
    for k in range(_SLOPES):
        rows = {kind: prices[k].as_array() for kind, prices in by_kind.items()}
        least = np.min(list(rows.values()), axis=0)
        paid = least > 0
        speeds = {kind: float((least[paid] / row[paid]).max()) for kind, row in rows.items()}
        pooled.append((StepPrices(*least), sum(speeds[i] for i in cluster.instances)))
    return pooled


@dataclass(frozen=True)
class _Weighting:
    """Work of each request under one set of prices, s, and the machine's speed at these prices."""

    prefill: Floats
    decode: Floats
    speed: float


def _weightings(cluster: ClusterSpec, demand: Demand) -> list[_Weighting]:
    most = max(instance.max_sequences for instance in cluster.instances)
    found = []
    for prices, speed in _pooled(cluster):
        prefill = prices.prompt_token * demand.new_tokens + prices.chunk
        prefill += prices.attention * demand.attention
        output = prices.output_token * demand.decode_tokens
        output += prices.context_token * demand.context
        shared = output + prices.step / most * demand.decode_tokens
        found.append(_Weighting(prefill, shared, speed))
        least = prices.output_token + prices.context_token * demand.prompt_tokens
        least *= demand.decode_tokens
        for tpot in np.unique(demand.tpot):
            if prices.step <= 0 or tpot <= prices.step:
                continue
            mu = prices.step / (tpot - prices.step) ** 2
            gain = mu * prices.step + 2 * np.sqrt(prices.step * mu) - mu * demand.tpot
            found.append(_Weighting(prefill, output + np.maximum(0.0, gain) * least, speed))
    return found


def upper_bound(tape: Tape, cluster: ClusterSpec, slos: Sequence[Slo]) -> float:
    """An attainment that no router exceeds on this tape, in [0, 1]."""
    demand = demand_of(tape, slos, cluster.frontend_latency)
    feasible = feasible_alone(tape, demand, cluster)
    timed = np.flatnonzero(feasible & np.isfinite(demand.arrival))
    free = int(feasible.sum()) - len(timed)
    good = free + _most_in_time(demand, timed, _weightings(cluster, demand))
    return good / len(tape.requests)


def _most_in_time(demand: Demand, timed: NDArray[np.intp], weightings: list[_Weighting]) -> int:
    """Most good ones of the requests `timed`."""
    if len(timed) == 0:
        return 0
    start = demand.arrival[timed]
    middle = start + demand.prefill_time[timed]
    end = middle + demand.tpot[timed] * demand.decode_tokens[timed]
    windows = _Windows(start, middle, end)
    good, rows, limits = np.ones(len(timed)), [], []
    works = [(w.prefill[timed], w.decode[timed], w.speed) for w in weightings]
    for _ in range(_ROUNDS):
        new = [found for work in works for found in windows.violated(good, *work)]
        if not new:
            break
        new.sort(key=lambda found: -found[0])
        for _, row, limit in new[:_ROWS_A_ROUND]:
            rows.append(csr_array(row[None, :] / limit))
            limits.append(1.0 + _SLACK)
        solved = linprog(
            -np.ones(len(timed)), A_ub=vstack(rows), b_ub=limits, bounds=(0, 1), method="highs"
        )
        assert solved.success, solved.message
        good = np.clip(solved.x, 0.0, 1.0)
    return int(np.floor(good.sum() + _SLACK * len(timed)))


class _Windows:
    """Intervals of a grid, and which requests' windows lie within them.

    Intervals start at an arrival and end at the end of a window: others are no tighter.

    Args:
        start: arrivals, s, [R].
        middle: latest first tokens.
        end: latest last tokens.
    """

    def __init__(self, start: Floats, middle: Floats, end: Floats) -> None:
        self._start, self._middle, self._end = start, middle, end
        self._starts = _thinned(start)
        self._ends = _thinned(np.concatenate([middle, end]))
        # A window lies within intervals that start at or before it and end at or after it.
        self._from = np.searchsorted(self._starts, start, side="right") - 1
        self._until = [np.searchsorted(self._ends, at, side="left") for at in (middle, end)]

    def violated(
        self, good: Floats, prefill: Floats, decode: Floats, speed: float
    ) -> list[tuple[float, Floats, float]]:
        """Of each start, the interval that (2) is violated most in: by how much, row and limit."""
        work = np.zeros((len(self._starts), len(self._ends) + 1))
        for until, amount in zip(self._until, (prefill, decode), strict=True):
            np.add.at(work, (self._from, until), good * amount)
        within = work[::-1].cumsum(axis=0)[::-1].cumsum(axis=1)[:, :-1]
        capacity = speed * (self._ends[None, :] - self._starts[:, None])
        excess = np.where(capacity > 0, within / np.where(capacity > 0, capacity, 1.0) - 1.0, 0.0)
        found = []
        for i in np.flatnonzero(excess.max(axis=1) > 10 * _SLACK).tolist():
            j = int(excess[i].argmax())
            after = self._start >= self._starts[i]
            row = np.where(after & (self._middle <= self._ends[j]), prefill, 0.0)
            row += np.where(after & (self._end <= self._ends[j]), decode, 0.0)
            found.append((float(excess[i, j]), row, float(capacity[i, j])))
        return found


def _thinned(times: Floats) -> Floats:
    """At most _GRID of these times, sorted, the first and the last among them."""
    times = np.unique(times)
    return times[np.unique(np.linspace(0, len(times) - 1, _GRID).astype(np.intp))]
