"""The one decorator for compiled functions, with a disk cache that cannot go stale.

Numba's own cache watches only the file of the compiled function, not the files of the functions it
calls: after an edit of a callee the old machine code would still run. Here the cache folder is named
after the contents of every source file under `envs/` and `baselines/`, so an edit anywhere starts a
new folder.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numba.core.config

F = TypeVar("F", bound=Callable[..., Any])

_FOLDERS_KEPT = 3


def _sources_digest() -> str:
    """Hash of the compiler's version and of every source file that may hold compiled functions."""
    digest = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    package = Path(__file__).resolve().parent
    for folder in (package, package.parent / "baselines"):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _prepare_cache_folder() -> Path:
    """The cache folder for these sources; older ones are pruned, and a first compile is announced."""
    base = os.environ.get("PREFIXGYM_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "prefixgym"
    )
    root = Path(base) / "kernels"
    folder = root / _sources_digest()
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        print(
            "prefixgym: compiling the simulator's kernels for this version (once, about a minute; "
            f"kept in {root})",
            file=sys.stderr,
        )
        older = sorted((p for p in root.iterdir() if p != folder), key=lambda p: p.stat().st_mtime)
        for stale in older[: max(0, len(older) + 1 - _FOLDERS_KEPT)]:
            shutil.rmtree(stale, ignore_errors=True)
    return folder


CACHE_FOLDER = _prepare_cache_folder()


def kernel(function: F) -> F:
    """Compile `function` on first call; release the GIL while it runs; keep the result on disk."""
    previous = numba.core.config.CACHE_DIR
    numba.core.config.CACHE_DIR = str(CACHE_FOLDER)
    try:
        compiled: F = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    finally:
        numba.core.config.CACHE_DIR = previous
    return compiled
