"""Dependencies point one way, and no module is called `utils`."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

# Lowest first; a module may import from its own layer and from those before it. A module belongs
# to the layer whose package is the closest around it, so `prefixgym.envs.routing` is "surface".
LAYERS = {
    "ground": [
        f"prefixgym.envs.{name}"
        for name in ("clients", "clock", "heap", "jit", "lent", "memory", "rng", "slo")
    ],
    "workload": ["prefixgym.envs.workload"],
    "cluster": ["prefixgym.envs.cluster"],
    "view": ["prefixgym.envs.view"],
    "scenarios": ["prefixgym.envs.scenarios"],
    "surface": ["prefixgym.envs"],
    "root": ["prefixgym"],
    "baselines": ["prefixgym.baselines"],
    "agents": ["prefixgym.agents"],
    "experiments": ["prefixgym.experiments"],
}
RANK = {package: rank for rank, packages in enumerate(LAYERS.values()) for package in packages}

HEAVY = {"torch", "stable_baselines3", "sb3_contrib", "tensorboard", "matplotlib"}
EMPTY_NAMES = {"common", "helper", "helpers", "misc", "util", "utils"}


class Import(NamedTuple):
    """One imported module, and where it is imported."""

    importer: str
    imported: str
    place: str


@pytest.fixture(scope="module")
def modules(package_folders: dict[str, Path]) -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for package, folder in package_folders.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join([package, *(part for part in parts if part != "__init__")])
            found[name] = path
    return found


def _imports(name: str, path: Path, modules: dict[str, Path]) -> Iterator[Import]:
    """All imports in a module, those inside functions and type-checking blocks too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        place = f"{path}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name, alias.name, place)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place}: write `from prefixgym.…`, not a relative import"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield Import(name, submodule if submodule in modules else str(node.module), place)


@pytest.fixture(scope="module")
def imports(modules: dict[str, Path]) -> list[Import]:
    """All imports of all modules."""
    return [i for name, path in modules.items() for i in _imports(name, path, modules)]


def _layer(module: str) -> str:
    while module not in RANK:
        module = module.rpartition(".")[0]
    return list(LAYERS)[RANK[module]]


def test_dependencies_point_one_way(imports: list[Import]) -> None:
    order = list(LAYERS)
    inner = [i for i in imports if i.imported.split(".")[0] == "prefixgym"]
    upward = [
        f"{i.place}: {_layer(i.importer)} must not import {_layer(i.imported)} ({i.imported})"
        for i in inner
        if order.index(_layer(i.imported)) > order.index(_layer(i.importer))
    ]
    assert inner
    assert not upward, f"allowed order: {' ← '.join(order)}\n" + "\n".join(upward)


def test_envs_imports_no_learning_or_plotting_library(imports: list[Import]) -> None:
    heavy = [
        f"{i.place}: prefixgym.envs must not import {i.imported}"
        for i in imports
        if f"{i.importer}.".startswith("prefixgym.envs.") and i.imported.split(".")[0] in HEAVY
    ]
    assert not heavy, "\n".join(heavy)


def test_importing_envs_loads_no_learning_or_plotting_library(modules: dict[str, Path]) -> None:
    envs = [name for name in modules if f"{name}.".startswith("prefixgym.envs.")]
    script = f"import sys, {', '.join(envs)}; print(sorted({HEAVY} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_module_is_named_for_its_idea(modules: dict[str, Path], repository: Path) -> None:
    tests = (repository / "tests").rglob("*.py")
    empty = [
        str(path)
        for path in [*modules.values(), *tests]
        if EMPTY_NAMES & {part.removesuffix(".py") for part in path.relative_to(repository).parts}
    ]
    assert not empty, f"name these for what they do: {empty}"
