"""Settings and fixtures that all tests share."""

import configparser
import os
from pathlib import Path

import pytest
from hypothesis import settings

# Two torch threads on a busy two-core machine make small networks up to 100 times slower. Torch
# reads this when it is first imported, which happens later, in the tests that need it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No deadline: the first example may compile a kernel. In CI the same examples in every run.
settings.register_profile("prefixgym", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("prefixgym")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the work tree."""
    return REPOSITORY


@pytest.fixture(scope="session")
def package_folders() -> dict[str, Path]:
    """Where each part of the package lives, by setup.cfg: {"prefixgym.envs": <root>/envs, …}."""
    setup = configparser.ConfigParser()
    setup.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    lines = [line for line in setup["options"]["package_dir"].split("\n") if line]
    pairs = [line.split("=") for line in lines]
    return {package.strip(): REPOSITORY / folder.strip() for package, folder in pairs}


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of real traces: $PREFIXGYM_TRACES or ../shared/traces. Not in the repository."""
    folder = Path(os.environ.get("PREFIXGYM_TRACES") or REPOSITORY.parent / "shared" / "traces")
    if not folder.is_dir():
        pytest.skip(f"needs the real traces: {folder} is not there (set PREFIXGYM_TRACES)")
    return folder
