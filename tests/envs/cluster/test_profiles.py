"""Profiles: what is shipped against the reference tables, names, and error messages."""

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import isotonic_regression

from prefixgym.envs.cluster import profiles
from prefixgym.envs.cluster.profiles import (
    HOST_OVERHEADS,
    MOCKER,
    CompactModel,
    HostOverhead,
    profile,
    profile_names,
)
from prefixgym.envs.cluster.step_time import (
    STEP_COST,
    TABLE_TOKENS,
    prefill_ticks,
    step_ticks,
)

REFERENCE = Path(__file__).parents[3].parent / "shared/reference/calibration"
CALIBRATED = [name for name in profile_names() if name != MOCKER]
FITTED_HERE = {  # by experiments/bench/fit_profiles.py; the reference tables do not have them
    "llama-3.1-70b-fp8/h100/tp8",
    "llama-3.1-70b-fp8/h200/tp1",
    "llama-3.1-70b-fp8/h200/tp4",
    "llama-3.1-70b-fp8/h200/tp8",
    "gpt-oss-120b/h100/tp8",
    "gpt-oss-120b/h200/tp2",
    "gpt-oss-120b/h200/tp4",
    "gpt-oss-120b/h200/tp8",
}

needs_reference = pytest.mark.skipif(
    not REFERENCE.is_dir(), reason=f"calibration tables are not at {REFERENCE}"
)


def read(file: str) -> list[dict[str, str]]:
    with (REFERENCE / file).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def rows_of_the_reference() -> dict[str, dict[str, str]]:
    return {name: row for name, row in profiles._rows().items() if name not in FITTED_HERE}


def key(row: dict[str, str]) -> tuple[str, ...]:
    return row["model"], row["gpu"], row["tp"], row["moe_ep"] or "0"


@needs_reference
def test_every_usable_reference_row_is_shipped_unchanged() -> None:
    usable = {
        key(row): row
        for row in read("compact_coefficients_vllm.csv")
        if not ("DeepSeek-V3" in row["model"] and row["gpu"] == "b200_sxm")
    }
    shipped = {key(row): row for row in rows_of_the_reference().values()}
    assert shipped.keys() == usable.keys()
    for row_key, row in shipped.items():
        for column in row.keys() & usable[row_key].keys() - {"tab_prefill_mape", "tab_decode_mape"}:
            assert row[column] == usable[row_key][column], (row_key, column)


@needs_reference
def test_linear_tables_are_the_isotonic_regression_of_the_reference() -> None:
    measured: dict[tuple[str, ...], dict[int, float]] = {}
    for row in read("aic_linear_vllm.csv"):
        measured.setdefault(key(row), {})[int(row["tokens"])] = float(row["linear_ms"])
    shifts = []
    for row in rows_of_the_reference().values():
        points = measured[key(row)]
        assert sorted(points) == TABLE_TOKENS.tolist()
        raw = np.array([points[n] for n in TABLE_TOKENS.tolist()])
        table = np.array(row["linear_table_ms"].split(), dtype=float)
        np.testing.assert_allclose(table, np.exp(isotonic_regression(np.log(raw)).x), rtol=1e-5)
        shifts.append(np.max(np.abs(table / raw - 1)))
    assert max(shifts) < 0.10
    assert sum(shift < 0.03 for shift in shifts) == 28


@needs_reference
def test_kv_capacity_is_that_of_the_reference() -> None:
    capacity = {key(row): row for row in read("aic_kvcap_vllm.csv")}
    for name, row in rows_of_the_reference().items():
        expected = int(capacity[key(row)]["kv_capacity_tokens_per_instance"])
        assert profile(name).kv_capacity_tokens == expected


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [  # simulators.md §4, from the models' configurations; FP8 halves
        ("llama-3.1-8b/h100/tp1", 131_072),
        ("llama-3.1-8b/h100/tp2", 131_072),
        ("llama-3.1-70b/h100/tp8", 327_680),
        ("llama-3.1-70b-fp8/h100/tp4", 327_680 // 2),
        ("qwen3-32b/h200/tp2", 262_144),
        ("qwen3-235b-a22b-fp8/h200/tp4", 192_512 // 2),
        ("llama-3.1-70b-fp8/h200/tp1", 327_680 // 2),
        ("llama-3.1-70b-fp8/h200/tp8", 327_680 // 2),
        ("gpt-oss-120b/h100/tp2", 73_728),
        ("gpt-oss-120b/h200/tp8", 73_728),
        ("deepseek-v3/h200/tp8/ep8", 70_272 // 2),
    ],
)
def test_kv_bytes_count_the_whole_model_once(name: str, kv_bytes: int) -> None:
    assert profile(name).kv_bytes_per_token == kv_bytes


@pytest.mark.parametrize(
    ("model", "degrees"),
    [
        ("llama-3.1-70b-fp8/h100", (2, 4, 8)),
        ("llama-3.1-70b-fp8/h200", (1, 2, 4, 8)),
        ("gpt-oss-120b/h100", (2, 4, 8)),
        ("gpt-oss-120b/h200", (1, 2, 4, 8)),
        ("qwen3-32b/h100", (2, 4, 8)),
    ],
)
def test_more_gpus_help_but_not_perfectly(model: str, degrees: tuple[int, ...]) -> None:
    for few, many in itertools.pairwise(degrees):
        slow, fast = profile(f"{model}/tp{few}", "none"), profile(f"{model}/tp{many}", "none")
        # More than twice the KV room: the weights are split too.
        assert fast.kv_capacity_tokens > many / few * slow.kv_capacity_tokens
        costs = slow.step_cost(), fast.step_cost()
        for before, after in (
            [prefill_ticks(cost, 8192, 0, 8192) for cost in costs],
            [step_ticks(cost, 0, 0.0, 64, 64 * 4096, 64) for cost in costs],
        ):
            assert 1.2 < before / after < many / few


def test_tables_never_fall() -> None:
    for name in CALIBRATED:
        assert (np.diff(profile(name).step_cost()["table"]) >= 0).all()


def test_names_tell_rows_apart_and_find_them() -> None:
    names = profile_names()
    assert len(set(names)) == len(names) == 41
    assert [name for name in names if "/ep" in name] == [
        "deepseek-v3/h200/tp8/ep1",
        "deepseek-v3/h200/tp8/ep8",
    ]
    for name in CALIBRATED:
        found = profile(name)
        assert found.name == name
        assert name.split("/")[1:3] == [found.gpu, f"tp{found.tp}"]


def test_host_terms_go_into_the_record() -> None:
    assert profile("qwen3-32b/h100/tp2").host == HOST_OVERHEADS["vllm-0.18"]
    assert profile(MOCKER).host == HostOverhead(0.0, 0.0)
    cost = profile("qwen3-32b/h100/tp2", host="vllm-0.12").step_cost()
    assert (cost["h0"], cost["h1"]) == (1.5, 0.04)


def test_step_cost_fills_an_array() -> None:
    costs = np.zeros(2, dtype=STEP_COST)
    for i, name in enumerate(("llama-3.1-8b/h100/tp1", "gpt-oss-120b/h100/tp2")):
        costs[i] = profile(name).step_cost()
    assert costs["decode_slope"].tolist() == [42_908, 6_060]


def test_deepseek_alone_decodes_by_formula() -> None:
    for name in CALIBRATED:
        model = profile(name).step_model
        assert isinstance(model, CompactModel)
        own_formula = model.decode_linear != model.linear
        assert own_formula == name.startswith("deepseek")
        assert profile(name).step_cost()["tabulated"].tolist() == [1, int(not own_formula)]
        assert profile(name, linear="formula").step_cost()["tabulated"].tolist() == [0, 0]


def test_unknown_names_are_explained() -> None:
    with pytest.raises(
        ValueError, match=r"'llama-3\.1-8b/h100'.*llama-3\.1-8b/h100/tp1.*names\(\)"
    ):
        profile("llama-3.1-8b/h100")
    with pytest.raises(ValueError, match=r"found '!'.*profile_names\(\) lists all") as error:
        profile("!")
    assert "close to" not in str(error.value)
    with pytest.raises(ValueError, match=r"host: found 'vllm', allowed: none, vllm-0\.12"):
        profile("llama-3.1-8b/h100/tp1", host="vllm")
    with pytest.raises(ValueError, match="linear: found 'tabel', allowed: table, formula"):
        profile("llama-3.1-8b/h100/tp1", linear="tabel")  # type: ignore[arg-type]
