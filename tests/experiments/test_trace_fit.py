import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.workload.arrivals import Gamma, Poisson
from prefixgym.envs.workload.distributions import Geometric, LogNormal
from prefixgym.envs.workload.generators.chat import MultiTurnChat
from prefixgym.envs.workload.generators.unique_prompts import UniquePrompts
from prefixgym.envs.workload.readers.mooncake import read_mooncake
from prefixgym.experiments.cli import app
from prefixgym.experiments.trace_fit import Comparison, fit_trace

CHAT = MultiTurnChat(
    1500,
    Gamma(4.0, 1.5),
    64,
    turns=Geometric(2.0, 40),
    think_time=LogNormal(20.0, 0.8),
    system_tokens=128,
    user_tokens=LogNormal(200, 0.6, high=4000),
)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["trace", "fit", *map(str, arguments)])


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    """A made chat in Mooncake's format, which states no sessions."""
    tape = CHAT.tape(0)
    rows = [
        {
            "timestamp": int(request["arrival"]) // 10**9,
            "input_length": int(request["prompt_tokens"]),
            "output_length": int(request["output_tokens"]),
            "hash_ids": tape.block_ids(row)[: request["num_blocks"]].tolist(),
        }
        for row, request in enumerate(tape.requests)
    ]
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_fit_becomes_a_scenario_whose_episodes_resemble_the_trace(
    chat: Path, tmp_path: Path
) -> None:
    out = tmp_path / "My days.toml"
    result = run(chat, "--out", out)
    assert result.exit_code == 0, result.output
    assert "chat, fitted to the whole trace (1,500 requests)" in result.stdout
    assert "verdict" in result.stdout
    scenario = load_scenario(str(out))
    assert scenario.name == "my-days"
    assert scenario.workload.generator == "chat"
    rate = scenario.rates[2]
    assert rate == pytest.approx(4.0, rel=0.15)
    assert scenario.workload.arrivals is not None
    assert scenario.workload.arrivals["cv"] == pytest.approx(1.5, abs=0.3)
    tape = scenario.build(rate).workload.tape(3)
    recorded = CHAT.tape(0).requests
    assert len(tape.requests) == 1500
    for key in ("prompt_tokens", "output_tokens"):
        assert tape.requests[key].mean() == pytest.approx(recorded[key].mean(), rel=0.15)


def test_halves_are_compared_and_written_as_a_page(chat: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    result = run(chat, "--first-half", "--family", "chat", "--page", page, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert sum(found["requests"]) == 1500
    assert found["family"] == "chat"
    figures = {entry["figure"]: entry for entry in found["figures"]}
    assert figures["requests/s"]["verdict"] == "given"
    entry = figures["prompt tokens, mean"]
    assert entry["error"] == pytest.approx(entry["generated"] / entry["wanted"] - 1)
    text = page.read_text()
    assert "| first half | second half |" in text
    assert f"--first-half --page {page}" in text


def test_a_trace_that_shares_nothing_gets_unique_prompts() -> None:
    report = fit_trace(UniquePrompts(3000, Poisson(4.0), 64).tape(0))
    assert report.fit.family == "unique-prompts"
    assert report.verdicts["poor"] <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--family", "x"), "family: found 'x', allowed: chat, agentic, shared-prompts, unique"),
        (("--out", "x.json"), "--out: found x.json, must end in .toml"),
        (("--page", "x.md"), "--page: shows halves side by side, it needs --first-half"),
        (("--family", "shared-prompts", "--option", "x"), "--option: found 'x', must be KEY=VALUE"),
    ],
)
def test_mistakes_are_one_line(trace: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run(trace, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr.splitlines()[-1]


def test_closed_loops_have_no_halves() -> None:
    tape = replace(CHAT, closed_loop=True).tape(0)
    with pytest.raises(ValueError, match="first-half: found follow-ups"):
        fit_trace(tape, first_half=True)


def test_verdicts() -> None:
    errors = {0.9: "good", 0.89: "fair", 1.25: "fair", 1.26: "poor", float("nan"): "poor"}
    for generated, verdict in errors.items():
        assert Comparison("x", 1.0, 1.0, generated, 0.0).verdict == verdict
    assert Comparison("x", 1.0, 0.0, 0.0, 0.0).verdict == "good"
    assert Comparison("x", 1.0, 0.0, 0.1, 0.0).verdict == "poor"


def test_half_of_the_conversation_trace_foretells_the_other(traces: Path) -> None:
    tape = read_mooncake(traces / "mooncake_conversation" / "conversation_trace.jsonl.gz")
    report = fit_trace(tape, first_half=True, family="chat")
    error = {c.figure: c.error for c in report.comparisons}
    for figure in (
        "token hit, infinite cache, cold, %",
        "token hit, infinite cache, warmed, %",
        "block hit, LRU of 30,000 blocks, %",
        "sessions with several turns, %",
        "output tokens, mean",
        "reuse gap, s, p50",
    ):
        assert abs(error[figure]) < 0.1, figure
    # The second half has shorter prompts; the generator has those of the first.
    mean = next(c for c in report.comparisons if c.figure == "prompt tokens, mean")
    assert mean.generated == pytest.approx(mean.fitted, rel=0.05)
    assert report.verdicts["poor"] <= 3
    assert report.mean_error < 0.12
