"""Where the index of cached blocks gets its knowledge from: the journals, and decisions.

The glue between a simulation's routers and `prefixgym.envs.view.index`, whose rows are one for each
router, or one for each environment if they share it.
"""

from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import cold_kernel, kernel
from prefixgym.envs.view.arrays import ViewArrays, index_row
from prefixgym.envs.view.index.arrays import reset
from prefixgym.envs.view.index.own_decisions import note_sent as note_own
from prefixgym.envs.view.knowledge import Knowledge


def journal_size(knowledge: Knowledge, cluster: ClusterSpec) -> int:
    """Records that an instance's journal keeps; 0 if nobody reads them.

    Four times what the largest cache holds: what is told between two decisions, what is under way,
    and what is asked for again.
    """
    if knowledge.index.source in ("engine", "none"):
        return 0
    return 4 * max(cluster.kv_blocks(i) for i in range(len(cluster.instances)))


@kernel
def note_sent(v: ViewArrays, e: int, replica: int, i: int, num_blocks: int, time: int) -> None:
    """A router sends the current request to instance i."""
    if v.settings[0].indexed:
        note_own(v.known, index_row(v, e, replica), i, v.block_ids[e], num_blocks, time)


@cold_kernel
def reset_sources(v: ViewArrays, e: int) -> None:
    """Nothing is known of any cache."""
    settings = v.settings[0]
    if not settings.indexed:
        return
    rows = 1 if settings.shared_index else settings.replicas
    for row in range(rows):
        w = e * rows + row
        reset(v.known, w, v.keys[e * settings.replicas + row])
