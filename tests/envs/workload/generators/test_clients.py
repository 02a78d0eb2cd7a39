"""Clients: their shares, bursts, lengths and prefixes; one clock for all; ServeGen's figures."""

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from prefixgym.envs.clock import to_seconds
from prefixgym.envs.cluster.profiles import profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.slo import Slo
from prefixgym.envs.workload.distributions import LogNormal
from prefixgym.envs.workload.generators.client_pool import LEVELS, ClientPool
from prefixgym.envs.workload.generators.clients import ClientMix
from prefixgym.envs.workload.generators.servegen import ServeGenClients, read_servegen
from prefixgym.envs.workload.validate import validate

SERVEGEN = Path(__file__).parents[5] / "shared" / "traces" / "servegen"

MIXES = st.builds(
    ClientMix,
    num_requests=st.integers(1, 300),
    rate=st.sampled_from([0.01, 5.0, 300.0]),
    block_size=st.sampled_from([1, 16, 64]),
    num_clients=st.integers(1, 8),
    zipf=st.sampled_from([0.0, 1.2]),
    amplitude=st.sampled_from([0.0, 1.0]),
    volatility=st.sampled_from([0.0, 1.0]),
    prompt_tokens=st.sampled_from([5, (10, 200), LogNormal(100, 1, high=300)]),
    output_tokens=st.sampled_from([1, (1, 50)]),
    max_prompt_tokens=st.just(500),
    max_output_tokens=st.just(60),
    prefix_share=st.sampled_from([0.0, 0.8, 1.0]),
    population=st.integers(0, 5),
)


@settings(max_examples=60)
@given(mix=MIXES, seed=st.integers(0, 2**63))
def test_tapes_are_valid_within_their_bounds_and_reproducible(mix: ClientMix, seed: int) -> None:
    tape = mix.tape(seed)
    validate(tape)
    requests = tape.requests
    assert len(requests) == mix.num_requests
    assert requests["session"].max() < mix.num_sessions == mix.num_clients
    assert requests["num_blocks"].max() <= mix.max_blocks
    assert requests["prompt_tokens"].max() <= mix.max_prompt_tokens
    assert requests["output_tokens"].max() <= mix.max_output_tokens
    again = dataclasses.replace(mix).tape(seed)
    assert again.requests.tobytes() == requests.tobytes()
    assert again.runs.tobytes() == tape.runs.tobytes()


@settings(max_examples=20)
@given(mix=MIXES, seed=st.integers(0, 2**63))
def test_a_client_sends_the_same_requests_at_every_rate(mix: ClientMix, seed: int) -> None:
    slow, fast = mix.tape(seed), dataclasses.replace(mix, rate=17 * mix.rate).tape(seed)
    for client in range(mix.num_clients):
        a, b = (t.requests[t.requests["session"] == client] for t in (slow, fast))
        both = min(len(a), len(b))
        for field in ("prompt_tokens", "output_tokens"):
            np.testing.assert_array_equal(a[field][:both], b[field][:both])


@settings(max_examples=5, deadline=None)
@given(mix=MIXES, seed=st.integers(0, 2**63))
def test_every_request_that_is_played_ends_once(mix: ClientMix, seed: int) -> None:
    instance = InstanceSpec(profile("llama-3.1-8b/h100/tp1"), kv_blocks=700, max_sequences=8)
    cluster = ClusterSpec((instance, instance), mix.block_size)
    simulation = Simulation(cluster, mix, [Slo(1.0, 0.1)], record=True)
    simulation.reset([seed])
    decisions = 0
    while not simulation.done[0]:
        simulation.step(np.array([decisions % 2]))
        decisions += 1
    assert sorted(simulation.outcomes(0)["row"]) == list(range(mix.num_requests))


def test_the_prefix_is_the_clients_own() -> None:
    mix = ClientMix(300, 5.0, 16, 3, prompt_tokens=(200, 300), prefix_share=0.5)
    tape = mix.tape(0)
    prefixes: dict[int, int] = {}
    for row, request in enumerate(tape.requests):
        client = int(request["session"])
        ids = tape.block_ids(row)
        length = int(0.5 * mix.pool.prompt_tokens[client, 0, 1]) // 16
        start = prefixes.setdefault(client, ids[0])
        assert length >= 1
        np.testing.assert_array_equal(ids[:length], start + np.arange(length))
    assert len(set(prefixes.values())) == len(prefixes) > 1
    own = np.concatenate([tape.block_ids(row)[-1:] for row in range(300)])
    assert len(set(own)) == 300


def _pool(rates: list[list[float]], shapes: float, weibull: bool) -> ClientPool:
    shape = (len(rates), len(rates[0]))
    lengths = np.full((len(rates), 1, len(LEVELS)), 10.0)
    return ClientPool(
        600.0,
        np.array(rates),
        np.full(shape, shapes),
        np.full(shape, weibull),
        len(rates[0]),
        lengths,
        lengths,
    )


GAPS = pytest.mark.parametrize(
    ("shape", "weibull"), [(0.3, False), (4.0, False), (0.5, True), (1.5, True)]
)


@GAPS
def test_gaps_have_their_distribution(shape: float, weibull: bool) -> None:
    pool = _pool([[7.0, 7.0]], shape, weibull)
    gaps = np.diff(to_seconds(pool.tape(0, 5000, 2.0, 16, 0.0).requests["arrival"]))
    law = stats.weibull_min(shape) if weibull else stats.gamma(shape)
    assert stats.kstest(gaps * 2.0 * law.mean(), law.cdf).pvalue > 0.001


@GAPS
def test_an_episode_begins_in_equilibrium(shape: float, weibull: bool) -> None:
    count = 20_000
    left = _pool([[1.0]] * count, shape, weibull)._equilibrium(np.random.default_rng(0), 0)
    # The gap under way at a random moment has (1 + cv²) / 2 mean gaps left, on average.
    law = stats.weibull_min(shape) if weibull else stats.gamma(shape)
    mean = (1 + law.var() / law.mean() ** 2) / 2
    assert np.mean(left) == pytest.approx(mean, abs=5 * float(np.std(left)) / count**0.5)


@GAPS
def test_every_window_has_its_rates(shape: float, weibull: bool) -> None:
    rates = np.array([[3.0, 0.2], [1.0, 1.0]])
    pool = _pool(rates.tolist(), shape, weibull)
    # From the clock's 0 on, 3,000 s are five windows, the last of which the episode may cut short.
    counts = np.zeros((40, 2, 4))
    for seed in range(40):
        time, client, window = pool._arrivals(np.random.default_rng(seed), 0.0, 7800, 2.6)
        assert np.all(np.diff(time) >= 0)
        np.testing.assert_array_equal(window, time // 600)
        counts[seed] = np.histogram2d(client, window, bins=(2, np.arange(6)))[0][:, :4]
    factor = 7800 / (600 * (3 * 4.0 + 2 * 1.2))
    expected = 600 * factor * np.tile(rates, 2)
    error = counts.std(axis=0) / 40**0.5
    assert np.all(np.abs(counts.mean(axis=0) - expected) < 4.5 * error)


def test_silent_windows_are_waited_out() -> None:
    pool = _pool([[0.0, 5.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], 1.0, False)
    _, client, window = pool._arrivals(np.random.default_rng(0), 900.0, 6000, 2.0)
    assert set(client) == {0}
    assert set(window % 4) == {1}
    assert len(set(window)) >= 2
    requests = pool.tape(1, 1000, 2.0, 16, 0.0).requests
    assert set(requests["session"]) == {0}


def test_lengths_follow_the_quantiles() -> None:
    pool = _pool([[1.0], [2.0]], 1.0, False)
    table = np.stack([np.interp(LEVELS, [0, 0.5, 1], ends) for ends in ([10, 20, 500], [7, 7, 9])])
    pool = dataclasses.replace(pool, prompt_tokens=table[:, None], output_tokens=table[:, None])
    requests = pool.tape(0, 30_000, 5.0, 16, 0.0).requests
    for client, expected in ((0, (10, 20, 260, 500)), (1, (7, 7, 8, 9))):
        found = requests["prompt_tokens"][requests["session"] == client]
        np.testing.assert_allclose(np.quantile(found, (0, 0.5, 0.75, 1)), expected, rtol=0.05)
    correlation = np.corrcoef(requests["prompt_tokens"], requests["output_tokens"])[0, 1]
    one = requests[requests["session"] == 0]
    assert abs(np.corrcoef(one["prompt_tokens"], one["output_tokens"])[0, 1]) < 0.05 < correlation


def test_made_up_clients_are_like_servegens() -> None:
    mix = ClientMix(1, 1.0, 16)
    total = mix.pool.rates.sum(axis=0)
    assert total.mean() == pytest.approx(1.0)
    assert 1.8 <= total.max() <= 3.3
    share = np.sort(mix.pool.rates.mean(axis=1))[::-1]
    assert 0.16 <= share[0] <= 0.52
    assert 0.63 <= share[:10].sum() <= 0.93


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_requests", 0),
        ("rate", 0.0),
        ("block_size", 0),
        ("num_clients", 0),
        ("zipf", -1.0),
        ("amplitude", 1.1),
        ("volatility", -0.1),
        ("prompt_tokens", 0),
        ("output_tokens", 0),
        ("max_prompt_tokens", 0),
        ("max_output_tokens", 0),
        ("prefix_share", 2.0),
        ("population", -1),
    ],
)
def test_bad_fields_are_refused_by_key(key: str, value: object) -> None:
    fields: dict[str, Any] = {"num_requests": 5, "rate": 1.0, "block_size": 16}
    with pytest.raises(ValueError, match=rf"^{key}: found"):
        ClientMix(**(fields | {key: value}))


# --- files of ServeGen ---

# Mean and maximum of the summed rates, and what the largest and the ten largest clients make of the
# traffic (`traces.md` §3.1).
PUBLISHED = {
    "language_m-small": (1196, 3880, 0.30, 0.93),
    "language_m-mid": (1868, 3445, 0.52, 0.79),
    "language_m-large": (196, 583, 0.16, 0.63),
    "reason_deepseek-r1": (16, 43, 0.29, 0.68),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_pools_of_servegen(name: str) -> None:
    path = SERVEGEN / f"{name}.clients.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    mean, most, largest, ten = PUBLISHED[name]
    pool = read_servegen(path)
    total = pool.rates.sum(axis=0)
    assert total[total > 0].mean() == pytest.approx(mean, rel=0.01)
    assert total.max() == pytest.approx(most, rel=0.015)
    share = np.sort(pool.rates.sum(axis=1))[::-1] / pool.rates.sum()
    assert share[0] == pytest.approx(largest, abs=0.005)
    assert share[:10].sum() == pytest.approx(ten, abs=0.005)
    # At their own peaks all at once, the clients would ask for far more than they ever did.
    assert pool.rates.max(axis=1).sum() > 1.5 * most

    workload = ServeGenClients(20_000, 40.0, 16, str(path))
    tape = workload.tape(1)
    validate(tape)
    assert 20_000 / to_seconds(tape.requests["arrival"][-1]) == pytest.approx(40.0, rel=0.25)
    assert tape.requests["session"].max() < workload.num_sessions
    assert tape.requests["num_blocks"].max() <= workload.max_blocks


def _line(**changes: Any) -> str:
    quantiles = [20.0, *range(1, 24)]
    client: dict[str, Any] = {
        "client": 0,
        "trace": [[0, 2.0, 1.0, "Gamma", 1.0, 0.5], [1200, 4.0, 2.0, "Weibull", 0.6, 0.2]],
        "lengths": {"0": {"input_tokens": quantiles, "output_tokens": quantiles}},
    }
    return json.dumps(client | changes)


def test_clients_without_lengths_have_the_others(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write("\n".join([_line(), _line(lengths=None), _line(lengths={"0": [], "21600": {}})]))
    pool = read_servegen(path)
    assert pool.rates.shape == (3, 3)
    np.testing.assert_array_equal(pool.rates[0], [2.0, 0.0, 4.0])
    np.testing.assert_array_equal(pool.weibull[0], [False, False, True])
    assert pool.shapes[0, 2] == 0.6
    np.testing.assert_array_equal(pool.prompt_tokens[:, 0], np.tile(np.arange(1, 24), (3, 1)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "pool.jsonl:2: not a client of ServeGen"),
        ("[]", "pool.jsonl:2: not a client"),
        (_line(trace=[[0, 1.0]]), "pool.jsonl:2: not a client.*unpack"),
        (_line(trace=[[5, 1.0, 1.0, "Gamma", 1.0, 1.0]]), "pool.jsonl:2: .*window at 5 s"),
        (_line(trace=[[0, -1.0, 1.0, "Gamma", 1.0, 1.0]]), "pool.jsonl:2: .*rate: found -1"),
        (_line(trace=[[0, 1.0, 1.0, "Gamma", 0, 1.0]]), "pool.jsonl:2: .*shape: found 0"),
        (_line(trace=[[0, 1.0, 1.0, "Pareto", 1.0, 1.0]]), "pool.jsonl:2: .*family 'Pareto'"),
        (_line(lengths={"0": {"input_tokens": [1]}}), "pool.jsonl:2: .*output_tokens"),
        (
            _line(lengths={"0": {"input_tokens": [1], "output_tokens": [1]}}),
            "pool.jsonl:2: .*23 ascending quantiles",
        ),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text(f"{_line()}\n{line}\n")
    with pytest.raises(ValueError, match=message):
        read_servegen(path)


def test_pools_without_requests_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text(_line(trace=[]))
    with pytest.raises(ValueError, match="found no client with requests"):
        read_servegen(path)
    path.write_text(_line(lengths=None))
    with pytest.raises(ValueError, match="found no client with requests and lengths"):
        read_servegen(path)
