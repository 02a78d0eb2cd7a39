"""`prefixgym explain`: its figure, its JSON and its mistakes."""

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from prefixgym.experiments.cli import app


def test_it_draws_and_tells(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "what.png"
    arguments = [
        "explain", "min_ttft", "loadaware:beta=2", "--scenario", str(tiny), "--rate", "60",
        "--seeds", "2", "--out", str(out),
    ]  # fmt: skip
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["seeds"] == [10, 11]
    first, second = report["routers"]
    assert (first["router"], second["router"]) == ("min_ttft", "loadaware:beta=2")
    assert first["by_ttft"][0] == pytest.approx(1)
    assert first["decisions"] == 300
    assert first["sentence"].startswith("min_ttft leaves the longest cached prefix in ")
    with Image.open(out) as image:
        assert image.width > 700
        assert image.mode == "P"
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 0
    assert "loadaware:beta=2 leaves the longest cached prefix in " in told.stdout


def test_mistakes_are_one_line(tiny: Path) -> None:
    for arguments, message in (
        (["nobody", "--scenario", str(tiny)], "router: found 'nobody'"),
        (["min_ttft", "--scenario", "nowhere"], "scenario: found 'nowhere'"),
        (["min_ttft", "--scenario", str(tiny), "--rate", "0"], "--rate: found 0"),
        (["learned:no.safetensors", "--scenario", str(tiny)], "no.safetensors is no file"),
    ):
        result = CliRunner().invoke(app, ["explain", *arguments])
        assert result.exit_code == 2, result.output
        assert message in result.stderr
