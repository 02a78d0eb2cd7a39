"""Reader of Azure's traces: stamps to 100 ns, and the prefixes that a model attaches."""

from pathlib import Path

import numpy as np
import pytest

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.workload.readers.azure import read_azure
from prefixgym.envs.workload.reuse import reuse
from prefixgym.envs.workload.validate import validate

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROWS = [
    "2023-11-16 18:15:46.6805900,374,44",
    "2023-11-16 18:15:50.9951691,396,0",
    "2023-11-16 18:15:50,12,55",
    "2024-05-10 00:00:00.5+00:00,70,1",
]


def write(folder: Path, rows: list[str]) -> Path:
    path = folder / "trace.csv"
    path.write_text("\r\n".join(rows) + "\r\n")
    return path


def test_rows_become_requests(tmp_path: Path) -> None:
    tape = read_azure(write(tmp_path, [HEADER, *ROWS[:3]]))
    validate(tape)
    assert tape.block_size == 16
    requests = tape.requests
    np.testing.assert_array_equal(requests["prompt_tokens"], [374, 12, 396])
    np.testing.assert_array_equal(requests["output_tokens"], [44, 55, 1])
    assert requests["arrival"].tolist() == [0, 3_319_410_000_000, 4_314_579_100_000]
    assert reuse(tape).block_hit == 0
    read_azure(write(tmp_path, [HEADER, ROWS[3]]))


def test_columns_may_be_in_any_order(tmp_path: Path) -> None:
    rows = ["Model,GeneratedTokens,TIMESTAMP,ContextTokens", "x,5,2023-11-16 18:15:46,9"]
    requests = read_azure(write(tmp_path, rows)).requests
    assert (requests["prompt_tokens"][0], requests["output_tokens"][0]) == (9, 5)


def test_groups_share_their_system_prompt(tmp_path: Path) -> None:
    path = write(tmp_path, [HEADER, *ROWS[:3]])
    one = read_azure(path, block_size=10, groups=1, system_tokens=95)
    validate(one)
    first, short, last = (one.block_ids(row).tolist() for row in range(3))
    # Nine whole blocks of the system prompt; of a prompt of 12 tokens one, the rest is its own.
    assert first[:9] == last[:9]
    assert first[9] != last[9]
    assert short[0] == first[0]
    assert short[1] != first[1]


def test_a_group_is_drawn_by_popularity(traces: Path) -> None:
    path = traces / "azure_llm_2023" / "AzureLLMInferenceTrace_conv.csv.gz"
    tape = read_azure(path, groups=50, system_tokens=160, zipf=1.0, seed=2)
    validate(tape)
    roots = np.sort(np.unique([tape.block_ids(r)[0] for r in range(2_000)], return_counts=True)[1])
    # The most popular of 50 has a share of 1 / (1 + 1/2 + … + 1/50) = 0.222.
    assert roots[-1] / 2_000 == pytest.approx(0.222, abs=0.04)
    private = read_azure(path)
    np.testing.assert_array_equal(private.requests["arrival"], tape.requests["arrival"])
    assert reuse(private).block_hit == 0
    assert 0.05 < reuse(tape).block_hit < 0.2


@pytest.mark.parametrize(
    ("name", "count", "span", "prompt", "output", "prompt_quantiles", "output_quantiles"),
    [
        (
            "code",
            8_819,
            3_436,
            2_048,
            28,
            [147, 1_469, 5_188, 7_436],
            [7, 13, 55, 251],
        ),
        (
            "conv",
            19_366,
            3_502,
            1_155,
            211,
            [207, 1_020, 2_735, 4_142],
            [54, 129, 424, 601],
        ),
    ],
)
def test_published_traces_have_their_known_figures(
    traces: Path,
    name: str,
    count: int,
    span: float,
    prompt: float,
    output: float,
    prompt_quantiles: list[float],
    output_quantiles: list[float],
) -> None:
    """`traces.md` §1, §3.2."""
    tape = read_azure(traces / "azure_llm_2023" / f"AzureLLMInferenceTrace_{name}.csv.gz")
    validate(tape)
    requests = tape.requests
    assert len(requests) == count
    assert requests["arrival"].max() / TICKS_PER_SECOND == pytest.approx(span, abs=0.6)
    assert requests["prompt_tokens"].mean() == pytest.approx(prompt, abs=0.5)
    assert requests["output_tokens"].mean() == pytest.approx(output, abs=0.5)
    levels = [10, 50, 90, 99]
    found = np.percentile(requests["prompt_tokens"], levels)
    np.testing.assert_allclose(found, prompt_quantiles, atol=0.51)
    found = np.percentile(requests["output_tokens"], levels)
    np.testing.assert_allclose(found, output_quantiles, atol=0.51)


WRONG = [
    ("2023-11-16 18:15:46.1,5", "found 2 cells, must be 3"),
    ("2023-13-16 18:15:46.1,5,5", "TIMESTAMP: found '2023-13-16 18:15:46.1', must be a time"),
    ("yesterday,5,5", "TIMESTAMP: found 'yesterday', must be a time YYYY"),
    ("2023-11-16 18:15:46.1,0,5", "ContextTokens: found 0, must be between 1"),
    ("2023-11-16 18:15:46.1,x,5", "ContextTokens: found 'x', must be a whole number"),
    ("2023-11-16 18:15:46.1,5,2.5", "GeneratedTokens: found '2.5', must be a whole number"),
    ("2023-11-16 18:15:46.1,5,-1", "GeneratedTokens: found -1, must be between 0"),
]


@pytest.mark.parametrize(("row", "reason"), WRONG, ids=[reason for _, reason in WRONG])
def test_a_malformed_row_is_named(tmp_path: Path, row: str, reason: str) -> None:
    path = write(tmp_path, [HEADER, ROWS[0], row])
    with pytest.raises(ValueError, match=r"trace\.csv:3: ") as error:
        read_azure(path)
    assert str(error.value).startswith(f"{path}:3: {reason}")


def test_files_and_models_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"csv:1: GeneratedTokens: found columns .* once"):
        read_azure(write(tmp_path, ["TIMESTAMP,ContextTokens"]))
    with pytest.raises(ValueError, match=r"csv: found 0 requests, must be at least 1"):
        read_azure(write(tmp_path, [HEADER]))
    with pytest.raises(ValueError, match=r"csv:5: TIMESTAMP: found 1\.51407e\+07 s after"):
        read_azure(write(tmp_path, [HEADER, *ROWS]))
    path = write(tmp_path, [HEADER, *ROWS[:3]])
    with pytest.raises(ValueError, match="groups: found 3 with system_tokens 0, must be both 0"):
        read_azure(path, groups=3)
