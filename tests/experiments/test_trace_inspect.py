import json
from pathlib import Path

from typer.testing import CliRunner

from prefixgym.experiments.cli import app


def test_inspect_prints_tables_and_draws(trace: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["trace", "inspect", str(trace), "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    for title in ("Arrivals", "Lengths", "Reuse with", "One LRU cache", "Sharing", "Sessions"):
        assert title in result.stdout
    (picture,) = tmp_path.glob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(picture) in result.stdout


def test_inspect_json_has_the_figures(trace: Path, tmp_path: Path) -> None:
    arguments = ["trace", "inspect", str(trace), "--out", str(tmp_path), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    rows = trace.read_text().splitlines()
    assert found["traffic"]["requests"] == len(rows)
    assert found["reuse"]["blocks"] == sum(len(json.loads(row)["hash_ids"]) for row in rows)
    assert found["lru"]["block_hit"][-1] == found["reuse"]["block_hit"]


def test_inspect_names_a_malformed_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": 7}\n')
    result = CliRunner().invoke(app, ["trace", "inspect", str(path), "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "broken.jsonl:1: hash_ids: found 7" in result.stderr
