"""What all generators promise: valid tapes within their bounds, fixed by the seed, at any rate."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixgym.envs.cluster.profiles import profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.slo import Slo
from prefixgym.envs.workload.arrivals import Gamma, Poisson, Weibull
from prefixgym.envs.workload.distributions import LogNormal
from prefixgym.envs.workload.generators.changing_popularity import HotPrefixes
from prefixgym.envs.workload.generators.documents import LongDocuments
from prefixgym.envs.workload.generators.retrieval import RetrievedPassages
from prefixgym.envs.workload.generators.shared_prompts import SharedPrompts
from prefixgym.envs.workload.generators.unique_prompts import UniquePrompts
from prefixgym.envs.workload.lengths import Length
from prefixgym.envs.workload.validate import validate
from prefixgym.envs.workload.varying_load import Bursts, Diurnal, VaryingLoad

ARRIVALS = st.sampled_from(
    [
        Poisson(5.0),
        Gamma(5.0, 2.0),
        Weibull(5.0, 0.5),
        VaryingLoad(Poisson(5.0), Diurnal(10.0, 0.8), Bursts(8.0, 2.0, 5.0)),
    ]
)
BASE: dict[str, Any] = {
    "num_requests": st.integers(1, 200),
    "arrivals": ARRIVALS,
    "block_size": st.sampled_from([1, 16, 64]),
}


def lengths(least: int) -> st.SearchStrategy[Length]:
    """Fixed, uniform and lognormal lengths up to 300."""
    pair = st.tuples(st.integers(least, 300), st.integers(least, 300))
    return st.one_of(
        st.integers(least, 300),
        pair.map(lambda ends: (min(ends), max(ends))),
        st.builds(LogNormal, st.floats(1, 100), st.floats(0.1, 2), high=st.integers(1, 300)),
    )


HALF_LIVES = st.one_of(st.just(math.inf), st.floats(0.5, 500))
ZIPF = st.sampled_from([0.0, 0.7, 1.2])
HOT = st.one_of(
    st.none(), st.builds(HotPrefixes, st.floats(11, 80), st.floats(1, 10), st.just(0.7))
)
GENERATORS: st.SearchStrategy[Any] = st.one_of(
    st.builds(
        SharedPrompts,
        **BASE,
        num_groups=st.integers(1, 20),
        prompts_per_group=st.one_of(st.none(), st.integers(1, 10)),
        system_tokens=lengths(0),
        question_tokens=lengths(1),
        output_tokens=lengths(1),
        zipf=ZIPF,
        half_life=HALF_LIVES,
        hot_prefixes=HOT,
    ),
    st.builds(
        LongDocuments,
        **BASE,
        num_documents=st.integers(1, 20),
        document_tokens=lengths(1),
        question_tokens=lengths(1),
        output_tokens=lengths(1),
        zipf=ZIPF,
        half_life=HALF_LIVES,
    ),
    st.builds(
        RetrievedPassages,
        **BASE,
        num_system_prompts=st.integers(1, 3),
        num_passages=st.integers(4, 30),
        zipf=ZIPF,
        passages=st.sampled_from([0, 1, 4, (0, 4)]),
        system_tokens=lengths(0),
        passage_tokens=lengths(1),
        question_tokens=lengths(1),
        output_tokens=lengths(1),
    ),
    st.builds(UniquePrompts, **BASE, prompt_tokens=lengths(1), output_tokens=lengths(1)),
)
SEEDS = st.integers(0, 2**63)


@settings(max_examples=150)
@given(workload=GENERATORS, seed=SEEDS)
def test_tapes_are_valid_and_within_their_bounds(workload: Any, seed: int) -> None:
    tape = workload.tape(seed)
    validate(tape)
    requests = tape.requests
    assert tape.block_size == workload.block_size
    assert len(requests) == workload.num_requests
    assert requests["session"].max() < workload.num_sessions
    assert requests["num_blocks"].max() <= workload.max_blocks
    # What decoding fills belongs to one request: it has no id.
    full = requests["prompt_tokens"] // workload.block_size
    np.testing.assert_array_equal(requests["cacheable_blocks"], full)


@given(workload=GENERATORS, seed=SEEDS)
def test_the_same_seed_gives_the_same_bits(workload: Any, seed: int) -> None:
    tape, again = workload.tape(seed), dataclasses.replace(workload).tape(seed)
    assert tape.requests.tobytes() == again.requests.tobytes()
    assert tape.runs.tobytes() == again.runs.tobytes()


@given(workload=GENERATORS, seed=SEEDS)
def test_another_rate_changes_arrivals_only(workload: Any, seed: int) -> None:
    tape = workload.tape(seed)
    faster = dataclasses.replace(workload, arrivals=workload.arrivals.at_rate(11.0)).tape(seed)
    assert np.all(faster.requests["arrival"] <= tape.requests["arrival"])
    faster.requests["arrival"] = tape.requests["arrival"]
    assert tape.requests.tobytes() == faster.requests.tobytes()
    assert tape.runs.tobytes() == faster.runs.tobytes()


@settings(max_examples=10, deadline=None)
@given(workload=GENERATORS, seeds=st.tuples(SEEDS, SEEDS))
def test_seeds_differ(workload: Any, seeds: tuple[int, int]) -> None:
    if seeds[0] != seeds[1]:
        first, second = (workload.tape(seed).requests["arrival"] for seed in seeds)
        assert not np.array_equal(first, second)


CLUSTER = [InstanceSpec(profile("llama-3.1-8b/h100/tp1"), kv_blocks=400, max_sequences=8)] * 2


@settings(max_examples=25, deadline=None)
@given(workload=GENERATORS, seed=SEEDS)
def test_every_request_that_is_played_ends_once(workload: Any, seed: int) -> None:
    cluster = ClusterSpec(tuple(CLUSTER), workload.block_size)
    simulation = Simulation(cluster, workload, [Slo(1.0, 0.1)], record=True)
    simulation.reset([seed])
    decisions = 0
    while not simulation.done[0]:
        simulation.step(np.array([decisions % 2]))
        decisions += 1
    assert sorted(simulation.outcomes(0)["row"]) == list(range(workload.num_requests))


@pytest.mark.parametrize(
    ("cls", "key", "value"),
    [
        (LongDocuments, "num_requests", 0),
        (LongDocuments, "num_documents", 0),
        (LongDocuments, "zipf", -1.0),
        (LongDocuments, "half_life", 0.0),
        (LongDocuments, "document_tokens", 0),
        (LongDocuments, "question_tokens", 0),
        (RetrievedPassages, "block_size", 0),
        (RetrievedPassages, "num_system_prompts", 0),
        (RetrievedPassages, "num_passages", 0),
        (RetrievedPassages, "zipf", "1"),
        (RetrievedPassages, "passages", 4000),
        (RetrievedPassages, "passages", 3490),
        (RetrievedPassages, "system_tokens", -1),
        (RetrievedPassages, "passage_tokens", 0),
        (RetrievedPassages, "question_tokens", 0),
        (RetrievedPassages, "output_tokens", 0),
        (UniquePrompts, "num_requests", 0),
        (UniquePrompts, "prompt_tokens", 0),
        (UniquePrompts, "output_tokens", 0),
    ],
)
def test_bad_fields_are_refused_by_key(cls: Any, key: str, value: object) -> None:
    fields: dict[str, Any] = {"num_requests": 5, "arrivals": Poisson(1.0), "block_size": 16}
    cls(**fields)
    with pytest.raises(ValueError, match=rf"^{key}: found"):
        cls(**(fields | {key: value}))
