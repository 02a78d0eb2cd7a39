"""Files of weights: where those are that come with the package, and what tells files apart."""

import hashlib
from importlib.resources import files
from pathlib import Path

from prefixgym.baselines.router import Router

ENDING = ".safetensors"


def checksum(path: Path) -> str:
    """The first 12 hexadecimal digits of the file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def pinned(router: Router, path: Path, digits: str) -> str:
    """The checksum of a router's file, which must begin with these digits.

    Raises:
        ValueError: it does not.
    """
    found = checksum(path)
    router.require("weights", found.startswith(digits), f"{found}, which the file has")
    return found


def shipped_folder() -> Path:
    """Where the weights are that come with the package."""
    return Path(str(files("prefixgym.agents"))) / "weights"


def shipped_names() -> list[str]:
    """What may stand for NAME in `learned/NAME`, sorted."""
    return sorted(path.stem for path in shipped_folder().glob(f"*{ENDING}"))


def weights_file(name: str) -> Path:
    """The file of `learned/NAME`, which ships with the package, or of `learned:PATH`.

    Raises:
        ValueError: there are no such weights.
    """
    if name.startswith("learned:"):
        path = Path(name.removeprefix("learned:"))
    elif name.removeprefix("learned/") in shipped_names():
        path = shipped_folder() / f"{name.removeprefix('learned/')}{ENDING}"
    else:
        shipped = [f"learned/{known}" for known in shipped_names()] or ["none is shipped"]
        raise ValueError(
            f"found {name!r}, allowed: learned:PATH with weights that `prefixgym train` or "
            f"`prefixgym evolve` wrote, or learned/NAME ({', '.join(shipped)})"
        )
    if not path.is_file():
        raise ValueError(f"found {name!r}, but {path} is no file")
    return path
