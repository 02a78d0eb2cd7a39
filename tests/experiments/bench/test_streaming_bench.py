from pathlib import Path

from prefixgym.envs.workload.readers import native
from prefixgym.experiments.bench.streaming import measure


def test_a_trace_is_written_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "chat.parquet"
    (step,) = measure(path, 100_000, [])
    assert native.read_extent(path).rows == 100_000
    assert step.what == "write"
    assert step.cpu_seconds > 0
    assert 50 < step.megabytes < 2000
