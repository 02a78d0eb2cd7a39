"""`prefixgym routers`: the list, one router, the page, and routers of other packages."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prefixgym.baselines.router import make_router, router_names
from prefixgym.experiments.cli import app
from prefixgym.experiments.router_page import router_page
from prefixgym.experiments.router_tables import families, parameters_table, router_facts


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["routers", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_all_routers_are_listed_in_one_family_each() -> None:
    listed = [name for names in families().values() for name in names]
    assert sorted(listed) == sorted(router_names())
    assert next(iter(families())) == "load only"
    assert list(families())[-1] == "references"
    shown = run()
    assert all(name in shown for name in listed)
    found = json.loads(run("--json"))
    assert found["cache_aware"]["knows"] == ["history", "ledger"]
    assert found["loadaware"]["parameters"]["beta"] == 1.0


@pytest.mark.parametrize("name", router_names())
def test_every_router_says_what_it_is_and_every_parameter_what_it_means(name: str) -> None:
    facts = router_facts(name)
    assert facts["summary"].endswith((".", ":"))
    assert "§" not in facts["source"]
    for parameter, _, meaning in parameters_table(name).rows:
        assert meaning, f"{name}.{parameter} is not under Attributes: in its docstring"


def test_one_router_is_explained() -> None:
    shown = run("loadaware")
    assert "score_i = min(matched_i, L)" in shown
    assert "beta" in shown
    assert json.loads(run("loadaware", "--json"))["family"] == "vLLM"


def test_the_page_is_current(repository: Path) -> None:
    committed = (repository / "docs" / "routers.md").read_text(encoding="utf-8")
    assert committed == router_page(), "run: prefixgym routers page"


# --- routers of other packages ----------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The page's own example, installed as a distribution would be."""
    (example,) = re.findall(r"^```python\n(.*?)^```", router_page(), re.MULTILINE | re.DOTALL)
    (entry,) = re.findall(r"^```toml\n(.*?)^```", router_page(), re.MULTILINE | re.DOTALL)
    (tmp_path / "shortest_queue.py").write_text(example, encoding="utf-8")
    information = tmp_path / "shortest_queue-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: shortest_queue\n")
    group = re.sub(r"\[project\.entry-points\.\"(.*)\"\]", r"[\1]", entry)
    (information / "entry_points.txt").write_text(group.replace('"', ""), encoding="utf-8")
    return tmp_path


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from prefixgym.experiments.cli import main; main()", *arguments],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )


def test_a_router_of_another_package_is_one_of_all(package: Path) -> None:
    done = command(package, "routers", "shortest_queue", "--json")
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    assert facts["parameters"] == {"hit_weight": 1.0}
    done = command(
        package, "evaluate", "shortest_queue", "--scenario", "shared-prompts-8", "--seeds", "1",
        "--rate", "10", "--set", "hit_weight=0.5", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parameters"] == {"hit_weight": 0.5}


def test_a_package_that_cannot_be_imported_is_named(package: Path) -> None:
    (package / "shortest_queue.py").write_text("import no_such_module\n")
    done = command(package, "routers")
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "entry point shortest_queue of prefixgym.routers" in line
    assert "no_such_module" in line


def test_an_unknown_router_names_the_known() -> None:
    with pytest.raises(ValueError, match=r"router: found 'no', allowed: .*cache_aware"):
        make_router("no")
