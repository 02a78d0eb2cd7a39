"""How much of a prompt real routers hash: its full blocks, never a partial last one."""

from prefixgym.envs.jit import Record, kernel


@kernel
def full_blocks(request: Record, block_size: int) -> int:
    """Blocks of the current prompt that are full and have an id."""
    return int(min(request["num_blocks"], request["prompt_tokens"] // block_size))
