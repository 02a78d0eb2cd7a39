"""The wheel holds the work tree's package files, all of them and nothing else, and imports."""

import configparser
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest

# What the folders are called in the work tree; none of these may become a top-level module.
BARE_NAMES = ["agents", "baselines", "envs", "experiments", "src", "tests"]


@pytest.fixture(scope="module")
def tree(package_folders: dict[str, Path]) -> set[str]:
    """Every file under the mapped folders, under the name that it has to have in the wheel."""
    return {
        "/".join([*package.split("."), *path.relative_to(folder).parts])
        for package, folder in package_folders.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def _run(command: list[str], cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(
    repository: Path, package_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A wheel built from a copy of the work tree, so that build/ here stays as it is."""
    source = tmp_path_factory.mktemp("source")
    for name in ["setup.cfg", "pyproject.toml", "README.md", "LICENSE"]:
        shutil.copy(repository / name, source / name)
    for folder in package_folders.values():
        shutil.copytree(
            folder,
            source / folder.relative_to(repository),
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    out = tmp_path_factory.mktemp("wheel")
    _run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(out), str(source)],
        cwd=out,
    )
    (built,) = out.glob("*.whl")
    return built


def test_setup_cfg_lists_every_package(repository: Path, tree: set[str]) -> None:
    setup = configparser.ConfigParser()
    setup.read(repository / "setup.cfg", encoding="utf-8")
    listed = setup["options"]["packages"].split()
    folders = [PurePosixPath(name).parent for name in tree if name.endswith("/__init__.py")]
    assert sorted(listed) == sorted(".".join(folder.parts) for folder in folders)


def test_wheel_holds_the_tree_and_nothing_else(tree: set[str], wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert sorted(tree - names) == [], "missing in the wheel: see package_data in setup.cfg"
    assert sorted(names - tree) == [], "in the wheel, but not in the work tree"


def test_wheel_carries_licence_and_readme(repository: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        text = archive.read(metadata).decode()
        licence = archive.read(metadata.replace("METADATA", "licenses/LICENSE")).decode()
    assert "License-Expression: Apache-2.0\n" in text
    assert "Apache License" in licence
    assert text.endswith((repository / "README.md").read_text(encoding="utf-8"))


def test_installed_wheel_adds_one_package_and_its_command(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    _run([*pip, "--target", str(target), str(wheel)], cwd=tmp_path)
    added = {path.name for path in target.iterdir() if not path.name.endswith(".dist-info")}
    assert added == {"prefixgym", "bin"}

    script = f"""
import importlib, importlib.metadata, importlib.util, json
import prefixgym
(command,) = importlib.metadata.entry_points(group="console_scripts", name="prefixgym")
packages = ["envs", "baselines", "agents", "experiments"]
modules = [prefixgym, *(importlib.import_module("prefixgym." + name) for name in packages)]
print(json.dumps({{
    "files": [module.__file__ for module in modules],
    "bare": [name for name in {BARE_NAMES} if importlib.util.find_spec(name)],
    "version": prefixgym.__version__,
    "command": command.load().__module__,
}}))
"""
    found = json.loads(
        _run([sys.executable, "-c", script], cwd=tmp_path, PYTHONPATH=str(target)).splitlines()[-1]
    )
    assert all(file.startswith(str(target)) for file in found["files"]), found["files"]
    assert found["bare"] == []
    assert found["version"] == wheel.name.split("-")[1]
    assert found["command"] == "prefixgym.experiments.cli"


@pytest.mark.parametrize("name", ["agents", "baselines", "envs", "experiments"])
def test_bare_import_names_the_right_one(name: str, repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"], cwd=repository, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert f"ImportError: import prefixgym.{name}, not {name}" in done.stderr
