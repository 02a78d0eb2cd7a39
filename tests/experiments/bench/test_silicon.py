"""Time per output token against 216 real serving runs."""

from pathlib import Path

import numpy as np
import pytest

from prefixgym.envs.cluster.profiles import CompactModel
from prefixgym.envs.workload.tape import NO_ROW
from prefixgym.experiments.bench import silicon
from prefixgym.experiments.bench.silicon import ClosedLoop, compare, read_runs, summarize

RUNS = Path(__file__).parents[3].parent / "shared/reference/calibration/silicon_validation.csv"
HEADER = "tp,isl,osl,concurrency,silicon_tpot_ms,set\n"
QWEN = "Qwen3-32B vLLM0.12 h100_sxm"

needs_runs = pytest.mark.skipif(not RUNS.is_file(), reason=f"the runs are not at {RUNS}")


@needs_runs
def test_tpot_agrees_with_the_real_runs() -> None:
    summary = {row["set"]: row for row in summarize(compare(read_runs(RUNS))).to_dicts()}
    assert summary["all"]["runs"] == 216
    assert summary["all"]["mape"] <= 0.05
    assert abs(summary["all"]["bias"]) < 0.015
    # As measured (docs/calibration.md) with 0.3 points of slack.
    for name, mape in (
        ("Qwen3-32B vLLM0.12 h100_sxm", 0.029),
        ("Llama-3.1-70B-FP8 vLLM h100_sxm", 0.034),
        ("Llama-3.1-70B-FP8 vLLM h200_sxm", 0.031),
        ("gpt-oss-120b vLLM0.18 h100_sxm", 0.056),
        ("gpt-oss-120b vLLM0.18 h200_sxm", 0.037),
    ):
        assert summary[name]["mape"] < mape + 0.003, name


@needs_runs
def test_host_terms_carry_a_real_share() -> None:
    runs = read_runs(RUNS)[::4]
    without = summarize(compare(runs, rounds=4, host="none")).to_dicts()
    assert all(row["bias"] < -0.05 for row in without)


def write(folder: Path, text: str) -> Path:
    path = folder / "runs.csv"
    path.write_text(text)
    return path


def test_one_client_alone_is_the_step_model(tmp_path: Path) -> None:
    (run,) = read_runs(write(tmp_path, HEADER + f"2.0,1000,101,1.0,15,{QWEN}\n"))
    row = compare([run], rounds=3).row(0, named=True)
    model = run.profile().step_model
    assert isinstance(model, CompactModel)
    assert model.linear_table is not None
    d0, d1, d2 = model.decode_attention
    # 100 decode steps of one sequence, each after the one that wrote token 1,001, 1,002, …
    context = 1000 + np.arange(1, 101).mean()
    expected = 1.5 + 0.04 + model.linear_table[0] + d0 + d1 + d2 * context
    assert row["simulated"] == pytest.approx(expected / 1e3, rel=1e-6)  # ticks
    assert row["error"] == pytest.approx(row["simulated"] / 0.015 - 1)
    assert (row["profile"], row["host"]) == ("qwen3-32b/h100/tp2", "vllm-0.12")


def test_block_size_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = read_runs(write(tmp_path, HEADER + f"2,1024,128,32,20,{QWEN}\n"))
    coarse = compare(runs, rounds=3)["simulated"][0]
    monkeypatch.setattr(silicon, "BLOCK_SIZE", 16)
    assert compare(runs, rounds=3)["simulated"][0] == coarse


def test_a_closed_loop_is_a_chain_for_each_client() -> None:
    loop = ClosedLoop(3, rounds=4, prompt_tokens=1000, output_tokens=50, block_size=16, spread=0.3)
    tape = loop.tape(0)
    requests = tape.requests
    assert (requests["parent"] == NO_ROW).tolist() == [True] * 3 + [False] * 9
    for row in range(9):
        child = requests["first_child"][row]
        assert requests["parent"][child] == row
        assert requests["session"][child] == requests["session"][row]
    assert (requests["first_child"][9:] == NO_ROW).all()
    assert (requests["arrival"] / 1e12).round(9).tolist() == [0.0, 0.1, 0.2] + [0.0] * 9
    ids = np.concatenate([tape.block_ids(row) for row in range(12)])
    assert len(set(ids.tolist())) == len(ids) == 12 * loop.max_blocks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"runs\.csv: the header lacks concurrency, isl, osl, set, silicon_tpot_ms, tp"),
        (HEADER, "found no runs"),
        (HEADER + "2,1024,128,8,15,gpt-5\n", r"runs\.csv:2: set: found 'gpt-5', allowed: Qwen3"),
        (HEADER + f"2,1024,128,8,15,{QWEN}\n2,x,128,8,15,{QWEN}\n", r"runs\.csv:3: .*'x'"),
        (HEADER + f"2,1024,1,8,15,{QWEN}\n", r"runs\.csv:2: .*must be positive.*output_tokens=1"),
        (HEADER + f"2,1024,128,8,nan,{QWEN}\n", r"runs\.csv:2: .*must be positive.*tpot=nan"),
        (HEADER + f"3,1024,128,8,15,{QWEN}\n", r"runs\.csv:2: profile: found 'qwen3-32b/h100/tp3'"),
        (HEADER + f"2,8192,1024,64,15,{QWEN}\n", r"runs\.csv:2: .*589,824 KV tokens, .*301,810"),
        (HEADER + "2,1024\n", r"runs\.csv:2: "),
    ],
)
def test_bad_files_are_explained(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_runs(write(tmp_path, text))


def test_too_few_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="rounds: found 2, allowed: 3 or more"):
        compare([], rounds=2)
