import json
from pathlib import Path

import numpy as np
import pytest

from prefixgym.envs.clients import Clients
from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.cluster.faults import Autoscaler
from prefixgym.envs.scenarios import registry
from prefixgym.envs.scenarios.knee import ladder
from prefixgym.envs.scenarios.registry import load_scenario, scenario_names, trace_scenario
from prefixgym.envs.slo import Slo
from prefixgym.envs.view.knowledge import Index, OwnDecisions, Snapshots
from prefixgym.envs.workload.arrivals import Weibull
from prefixgym.envs.workload.distributions import Empirical, LogNormal, Mixture
from prefixgym.envs.workload.varying_load import Bursts, Diurnal, VaryingLoad

SCENARIO = "shared-prompts-8"


@pytest.mark.parametrize("name", scenario_names())
def test_built_in_scenarios_load_and_build(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name
    for rate in scenario.rates:
        cluster, workload, slos = scenario.build(rate)[:3]
        assert workload.block_size == cluster.block_size
        assert len(slos) == (3 if "classes" in name else 1)
    assert len(workload.tape(scenario.seeds.test.first).requests) == scenario.workload.num_requests


@pytest.mark.parametrize("name", scenario_names())
def test_ladders_of_built_in_scenarios_stand_around_their_knees(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.knee is not None
    assert scenario.rates == ladder(scenario.knee.rate)
    assert scenario.rates[2] == scenario.knee.rate


@pytest.mark.parametrize("name", scenario_names())
def test_faults_have_happened_before_the_last_arrival_at_every_load(name: str) -> None:
    scenario = load_scenario(name)
    for rate in scenario.rates if scenario.faults else ():
        cluster, workload = scenario.build(rate)[:2]
        requests = workload.tape(scenario.seeds.test.first).requests
        last = requests["arrival"].max() / TICKS_PER_SECOND
        happened = {
            fault.kind
            for fault in scenario.faults
            if fault.at
            + fault.stagger * (len(fault.instances or cluster.instances) - 1)
            + (fault.grace if fault.kind == "drain" else 0.0)
            < last
        }
        assert happened == {fault.kind for fault in scenario.faults}


def test_one_number_is_the_count_of_instances_that_are_all_alike() -> None:
    scenario = load_scenario(SCENARIO, {"cluster.instances": "3"})
    assert [group.count for group in scenario.cluster.instances] == [3]
    with pytest.raises(
        ValueError,
        match=r"cluster.instances: found 16 for 2 groups of different instances, "
        r"set cluster.instances.0.count or cluster.instances.1.count",
    ):
        load_scenario("chat-16-mixed", {"cluster.instances": "16"})
    with pytest.raises(ValueError, match=r"cluster.instances.0.count: found 0"):
        load_scenario(SCENARIO, {"cluster.instances": "0"})
    with pytest.raises(ValueError, match=r"cluster.instances: found 'many'"):
        load_scenario(SCENARIO, {"cluster.instances": "many"})


def test_loads_are_the_same_requests_at_another_pace() -> None:
    scenario = load_scenario(SCENARIO)
    slow, fast = (scenario.build(rate).workload.tape(5).requests for rate in (10.0, 20.0))
    np.testing.assert_array_equal(slow["prompt_tokens"], fast["prompt_tokens"])
    np.testing.assert_allclose(slow["arrival"], 2 * fast["arrival"], rtol=1e-9)


def test_overrides_reach_lists_tables_and_sections_that_the_file_lacks() -> None:
    scenario = load_scenario(
        SCENARIO,
        {
            "cluster.instances.0.count": "3",
            "workload.output_tokens": "{ median = 100, sigma = 0.5, high = 1000 }",
            "workload.question_tokens": "[16, 64]",
            "workload.system_tokens": "{ weights = [3, 1], of = [[1, 9], { quantiles = [1, 5] }] }",
            "workload.arrivals.process": "gamma",
            "workload.arrivals.cv": "2.0",
            "knowledge.index.snapshots.interval": "0.5",
            "knowledge.index.own": "{ ttl = 2.0 }",
            "autoscaler": "{ first = 2, high = 9, low = 1 }",
            "autoscaler.startup": "5",
            "clients.retries": "1",
        },
    )
    assert scenario.autoscaler == Autoscaler(first=2, high=9, low=1, startup=5)
    assert scenario.clients == Clients(retries=1)
    setup = scenario.build(10.0)
    cluster, workload = setup.cluster, setup.workload
    assert len(cluster.instances) == 3
    assert setup.knowledge.index == Index(
        source="snapshots", snapshots=Snapshots(interval=0.5), own=OwnDecisions(ttl=2.0)
    )
    assert workload.output_tokens == LogNormal(100, 0.5, 1000)  # type: ignore[attr-defined]
    assert workload.question_tokens == (16, 64)  # type: ignore[attr-defined]
    expected = Mixture((3, 1), ((1, 9), Empirical((1, 5))))
    assert workload.system_tokens == expected  # type: ignore[attr-defined]
    assert workload.arrivals.cv == 2.0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "cluster.instances.0.cuont",
            "3",
            "cluster.instances.0.cuont: no such key, allowed: profile",
        ),
        ("cluster.instances.0.count", "0", "cluster.instances.0.count: found 0, .* equal to 1"),
        (
            "cluster.instances.7.count",
            "1",
            "cluster.instances.7.count: found index '7', allowed: 0",
        ),
        ("cluster.instances.0.profile", "gpt", "cluster.instances.0: profile: found 'gpt'"),
        ("cluster.block_size", "fast", "cluster.block_size: found 'fast'"),
        ("slo.ttft", "-1", "slo.ttft: found -1, .* greater than 0"),
        ("slo.ttfft", "1", "slo.ttfft: no such key, allowed: ttft, tpot, ttft_per_token"),
        ("knee.rate", "0", "knee.rate: found 0, .* greater than 0"),
        ("knee.load", "1", "knee.load: no such key, allowed: router, attainment, rate, episodes"),
        ("slo", "3", "slo: found 3, "),
        ("slo", "[]", "slo: found .*at least 1 item"),
        ("slo", '[{ name = "a", ttft = 1 }]', "slo.0.tpot: missing"),
        (
            "slo",
            '[{ ttft = 1, tpot = 1, shar = 1, name = "a" }]',
            "slo.0.shar: no such key, .*share",
        ),
        ("slo.ttft.low", "1", "slo.ttft.low: found 'low' below 0.5"),
        ("rates", "[2, 1]", r"rates: found \[2.0, 1.0\], must be above 0 and ascend"),
        ("seeds.test.first", "7", "seeds: train and test share seed 7"),
        ("knowledge.index.source", "spies", "knowledge.index.source: found 'spies', .*'events'"),
        ("knowledge.index.sauce", "1", "knowledge.index.sauce: no such key, allowed: source, deli"),
        ("knowledge.index.source", "none", "knowledge.index: own: missing, without a source"),
        ("knowledge.index.own.tll", "1", "knowledge.index.own.ttl: missing; .*allowed: ttl, blo"),
        ("knowledge.replicas.shares", "[1, 2]", "knowledge.replicas: shares: found .* 1 numbers"),
        (
            "faults.0.kind",
            "flood",
            "faults.0.kind: found 'flood', .*'crash'.*; faults.0.at: missin",
        ),
        ("faults.1.kind", "crash", "faults.1.kind: found index '1', allowed: 0"),
        (
            "faults",
            '[{ kind = "crash", at = 1, instances = [1, 9] }]',
            "faults.0.instances: found 9, the cluster has 8 instances",
        ),
        ("faults", '[{ kind = "slow", at = 1 }]', "faults.0: factor: found 1.0 with slow"),
        (
            "faults",
            '[{ kind = "slow", when = 1 }]',
            ".*faults.0.when: no such key, allowed: kind, ",
        ),
        ("autoscaler", "{ high = 9, low = 1 }", "autoscaler.first: missing"),
        (
            "autoscaler",
            "{ first = 9, high = 9, low = 1 }",
            "autoscaler.first: found 9, the cluster has 8 instances",
        ),
        ("clients.patience", "3", "clients.patience: no such key, allowed: timeout, cancel, "),
        ("workload.generator", "mail", "workload.generator: found 'mail'.*'shared-prompts'"),
        ("workload.arrivals", "3", "workload.arrivals: found 3, "),
        (
            "workload.arrivals.process",
            "uniform",
            "workload.arrivals.process: found 'uniform', allowed: poisson, gamma, weibull",
        ),
        ("workload.arrivals.cv", "2", "workload.arrivals.cv: no such key of poisson, allowed: pro"),
        ("workload.arrivals.process", "gamma", "workload.arrivals.cv: missing, gamma needs it"),
        ("workload.arrivals.bursts.every", "9", "workload.arrivals.bursts.duration: missing"),
        ("workload.arrivals.diurnal", "9", "workload.arrivals.diurnal: found 9, must be a table"),
        (
            "workload.arrivals.diurnal",
            "{ period = 60, start = -1 }",
            "workload.arrivals.diurnal.start: found -1",
        ),
        ("workload.zipff", "1", "workload.zipff: no such key of shared-prompts, allowed: .*zipf"),
        ("workload.zipf", "-1", "workload.zipf: found -1, must be .* at least 0"),
        ("workload.output_tokens", "{ mean = 3 }", "workload.output_tokens: .*allowed: median"),
        (
            "workload.output_tokens",
            "{ weights = [1, 2], of = [3, { median = 0, sigma = 1, high = 3 }] }",
            r"workload.output_tokens.of\[1\].median: found 0, must be finite and above 0",
        ),
        (
            "workload.output_tokens",
            "{ mean = 0, high = 9 }",
            "workload.output_tokens.mean: found 0",
        ),
    ],
)
def test_errors_name_file_key_finding_and_what_is_allowed(
    key: str, value: str, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{SCENARIO}.toml: {message}") as error:
        load_scenario(SCENARIO, {key: value})
    assert "\n" not in str(error.value)


def test_an_autoscaler_and_faults_do_not_both_say_who_joins() -> None:
    overrides = {
        "autoscaler": "{ first = 4, high = 9, low = 1 }",
        "faults.0": '{ kind = "join", at = 1, instances = [1] }',
    }
    with pytest.raises(ValueError, match=r"faults.0.kind: found 'join' beside an autoscaler"):
        load_scenario(SCENARIO, overrides)


def test_whatever_happens_is_part_of_the_identity() -> None:
    """Results of one must never be taken for those of another."""
    changes = {
        "knowledge.replicas.count": "2",
        "faults.0": '{ kind = "flush", at = 1 }',
        "autoscaler": "{ first = 4, high = 9, low = 1 }",
        "clients.cancel": "0.1",
    }
    identities = [load_scenario(SCENARIO, {k: v}).identity() for k, v in changes.items()]
    identities.append(load_scenario(SCENARIO).identity())
    texts = {json.dumps(identity, sort_keys=True) for identity in identities}
    assert len(texts) == 5


CLASSES = """[
    { name = "interactive", share = 3, ttft = 0.5, tpot = 0.03 },
    { name = "agents", share = 1, ttft = 2, tpot = 0.1, ttft_per_token = 0.001 },
]"""


def test_classes_have_their_objectives_and_their_share_of_the_sessions() -> None:
    setup = load_scenario(SCENARIO, {"slo": CLASSES.replace("\n", "")}).build(10.0)
    workload, slos = setup.workload, setup.slos
    assert slos == (Slo(0.5, 0.03), Slo(2.0, 0.1, 0.001))
    requests = workload.tape(0).requests
    assert set(requests["slo_class"]) == {0, 1}
    without = CLASSES.replace("\n", "").replace("share = 3,", "").replace("share = 1,", "")
    setup = load_scenario(SCENARIO, {"slo": without}).build(10.0)
    assert len(setup.slos) == 2
    assert set(setup.workload.tape(0).requests["slo_class"]) == {0}


def test_classes_must_fit_together() -> None:
    for classes, message in (
        (CLASSES.replace("agents", "interactive"), "slo: found two classes named 'interactive'"),
        (CLASSES.replace("share = 1,", ""), "slo: found a share for interactive only"),
    ):
        with pytest.raises(ValueError, match=message):
            load_scenario(SCENARIO, {"slo": classes.replace("\n", "")})


def test_files_of_ones_own(tmp_path: Path) -> None:
    copy = tmp_path / "mine.toml"
    source = Path(registry.__file__).with_name(f"{SCENARIO}.toml")
    copy.write_text(source.read_text().replace("num_groups", "# num_groups"))
    with pytest.raises(ValueError, match=r"mine.toml: workload.num_groups: missing"):
        load_scenario(str(copy))
    copy.write_text("name = ")
    with pytest.raises(ValueError, match=r"mine.toml: not a readable TOML file: Invalid value"):
        load_scenario(str(copy))


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=f"found 'nope', allowed: .*{SCENARIO}"):
        load_scenario("nope")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """21 requests, one a second, of two blocks of 512 tokens, the second one partial."""
    path = tmp_path / "My Trace.jsonl"
    lines = [
        f'{{"timestamp": {1000 * i}, "input_length": {1024 if i % 2 else 513}, '
        f'"output_length": 9, "hash_ids": [{2 * i}, {2 * i + 1}]}}\n'
        for i in range(21)
    ]
    path.write_text("".join(lines))
    return path


def test_traces_are_played_at_the_speed_that_gives_the_rate(trace: Path) -> None:
    scenario = trace_scenario(trace, [1.05, 2.1])
    assert scenario.name == "my-trace"
    assert scenario.num_requests == 21
    slow, fast = (scenario.build(rate).workload.tape(0).requests for rate in scenario.rates)
    assert slow["arrival"][-1] == pytest.approx(20 * TICKS_PER_SECOND, rel=1e-9)
    assert fast["arrival"][-1] == pytest.approx(10 * TICKS_PER_SECOND, rel=1e-9)


def test_traces_bring_their_block_size_and_may_be_split(trace: Path) -> None:
    assert trace_scenario(trace, [1.0]).cluster.block_size == 512
    split = trace_scenario(trace, [1.0], {"cluster.block_size": "64"})
    assert split.build(1.0).workload.tape(0).block_size == 64
    with pytest.raises(ValueError, match=r"workload.block_size: found 100, must divide .* 512"):
        trace_scenario(trace, [1.0], {"cluster.block_size": "100"})


def test_traces_have_their_own_arrivals(trace: Path) -> None:
    with pytest.raises(ValueError, match=r"workload.arrivals: found some, a trace has its own"):
        trace_scenario(trace, [1.0], {"workload.arrivals.process": "poisson"})


def test_arrivals_vary_as_the_file_says() -> None:
    overrides = {
        "workload.arrivals.process": "weibull",
        "workload.arrivals.cv": "0.5",
        "workload.arrivals.diurnal": "{ period = 60, spikes = [[10, 5, 3.0]] }",
        "workload.arrivals.bursts": "{ every = 50, duration = 5, factor = 2 }",
    }
    workload = load_scenario(SCENARIO, overrides).build(10.0).workload
    assert workload.arrivals == VaryingLoad(  # type: ignore[attr-defined]
        Weibull(10.0, 0.5), Diurnal(60, spikes=((10, 5, 3.0),)), Bursts(50, 5, 2)
    )


def test_windows_of_a_trace_are_drawn_by_the_seed(trace: Path) -> None:
    scenario = trace_scenario(trace, [1.0]).with_num_requests(5)
    assert scenario.num_requests == 5
    windows = {
        tuple(scenario.build(1.0).workload.tape(seed).requests["first_run"]) for seed in range(9)
    }
    assert len(windows) > 1


def test_clients_have_their_own_arrivals() -> None:
    clients = '{ generator = "clients", num_requests = 50, zipf = 0 }'
    workload = load_scenario(SCENARIO, {"workload": clients}).build(7.0).workload
    assert workload.rate == 7.0  # type: ignore[attr-defined]
    overrides = {"workload": clients, "workload.arrivals.process": "poisson"}
    with pytest.raises(ValueError, match=r"workload.arrivals: found some, clients has its own"):
        load_scenario(SCENARIO, overrides)


def test_a_pool_of_clients_counts_by_its_content(tmp_path: Path) -> None:
    quantiles = [20.0, *range(1, 24)]
    client = {
        "trace": [[0, 2.0, 1.0, "Gamma", 1.0, 0.5]],
        "lengths": {"0": {"input_tokens": quantiles, "output_tokens": quantiles}},
    }
    identities = []
    for name, text in (("a", ""), ("b", ""), ("c", "\n")):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(json.dumps(client) + text)
        workload = f'{{ generator = "servegen", num_requests = 50, path = "{path}" }}'
        scenario = load_scenario(SCENARIO, {"workload": workload})
        assert len(scenario.build(3.0).workload.tape(0).requests) == 50
        identities.append(scenario.identity())
    assert identities[0] == identities[1] != identities[2]


def test_traces_whose_rows_leave_the_block_size_open_need_it(trace: Path) -> None:
    trace.write_text(trace.read_text().replace("1024", "700").replace("513", "700"))
    with pytest.raises(ValueError, match="trace_block_size: not given"):
        trace_scenario(trace, [1.0])
    assert trace_scenario(trace, [1.0], trace_block_size=512).cluster.block_size == 512


def test_generators_need_what_traces_do_not() -> None:
    with pytest.raises(ValueError, match=r"workload.path: missing, trace needs it"):
        load_scenario(SCENARIO, {"workload": '{ generator = "trace" }'})
    with pytest.raises(ValueError, match=r"workload.num_requests: missing, chat needs it"):
        load_scenario(SCENARIO, {"workload": '{ generator = "chat" }'})
