"""Small random episodes that reach the engine's corners."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from random_faults import random_autoscaler, random_clients, random_faults, random_knowledge

from prefixgym.envs.clients import Clients
from prefixgym.envs.clock import TICKS_PER_MS
from prefixgym.envs.cluster.faults import Autoscaler, Fault
from prefixgym.envs.cluster.profiles import Profile, constant_profile, profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec, Link
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.slo import Slo
from prefixgym.envs.view.knowledge import Knowledge
from prefixgym.envs.view.view import HOLD
from prefixgym.envs.workload.tape import NO_ROW, RUN, Tape, root_requests
from prefixgym.envs.workload.validate import validate

SLOS = (Slo(ttft=0.05, tpot=0.02), Slo(ttft=0.0016, tpot=0.002, ttft_per_token=1e-4))

# Steps of whole milliseconds, with arrivals at whole milliseconds, make many things happen at once.
WHOLE_MS: Sequence[Profile] = (constant_profile(1.0, 1.0), constant_profile(3.0, 2.0))
CALIBRATED: Sequence[Profile] = (
    profile("llama-3.1-8b/h100/tp1"),
    profile("gpt-oss-120b/h100/tp2", host="vllm-0.12", linear="formula"),
)


@dataclass(frozen=True)
class Tapes:
    """A workload of given tapes: seed k is tape k."""

    tapes: tuple[Tape, ...]

    @property
    def block_size(self) -> int:
        return self.tapes[0].block_size

    @property
    def num_sessions(self) -> int:
        return max(int(tape.requests["session"].max()) for tape in self.tapes) + 1

    @property
    def max_blocks(self) -> int:
        return max(
            int(max(tape.requests[name].max() for name in ("num_blocks", "cacheable_blocks")))
            for tape in self.tapes
        )

    def tape(self, seed: int) -> Tape:
        return self.tapes[seed]


@dataclass(frozen=True)
class Case:
    """A cluster, what its router knows, and one or more episodes with their decisions."""

    cluster: ClusterSpec
    knowledge: Knowledge
    tapes: tuple[Tape, ...]
    actions: NDArray[np.int64]  # [tapes, most requests of a tape]
    # HOLD [tapes, most requests of a tape, N], `release` counted from the decision; None: no orders
    orders: NDArray[np.void] | None = None
    faults: tuple[Fault, ...] = ()
    autoscaler: Autoscaler | None = None
    clients: Clients = field(default_factory=Clients)
    decoders: NDArray[np.int64] | None = None  # [tapes, most requests], NONE where prefilled

    def step(self, simulation: Simulation, first: int = 0) -> None:
        """The next decisions of tapes `first` and following, with their orders."""
        last = first + simulation.num_envs
        k = simulation.arrays.episodes["decisions"].clip(max=self.actions.shape[1] - 1)
        if self.orders is not None:
            view = simulation.view
            view.holds[:] = self.orders[range(first, last), k]
            view.holds["release"] += view.requests["time"][:, None]
        actions = self.actions[range(first, last), k]
        if self.decoders is not None:
            actions = np.stack([actions, self.decoders[range(first, last), k]], 1)
        simulation.step(actions)

    def simulation(
        self,
        first: int = 0,
        last: int | None = None,
        *,
        threads: int = 1,
        longest_leap: int = np.iinfo(np.int32).max,
    ) -> Simulation:
        """Tapes first … last - 1 at their first decisions, one environment each."""
        last = len(self.tapes) if last is None else last
        simulation = Simulation(
            self.cluster,
            Tapes(self.tapes),
            SLOS,
            self.knowledge,
            last - first,
            record=True,
            threads=threads,
            longest_leap=longest_leap,
            faults=self.faults,
            autoscaler=self.autoscaler,
            clients=self.clients,
        )
        simulation.reset(range(first, last))
        return simulation


@dataclass(frozen=True)
class RequestDraw:
    """What a request is made of, before it is tied to those before it."""

    gap: int  # ticks since the root before, or think time
    parent_back: int  # rows up to the request that this one follows; 0 for a root
    join_back: int  # rows up to another request that this follow-up waits for; 0 for none
    base_back: int  # rows up to the request whose prefix this one shares; 0 for none
    shared_blocks: int
    prompt_tokens: int
    output_tokens: int
    cacheable: float  # share of the full blocks that may be cached; the rest has no use for its ids
    partial_id: bool  # the prompt's partial block has an id
    slo_class: int


def build_tape(draws: Sequence[RequestDraw], block_size: int) -> Tape:
    """The tape of `draws`, checked against the contract of tapes."""
    prompt = np.array([draw.prompt_tokens for draw in draws])
    output = np.array([draw.output_tokens for draw in draws])
    requests = root_requests(np.zeros(len(draws), np.int64), prompt, output, np.zeros_like(prompt))
    requests["num_blocks"] = [
        -(-draw.prompt_tokens // block_size)
        if draw.partial_id
        else draw.prompt_tokens // block_size
        for draw in draws
    ]
    requests["cacheable_blocks"] = [
        round(draw.cacheable * ((draw.prompt_tokens + draw.output_tokens) // block_size))
        for draw in draws
    ]
    requests["slo_class"] = [draw.slo_class for draw in draws]
    chains: list[list[int]] = []
    runs: list[tuple[int, int]] = []
    arrival, unused_id = 0, 0
    for row, draw in enumerate(draws):
        request = requests[row]
        length = int(max(request["num_blocks"], request["cacheable_blocks"]))
        base = chains[row - draw.base_back] if 0 < draw.base_back <= row else []
        chain = base[: min(draw.shared_blocks, length)]
        fresh = length - len(chain)
        chain = chain + list(range(unused_id, unused_id + fresh))
        unused_id += fresh + draw.base_back  # ids need not be dense
        chains.append(chain)
        request["first_run"] = len(runs)
        for place, key in enumerate(chain):
            if place > 0 and chain[place - 1] + 1 == key:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((key, 1))
        request["num_runs"] = len(runs) - request["first_run"]
        if 0 < draw.parent_back <= row:
            parent = requests[row - draw.parent_back]
            request["parent"] = row - draw.parent_back
            request["session"] = parent["session"]
            request["next_sibling"] = parent["first_child"]
            parent["first_child"] = row
            request["arrival"] = draw.gap
            request["waits_for"] = 1
            if 0 < draw.join_back <= row and requests[row - draw.join_back]["then"] == NO_ROW:
                requests[row - draw.join_back]["then"] = row
                request["waits_for"] = 2
        else:
            arrival += draw.gap
            request["arrival"] = arrival
    tape = Tape(requests, np.array(runs, RUN), block_size)
    validate(tape)
    return tape


def random_draws(
    rng: np.random.Generator, count: int, block_size: int, most_blocks: int, whole_ms: bool
) -> list[RequestDraw]:
    """Requests of at most `most_blocks` blocks of prompt; a smaller count is a part of a larger."""
    unit = TICKS_PER_MS if whole_ms else 1
    return [
        RequestDraw(
            gap=unit * int(rng.integers(0, 1 + int(rng.choice([1, 6])) * TICKS_PER_MS // unit)),
            parent_back=int(rng.choice([0, 0, 1, 2])),
            join_back=int(rng.choice([0, 0, 1, 3])),
            base_back=int(rng.integers(0, 5)),
            shared_blocks=int(rng.integers(0, 13)),
            prompt_tokens=int(rng.integers(1, most_blocks * block_size + 1)),
            output_tokens=int(rng.choice([1, block_size, 2 * block_size, *rng.integers(1, 41, 3)])),
            cacheable=float(rng.choice([1.0, 1.0, 1.0, 0.5, 0.0])),
            partial_id=bool(rng.integers(0, 2)),
            slo_class=int(rng.integers(0, len(SLOS))),
        )
        for _ in range(count)
    ]


def random_instance(rng: np.random.Generator, most_blocks: int, whole_ms: bool) -> InstanceSpec:
    max_sequences = int(rng.integers(1, 9))
    profiles = WHOLE_MS if whole_ms else CALIBRATED
    return InstanceSpec(
        profiles[int(rng.integers(len(profiles)))],
        # Some requests are larger than the smallest instance, which then rejects them.
        kv_blocks=int(rng.integers(4, 4 + 2 * most_blocks)),
        max_batched_tokens=int(rng.integers(max_sequences, 100)),
        max_sequences=max_sequences,
    )


@st.composite
def cases(
    draw: st.DrawFn,
    num_tapes: int = 1,
    most_requests: int = 60,
    *,
    holding: bool = False,
    disturbed: bool = False,
    split: bool = False,
) -> Case:
    """Sizes are drawn, and shrink; the details follow from a seed, so that cases differ widely.

    With `holding`, about half of them have routers that hold requests back. With `disturbed`, there
    may be faults or an autoscaler, impatient clients, and several routers. With `split`, most are
    decoded elsewhere than they were prefilled.
    """
    sizes = [draw(st.integers(1, most_requests)) for _ in range(num_tapes)]
    num_instances = draw(st.integers(2 if split else 1, 4))
    block_size = draw(st.sampled_from([4, 8, 16, 64]))
    most_blocks = draw(st.integers(2, 8))
    whole_ms = draw(st.booleans())
    intervals = st.sampled_from([0.0, 0.003, 0.0101, 0.05])
    report, poll = draw(intervals), draw(intervals)
    seed = draw(st.integers(0, 2**32 - 1))
    tapes = tuple(
        build_tape(
            random_draws(np.random.default_rng([seed, k]), size, block_size, most_blocks, whole_ms),
            block_size,
        )
        for k, size in enumerate(sizes)
    )
    faults: tuple[Fault, ...] = ()
    autoscaler, clients = None, Clients()
    fate = np.random.default_rng([seed, num_tapes, 1])
    if disturbed:
        if draw(st.booleans()):
            clients = random_clients(fate)
        if draw(st.integers(0, 3)) == 3:
            autoscaler = random_autoscaler(fate, num_instances)
        if draw(st.integers(0, 3)) > 0:
            faults = random_faults(fate, num_instances, whole_ms, joins=autoscaler is None)
    rng = np.random.default_rng([seed, num_tapes])
    specs = tuple(random_instance(rng, most_blocks, whole_ms) for _ in range(num_instances))
    # Often all go to one instance, to load it; the last action turns requests away.
    spread = int(rng.integers(1, num_instances + 2))
    # Every attempt is a decision.
    actions = rng.integers(0, spread, (num_tapes, max(sizes) * (1 + clients.retries)))
    decoders, link = None, Link()
    if split:
        decoders = rng.integers(-1, num_instances, actions.shape)
        specs = (replace(specs[0], role="prefill"), *specs[1:])
        bandwidth = 131_072 / float(rng.choice([1e-6, 1e-5, 1e-3, 1e-3 / block_size]))
        link = Link(bandwidth, float(rng.choice([0.0, 0.0, 0.002])))
    orders = None
    if holding and draw(st.booleans()):
        orders = np.zeros((*actions.shape, num_instances), HOLD)
        orders["release"] = rng.choice([-0.1, 0.0, 0.002, 0.01, np.inf], orders.shape)
        orders["size"] = rng.choice([0, 0, 1, 3], orders.shape)
        orders["most_batches"] = rng.choice([0, 0, 1, 2], orders.shape)
    return Case(
        ClusterSpec(specs, block_size, float(rng.choice([0.0, 0.01])), link),
        random_knowledge(fate, report, poll, disturbed=disturbed),
        tapes,
        actions,
        orders,
        faults,
        autoscaler,
        clients,
        decoders,
    )
