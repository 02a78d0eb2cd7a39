"""The index of cached blocks between two decisions: it hears, forgets, and is asked.

A kernel of its own, which a simulation runs beside `decisions.step_range` if its routers' index is
made of messages: as a part of that it would be compiled many times over.
"""

from prefixgym.envs import timers
from prefixgym.envs.episode_state import SimulationArrays
from prefixgym.envs.jit import borrowed, kernel
from prefixgym.envs.lent import Lent
from prefixgym.envs.view.arrays import index_row, router_row
from prefixgym.envs.view.decision import fill_in, reusable_blocks
from prefixgym.envs.view.index.beliefs import depths
from prefixgym.envs.view.index.upkeep import bring_up_to_date, forget_instance


@kernel
def know_range(lent: Lent, first: int, last: int) -> int:
    """Bring the indexes of environments first … last - 1 up to the moment that they have reached.

    Those halted before an incident that changes what an instance tells hear what it has told
    before; those at a decision are asked about the request.
    """
    s: SimulationArrays = borrowed(lent.arrays)
    v = s.knowledge
    for e in range(first, last):
        episode = s.episodes[e]
        _forget_down(s, e)
        time, until, replicas = episode.reached, episode.reached, 0
        if episode.halted:
            # What happens to an instance comes before the messages and turns of that moment.
            until -= 1
            if s.timers.due[e, 0].kind not in (timers.TIMEOUT, timers.CANCELLATION):
                replicas = 1 if v.settings[0].shared_index else v.settings[0].replicas
        elif v.unpresented[e]:
            replicas = 1
        for k in range(replicas):
            w = index_row(v, e, k if episode.halted else episode.replica)
            bring_up_to_date(s.cluster.journals, v.known, e, w, time, until)
        if v.unpresented[e]:
            v.unpresented[e] = 0
            w = index_row(v, e, episode.replica)
            blocks = reusable_blocks(s.cluster, v, e)
            depths(v.known.beliefs, w, v.block_ids[e], blocks, v.depths[e])
            fill_in(s.cluster, v, e)
    return 0


@kernel
def _forget_down(s: SimulationArrays, e: int) -> None:
    """Forget instances that were found to be down at the last incident."""
    v = s.knowledge
    for replica in range(v.settings[0].replicas):
        w = router_row(v, e, replica)
        for i in range(v.forgotten.shape[1]):
            if v.forgotten[w, i]:
                v.forgotten[w, i] = 0
                forget_instance(v.known, index_row(v, e, replica), i)
