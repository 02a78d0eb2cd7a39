import json
import typing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prefixgym.envs.clients import Clients
from prefixgym.envs.cluster.faults import Autoscaler, Fault, Kind
from prefixgym.envs.scenarios.registry import load_scenario, scenario_names, scenario_path
from prefixgym.envs.view.knowledge import Health
from prefixgym.experiments.cli import app
from prefixgym.experiments.leaderboard import TROUBLED
from prefixgym.experiments.scenario_page import scenario_page


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["scenarios", *map(str, arguments)])


def test_list_for_people_and_for_machines() -> None:
    text = run().stdout
    assert "shared-prompts" in text
    assert "8 x llama-3.1-8b/h100/tp1" in text
    assert "0.45 + 0.0003/token" in text
    found = json.loads(run("--json").stdout)
    assert list(found) == scenario_names()
    assert found["unique-prompts-8"]["reuse"]["token_hit"] == 0
    assert found["chat-8"]["knee"]["rate"] == found["chat-8"]["rates"][2]


def test_one_scenario_is_explained(tiny: Path) -> None:
    text = run(tiny).stdout
    words = " ".join(text.split())
    assert text.startswith("tiny: Two small instances.")
    for row in (
        "cluster.block_size 64 tokens in a KV block.",
        "cluster.instances.0.kv_blocks 400 blocks of KV cache",
        "workload.zipf 0.0 exponent of the groups' popularity; 0 is uniform.",
        'workload.arrivals.process "poisson" Exponential gaps',
        "knowledge.index.source",
        "knowledge.telemetry.interval 0.0 s between",
        "knowledge.index.own.ttl",
        "autoscaler.high",
        "faults.0.at s, when it begins.",
        "clients.retries 0 how often",
        "requests without a hit, %",
        f"Try it: prefixgym evaluate min_ttft --scenario {tiny}",
    ):
        assert " ".join(row.split()) in words.replace("\n", "")
    assert "--set cluster.instances=4" in words


def test_all_kinds_of_workload_are_explained(tiny: Path, trace: Path) -> None:
    """A trace, which has no class, and load that varies."""
    varying = "workload.arrivals={ process = 'gamma', cv = 2.0, diurnal = { period = 60.0 } }"
    words = " ".join(run(tiny, "--set", varying).stdout.split())
    assert "workload.arrivals.cv 2.0 coefficient of variation of the gaps" in words
    assert "workload.arrivals.diurnal.period 60.0 s." in words
    replay = f"workload={{ generator = 'trace', path = '{trace}' }}"
    words = " ".join(run(tiny, "--set", replay, "--set", "cluster.block_size=512").stdout.split())
    assert "workload.path" in words


def test_overrides_and_statistics_for_machines(tiny: Path) -> None:
    result = run("show", tiny, "--set", "cluster.instances=5", "--json")
    found = json.loads(result.stdout)
    assert found["cluster"]["instances"][0]["count"] == 5
    assert found["statistics"]["traffic"]["requests"] == 150


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope",), "scenario: found 'nope', allowed: agentic-8, "),
        (("chat-8", "--set", "slo.ttfft=1"), "slo.ttfft: no such key, allowed: ttft"),
        (("chat-8", "--set", "slo"), "--set: found 'slo', must be KEY=VALUE"),
        (("knee", "chat-8", "--router", "nope"), "router: found 'nope', allowed: "),
        (("knee", "chat-8", "--write", "--set", "slo.ttft=1"), "--write: found with --set"),
    ],
)
def test_mistakes_are_one_line_and_status_2(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr


def test_knee_is_written_into_the_file(tiny: Path) -> None:
    result = run("knee", tiny, "--router", "round_robin", "--episodes", "1", "--write")
    assert result.exit_code == 0, result.output
    scenario = load_scenario(str(tiny))
    assert scenario.knee is not None
    assert (scenario.knee.router, scenario.knee.episodes) == ("round_robin", 1)
    assert f"knee: {scenario.knee.rate:g} requests/s" in result.stdout
    assert "round_robin at" in result.stderr


def test_the_page_on_faults_explains_each_key_and_its_example_loads(
    repository: Path, tmp_path: Path
) -> None:
    page = (repository / "docs" / "faults.md").read_text(encoding="utf-8")
    for section in (Fault, Autoscaler, Clients, Health):
        assert all(f"| `{key}` |" in page for key in section.model_fields)
    assert all(f"| `{kind}` |" in page for kind in typing.get_args(Kind))
    assert all(f"| `{name}` |" in page for name in TROUBLED)
    example = page.partition("```toml\n")[2].partition("```")[0]
    copy = tmp_path / "mine.toml"
    copy.write_text(scenario_path("chat-8").read_text(encoding="utf-8") + example)
    scenario = load_scenario(str(copy))
    assert [fault.kind for fault in scenario.faults] == ["crash", "slow", "drain"]


def test_the_page_is_that_of_the_files(repository: Path) -> None:
    """If not: `prefixgym scenarios page`."""
    page = (repository / "docs" / "scenarios.md").read_text(encoding="utf-8")
    assert page == scenario_page([load_scenario(name) for name in scenario_names()])
