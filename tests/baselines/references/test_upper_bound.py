"""The bound holds for every assignment, and is as tight as worked by hand."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from random_cases import (
    CALIBRATED,
    SLOS,
    Case,
    RequestDraw,
    Tapes,
    build_tape,
    cases,
    random_draws,
)

from prefixgym.baselines.references.upper_bound import (
    possible_hits,
    step_prices,
    upper_bound,
)
from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.cluster.profiles import (
    CompactModel,
    constant_profile,
    profile,
    profile_names,
)
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.cluster.step_time import COMPACT, step_ticks
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.slo import Slo
from prefixgym.envs.view.knowledge import Knowledge
from prefixgym.envs.workload.tape import Tape

PLAIN = RequestDraw(
    gap=0,
    parent_back=0,
    join_back=0,
    base_back=0,
    shared_blocks=0,
    prompt_tokens=100,
    output_tokens=1,
    cacheable=1.0,
    partial_id=True,
    slo_class=0,
)


def tape_of(*draws: RequestDraw, block_size: int = 10) -> Tape:
    return build_tape(draws, block_size)


def cluster_of(*instances: InstanceSpec, frontend: float = 0.0) -> ClusterSpec:
    return ClusterSpec(instances, 10, frontend)


# A step with prefill takes 100 ms and computes at most 100 tokens; one that decodes takes 10 ms.
SLOW = InstanceSpec(constant_profile(100.0, 10.0), 1000, max_batched_tokens=100, max_sequences=10)


def test_an_interval_holds_what_the_pooled_machine_can_do_in_it() -> None:
    five = tape_of(*[PLAIN] * 5)
    # 100 ms each: two in 250 ms of one machine, five in those of two.
    assert upper_bound(five, cluster_of(SLOW), [Slo(0.25, 1.0)]) == 2 / 5
    assert upper_bound(five, cluster_of(SLOW, SLOW), [Slo(0.25, 1.0)]) == 1.0
    # 50 ms of the 250 are spent outside the engine.
    assert upper_bound(five, cluster_of(SLOW, frontend=0.06), [Slo(0.25, 1.0)]) == 1 / 5
    # Those of the second arrive 200 ms later: three in 450 ms, and four if they came in time.
    late = replace(PLAIN, gap=TICKS_PER_SECOND // 5)
    assert upper_bound(tape_of(PLAIN, PLAIN, PLAIN, late, PLAIN), cluster_of(SLOW),
                       [Slo(0.25, 1.0)]) == 4 / 5  # fmt: skip


def test_a_slower_instance_counts_for_less() -> None:
    half = replace(SLOW, profile=constant_profile(200.0, 20.0))
    ten = tape_of(*[PLAIN] * 10)
    # In 400 ms: 4 on the fast one and 2 on the slow one.
    assert upper_bound(ten, cluster_of(SLOW, half), [Slo(0.4, 1.0)]) == 6 / 10


def test_output_shares_steps_only_as_far_as_tpot_allows() -> None:
    # A step takes 10 ms, 0.01 ms for each KV token of a decoding request, and 1 ms with prefill.
    base = constant_profile(1.0, 10.0)
    assert isinstance(base.step_model, CompactModel)
    model = replace(base.step_model, decode_attention=(10.0, 0.0, 0.01))
    instance = InstanceSpec(replace(base, step_model=model), 10_000, 1000, 1000)
    # 10 output tokens after the first on a prompt of 500: 0.01 ms · (501 + … + 510) = 50.55 ms.
    # Steps of 20 ms leave half of the time for that, so they count for as much again, less the
    # growth of the context: 100.55 ms. In 0.31 + 10 · 0.020 s: 5.07 requests.
    draw = replace(PLAIN, prompt_tokens=500, output_tokens=11)
    eight = tape_of(*[draw] * 8)
    assert upper_bound(eight, cluster_of(instance), [Slo(0.31, 0.020)]) == 5 / 8
    # Steps of 110 ms leave 10 / 11 of it.
    assert upper_bound(eight, cluster_of(instance), [Slo(0.31, 0.110)]) == 1.0


def test_requests_that_would_fail_alone() -> None:
    one = tape_of(PLAIN)
    assert upper_bound(one, cluster_of(SLOW), [Slo(0.100, 1.0)]) == 1.0
    assert upper_bound(one, cluster_of(SLOW), [Slo(0.099, 1.0)]) == 0.0
    assert upper_bound(one, cluster_of(replace(SLOW, kv_blocks=9)), [Slo(1.0, 1.0)]) == 0.0
    long = tape_of(replace(PLAIN, output_tokens=3))
    assert upper_bound(long, cluster_of(SLOW), [Slo(1.0, 0.010)]) == 1.0
    assert upper_bound(long, cluster_of(SLOW), [Slo(1.0, 0.009)]) == 0.0
    # Two chunks.
    wide = tape_of(replace(PLAIN, prompt_tokens=101))
    assert upper_bound(wide, cluster_of(SLOW), [Slo(0.199, 1.0)]) == 0.0
    assert upper_bound(wide, cluster_of(SLOW), [Slo(0.200, 1.0)]) == 1.0
    # A follow-up has no window, but it can fail alone.
    child = replace(PLAIN, parent_back=1, prompt_tokens=101)
    assert upper_bound(tape_of(PLAIN, child), cluster_of(SLOW), [Slo(0.199, 1.0)]) == 1 / 2


def test_a_block_is_charged_to_the_one_who_certainly_has_it_first() -> None:
    # 10 blocks; the last one is never a hit.
    alike = replace(PLAIN, base_back=1, shared_blocks=10)
    assert possible_hits(tape_of(PLAIN, alike)).tolist() == [0, 9]
    assert possible_hits(tape_of(PLAIN, replace(alike, shared_blocks=4))).tolist() == [0, 4]
    # The parent's answer fills two blocks of the follow-up.
    parent = replace(PLAIN, output_tokens=21)
    child = replace(alike, parent_back=1, shared_blocks=12, prompt_tokens=150)
    assert possible_hits(tape_of(parent, child)).tolist() == [0, 12]
    # The child has three blocks first of all, and so has its own child them from it.
    grandchild = replace(child, shared_blocks=15, prompt_tokens=200)
    assert possible_hits(tape_of(parent, child, grandchild)).tolist() == [0, 12, 15]
    # Of two follow-ups with the same new blocks nobody knows which comes first.
    first = replace(PLAIN, parent_back=1, base_back=1, shared_blocks=10, prompt_tokens=150)
    second = replace(first, parent_back=2, shared_blocks=15)
    assert possible_hits(tape_of(PLAIN, first, second)).tolist() == [0, 14, 14]
    # Blocks that are never published are always computed.
    assert possible_hits(tape_of(PLAIN, replace(alike, cacheable=0.5))).tolist() == [0, 5]


@settings(max_examples=40)
@given(case=cases(most_requests=12), seed=st.integers(0, 2**32 - 1), scale=st.floats(0.05, 2.0))
def test_no_decisions_exceed_the_bound(case: Case, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    actions = rng.integers(0, len(case.cluster.instances) + 1, (64, len(case.tapes[0].requests)))
    assert most_good(case, scale, actions) <= upper_bound(
        case.tapes[0], case.cluster, scaled(scale)
    )


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(0.02, 1.0), num_instances=st.integers(1, 2))
def test_no_subset_of_a_burst_exceeds_the_bound(
    seed: int, scale: float, num_instances: int
) -> None:
    """Here the bound is nearly tight: every set of requests is tried on every instance."""
    rng = np.random.default_rng(seed)
    count = 8 if num_instances == 1 else 5
    draws = [
        replace(
            draw,
            gap=draw.gap // 20,
            parent_back=0,
            slo_class=0,
            output_tokens=int(rng.choice([1, 2, 30])),
        )
        for draw in random_draws(rng, count, 8, 12, False)
    ]
    instance = InstanceSpec(CALIBRATED[0], 1000, int(rng.choice([40, 1000])), max_sequences=8)
    case = Case(
        ClusterSpec((instance,) * num_instances, 8),
        Knowledge(),
        (build_tape(draws, 8),),
        np.zeros((1, count), np.int64),
    )
    actions = np.array(list(itertools.product(range(num_instances + 1), repeat=count)))
    assert most_good(case, scale, actions) <= upper_bound(
        case.tapes[0], case.cluster, scaled(scale)
    )


def scaled(scale: float) -> list[Slo]:
    return [replace(slo, ttft=scale * slo.ttft, tpot=2 * scale * slo.tpot) for slo in SLOS]


def most_good(case: Case, scale: float, actions: NDArray[np.int64]) -> float:
    """The best attainment of several runs of decisions, [runs, requests]; the last rejects."""
    simulation = Simulation(
        case.cluster, Tapes(case.tapes), scaled(scale), case.knowledge, len(actions), record=True
    )
    simulation.reset([0] * len(actions))
    for k in range(actions.shape[1]):
        simulation.step(actions[:, k])
    assert simulation.done.all()
    return max(float(simulation.outcomes(e)["good"].mean()) for e in range(len(actions)))


@pytest.mark.parametrize("name", ["unique-prompts-8", "chat-16-mixed", "agentic-8"])
def test_bound_of_a_built_in_scenario_in_overload(name: str) -> None:
    scenario = load_scenario(name).with_num_requests(300)
    setup = scenario.build(6 * scenario.rates[-1])
    assert 0.2 < upper_bound(setup.workload.tape(0), setup.cluster, setup.slos) <= 1.0


@pytest.mark.parametrize("name", profile_names()[::3])
def test_prices_lie_below_every_step(name: str) -> None:
    instance = InstanceSpec(profile(name), 1000)
    cost = instance.profile.step_cost()
    if cost["kind"] != COMPACT:
        with pytest.raises(ValueError, match="the upper bound needs step times of the compact"):
            step_prices(instance)
        return
    rng = np.random.default_rng(0)
    prices = step_prices(instance)
    for _ in range(100):
        sequences = int(rng.integers(0, 257))
        tokens = int(rng.integers(0 if sequences else 1, 8193 - sequences))
        work, context = tokens * rng.random() * 1e5, sequences * int(rng.integers(1, 10**5))
        chunks = min(tokens, 3)
        ticks = step_ticks(cost, tokens, work, sequences, context, sequences + chunks)
        for p in prices:
            least = p.step if sequences > 0 else p.prefill_step
            least += p.prompt_token * tokens + p.attention * work + p.chunk * chunks
            least += p.output_token * sequences + p.context_token * context
            assert least <= ticks / TICKS_PER_SECOND * (1 + 1e-9)
    # The flattest line touches the cheapest step, the steepest is the best price a token.
    assert prices[0].step > 0
    assert min(prices[-1].step, prices[-1].prefill_step) == pytest.approx(0, abs=1e-9)
