"""The one decorator for compiled functions, with a disk cache that cannot go stale.

Numba's own cache watches only the file of the compiled function, not the files of the functions it
calls: after an edit of a callee the old machine code would still run. Here a module's cache folder
is named after the contents of its source and of every `prefixgym` module that it imports, directly
or not, so an edit to any of them starts a new folder.
"""

import ast
import functools
import hashlib
import inspect
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numba
from numba.core import cgutils, types
from numba.core.dispatcher import Dispatcher as CPUDispatcher
from numba.extending import intrinsic

config: Any = numba.core.config

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

Record = Any
"""One record of a structured array; its fields are attributes in kernels."""

_PACKAGE = Path(__file__).parent.parent  # holds envs/ and baselines/, installed or in the work tree
_VERSIONS_KEPT = 3


def cache_root() -> Path:
    """Where the package keeps files: $PREFIXGYM_CACHE_DIR, by default ~/.cache/prefixgym."""
    base = os.environ.get("PREFIXGYM_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "prefixgym"
    )
    return Path(base)


@functools.cache
def _imported_modules(path: Path) -> frozenset[Path]:
    """Source files of the `prefixgym` modules that the module at `path` imports by name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("prefixgym."):
            target = _PACKAGE.joinpath(*str(node.module).split(".")[1:]).with_suffix(".py")
            if target.is_file():
                found.add(target)
    return frozenset(found)


def _digest(path: Path) -> str:
    """Hash of the compiler's version and of all sources that can end up in the module's kernels."""
    reached, frontier = {path}, [path]
    while frontier:
        new = _imported_modules(frontier.pop()) - reached
        reached |= new
        frontier += new
    digest = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    for source in sorted(reached):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _announce(root: Path) -> None:
    print(
        "prefixgym: compiling the simulator's kernels for this version "
        f"(once, some minutes; kept in {root})",
        file=sys.stderr,
    )


@functools.cache
def _cache_folder(path: Path) -> Path:
    """The cache folder of the module at `path`; a new one is announced, old versions are pruned."""
    root = cache_root() / "kernels"
    folder = root / f"{path.parent.name}.{path.stem}-{_digest(path)}"
    if not folder.exists():
        _announce(root)
        folder.mkdir(parents=True, exist_ok=True)
        versions = sorted(
            root.glob(f"{path.parent.name}.{path.stem}-*"), key=lambda p: p.stat().st_mtime
        )
        for stale in versions[:-_VERSIONS_KEPT]:
            shutil.rmtree(stale, ignore_errors=True)
    return folder


class _Entry(CPUDispatcher):
    """A compiled function for Python's calls; kernels that name it call another one, `inner`."""

    inner: Any

    @property
    def _numba_type_(self) -> Any:
        return types.Dispatcher(self.inner)


def kernel(function: F) -> F:
    """Compile `function` on first call; release the GIL while it runs; keep the result on disk.

    Kernels that call each other become one piece of machine code: passing a state of some seventy
    arrays costs more than most of them do.
    """
    return _compiled(function, inline=True)


def cold_kernel(function: F) -> F:
    """The same for what happens seldom: called, not copied into its callers.

    Copies of all that can happen at every place where it may would take minutes to compile.
    """
    return _compiled(function, inline=False)


def spliced_kernel(function: F) -> F:
    """The same for large kernels with one caller: copied into it before either is compiled.

    A kernel is compiled with all that it calls, whatever has been compiled of that: a chain of
    large ones takes as many times as long as it has links.
    """
    return _compiled(function, inline=True, splice=True)


def _compiled(function: F, *, inline: bool, splice: bool = False) -> F:
    """Two versions: what unpacks Python's arguments takes longer to compile than most kernels."""
    folder = _cache_folder(Path(inspect.getfile(function)))
    options: dict[str, Any] = {"forceinline": inline, "inline": "always" if splice else "never"}
    entry = _dispatcher(function, folder, **options)
    entry.__class__ = _Entry
    bare = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    entry.inner = _dispatcher(function, folder / "inner", **options, **bare)
    result: F = entry
    return result


def _dispatcher(function: Callable[..., Any], folder: Path, **options: bool | str) -> Any:
    previous = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        settings: Any = {"cache": True, "nogil": True, "error_model": "numpy", **options}
        return numba.njit(**settings)(function)
    finally:
        config.CACHE_DIR = previous


def _strip_owner(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """`value` with every array in it, also within tuples, made to own nothing."""
    null: Any = cgutils.get_null_value
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value=value)
        array.meminfo = null(array.meminfo.type)
        array.parent = null(array.parent.type)
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        parts: Any = kind
        for index, part in enumerate(parts):
            stripped = _strip_owner(context, builder, part, builder.extract_value(value, index))
            value = builder.insert_value(value, stripped, index)
    return value


if TYPE_CHECKING:

    def borrowed(value: T) -> T:
        """See below."""

else:

    @intrinsic
    def borrowed(typing_context, value):
        """The same array or (nested) tuple of arrays, without reference counting.

        Numba counts references to every array of every call with atomic operations, which took
        most of the simulator's time. A kernel called from Python may borrow its arguments: the
        caller keeps them alive.
        """

        def generate(context, builder, signature, arguments):
            return _strip_owner(context, builder, signature.args[0], arguments[0])

        return value(value), generate
