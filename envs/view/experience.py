"""Experience: what routers booked and heard lately, by instance, fading with time.

A gateway proxies its responses, so it hears when the first token comes and how many follow. Of that
the view keeps sums in which what happened t seconds ago counts e^(−t / `MEMORY`). Quotients of them
tell what no queue length does:

    recent_prefill_seconds / MEMORY                  share of its time that an instance prefills
    recent_decode_seconds / recent_tokens            time per output token, prefills in between
                                                     and slow hardware included
    recent_wait_seconds / recent_booked_seconds      how much longer than booked first tokens take
"""

import math

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.arrays import ViewArrays

MEMORY = 10.0
"""s after which an experience counts 1/e: about as long as a request of chat takes."""


@kernel
def fade(v: ViewArrays, w: int, time: int) -> None:
    """Router w decides again, at tick `time`; what it heard since the last time counts whole."""
    kept = math.exp((v.remembered[w] - time) / (MEMORY * TICKS_PER_SECOND))
    v.remembered[w] = time
    for i in range(v.instances.shape[1]):
        row = v.instances[w, i]
        row.recent_prefill_seconds *= kept
        row.recent_booked_seconds *= kept
        row.recent_wait_seconds *= kept
        row.recent_tokens *= kept
        row.recent_decode_seconds *= kept


@kernel
def note_booked(v: ViewArrays, w: int, i: int, prefill_ticks: int) -> None:
    """Prefill was booked on instance i."""
    v.instances[w, i].recent_prefill_seconds += prefill_ticks / TICKS_PER_SECOND


@kernel
def note_wait(v: ViewArrays, w: int, i: int, booked: int, wait: int) -> None:
    """A first token came from instance i after `wait` ticks; `booked` were booked."""
    row = v.instances[w, i]
    row.recent_booked_seconds += booked / TICKS_PER_SECOND
    row.recent_wait_seconds += wait / TICKS_PER_SECOND


@kernel
def note_decode(v: ViewArrays, w: int, i: int, tokens: int, ticks: int) -> None:
    """A request finished on instance i, `tokens` after its first token, in so many ticks."""
    row = v.instances[w, i]
    row.recent_tokens += tokens
    row.recent_decode_seconds += ticks / TICKS_PER_SECOND
