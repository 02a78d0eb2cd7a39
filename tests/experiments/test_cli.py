import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prefixgym.experiments.cli import app


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run_json(*arguments: str | Path) -> dict[str, object]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_help_lists_the_commands() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for command in ("leaderboard", "evaluate", "replay", "routers", "scenarios", "profiles"):
        assert command in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "nope", "--scenario", "chat-8"), "router: found 'nope', allowed: "),
        (("evaluate", "random", "--scenario", "nope"), "scenario: found 'nope', allowed: agentic-"),
        (("evaluate", "random", "--scenario", "chat-8", "--set", "beta"), "--set: found 'beta'"),
        (("evaluate", "random", "--scenario", "chat-8", "--set", "beta=1"), "random.beta: no such"),
        (
            ("evaluate", "random", "--scenario", "chat-8", "--set", "slo.ttfft=1"),
            "chat-8.toml: slo.ttfft: no such key, allowed: ttft, tpot",
        ),
        (("evaluate", "random", "--scenario", "chat-8", "--split", "x"), "split: found 'x', allow"),
        (("evaluate", "random", "--scenario", "chat-8", "--rate", "0"), "rate: found 0.0"),
        (("replay", "no-such-file", "--router", "random"), "no-such-file"),
        (
            ("leaderboard", "--suite", "nope"),
            "suite: found 'nope', allowed: quick, default, ",
        ),
        (("leaderboard", "--router", "nope"), "router: found 'nope', allowed: "),
        (("leaderboard", "--scenario", "chat-8", "--set", "beta=1"), "chat-8.toml: beta: no such"),
        (("leaderboard", "--set", "cluster.instances=4"), "set cluster.instances.0.count or "),
        (("train", "ppo", "--set", "slo.ttft=0"), "slo.ttft: found 0"),
        (("train", "ppo", "--set", "clipp=0"), "clipp: no such key, allowed: scenario, "),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last
    assert result.stdout == ""


def test_malformed_traces_are_named_by_file_and_line(trace: Path) -> None:
    trace.write_text(trace.read_text().replace('"input_length": 513', '"input_length": -1', 1))
    result = run("replay", trace, "--router", "random")
    assert result.exit_code == 2
    assert f"{trace}:2: input_length: found -1" in result.stderr


def test_lists_for_people_and_for_machines() -> None:
    assert "SGLang model gateway, cache_aware" in run("routers").stdout
    assert "cache_aware" in run_json("routers")
    assert "llama-3.1-8b/h100/tp1" in run("profiles").stdout
    assert "llama-3.1-8b/h100/tp1" in run_json("profiles")


def test_evaluate_walks_the_ladder(tiny: Path) -> None:
    arguments = ("evaluate", "loadaware", "--scenario", tiny, "--seeds", "2", "--set", "beta=0.5")
    found = run_json(*arguments, "--capacity")
    assert found["parameters"]["beta"] == 0.5  # type: ignore[index]
    assert [cell["rate"] for cell in found["cells"]] == [5.0, 20.0, 80.0]  # type: ignore[attr-defined]
    assert 5 < found["capacity"] < 1000  # type: ignore[operator]
    assert "loadaware on tiny" in run(*arguments).stdout


def test_evaluate_changes_the_scenario_by_dotted_keys(tiny: Path) -> None:
    arguments = ("evaluate", "random", "--scenario", tiny, "--seeds", "1", "--rate", "80")
    two = run_json(*arguments)["cells"]
    eight = run_json(*arguments, "--set", "cluster.instances=8")["cells"]
    assert eight[0]["tpot_mean"] < two[0]["tpot_mean"]  # type: ignore[index]


def test_replay_plays_the_whole_trace_at_its_speed(trace: Path) -> None:
    flags = ("--router", "min_ttft", "--profile", "llama-3.1-8b/h100/tp1", "--instances", "2")
    found = run_json("replay", trace, *flags, "--blocks", "50", "--speedup", "2")
    assert found["requests"] == 40
    assert found["rate"] == pytest.approx(2 * 40 / 19.5)
    # The second of each pair finds the block that the first one left: 512 of 513 tokens.
    assert found["hit_rate"] == pytest.approx(512 / (1024 + 513))
    assert "hit_rate" in run("replay", trace, *flags).stdout


def test_leaderboard_writes_and_prints(
    tiny: Path, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments: list[str | Path] = [
        "leaderboard",
        "--suite",
        "quick",
        "--scenario",
        tiny,
        "--trace",
        trace,
    ]
    arguments += ["--router", "round_robin", "--router", "min_ttft", "--name", "mine"]
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    for expected in ("tiny at", "trace at", "All scenarios and loads", "runs/mine/leaderboard.png"):
        assert expected in result.stdout
    assert "8 of 8 cells" in result.stderr
    # Again: nothing is left to do, and the report is the same.
    found = run_json(*arguments)
    assert found["failures"] == []
    assert len(found["cells"]) == 8  # type: ignore[arg-type]
    for path in found["files"].values():  # type: ignore[attr-defined]
        assert Path(path).stat().st_size > 0


def test_leaderboard_changes_scenarios_by_dotted_keys(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    eight = ("--set", "cluster.instances=8", "--set", "rates=[80]")
    found = run_json("leaderboard", "--scenario", tiny, "--router", "round_robin", *eight)
    cells: list[dict[str, float]] = found["cells"]  # type: ignore[assignment]
    arguments = ("evaluate", "round_robin", "--scenario", tiny, "--rate", "80")
    two: list[dict[str, float]] = run_json(*arguments)["cells"]  # type: ignore[assignment]
    assert [cell["rate"] for cell in cells] == [80]
    assert cells[0]["tpot_mean"] < two[0]["tpot_mean"]
