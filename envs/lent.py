"""Arrays lent to kernels: unboxed once instead of at every call.

Numba takes about a quarter of a microsecond to unbox each array of an argument. A simulation has
some forty, which made a third of a single `env.step`. A `Lent` is one pointer to all of them.
"""

from typing import Any

from numba.core import types
from numba.experimental import structref

from prefixgym.envs.jit import kernel


@structref.register
class _LentType(types.StructRef):
    """Numba's type of a `Lent`: it knows the types of its arrays."""


class Lent(structref.StructRefProxy):
    """A (nested) tuple of arrays, which kernels find under `arrays`. Made by `lend`."""

    arrays: Any


structref.define_proxy(Lent, _LentType, ["arrays"])  # type: ignore[no-untyped-call]


@kernel
def lend(arrays: Any) -> Lent:
    """`arrays`, a (nested) tuple of arrays, to be passed to kernels many times.

    The arrays are those of now: whoever replaces one in the tuple must lend again.
    """
    return Lent(arrays)  # type: ignore[no-untyped-call]
