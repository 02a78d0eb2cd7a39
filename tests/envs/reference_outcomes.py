"""How the requests of a `ReferenceSimulation` have ended, judged by their objectives."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from reference_engine import Request

from prefixgym.envs.clock import TICKS_PER_SECOND, to_ticks
from prefixgym.envs.cluster.state import CANCELLED, FINISHED
from prefixgym.envs.episode_state import OUTCOME
from prefixgym.envs.slo import Slo
from prefixgym.envs.workload.tape import Tape


def outcomes_of(
    ended: Sequence[Request], tape: Tape, slos: Sequence[Slo], frontend: int
) -> NDArray[np.void]:
    """OUTCOME records; `frontend` ticks of latency come before the engine's."""
    outcomes = np.zeros(len(ended), OUTCOME)
    for outcome, request in zip(outcomes, ended, strict=True):
        row = tape.requests[request.row]
        end, status = _known(request.end), _known(request.status)
        outcome["arrival"] = request.arrival / TICKS_PER_SECOND
        outcome["end"] = end / TICKS_PER_SECOND
        outcome["prompt_tokens"] = request.prompt_tokens
        outcome["output_tokens"] = request.output_tokens
        outcome["hit_tokens"] = request.hit_tokens or 0
        outcome["instance"] = request.prefiller
        outcome["decoder"] = request.prefiller if request.decoder is None else request.decoder
        outcome["session"] = row["session"]
        outcome["slo_class"] = row["slo_class"]
        outcome["row"] = request.row
        outcome["status"] = status
        outcome["attempts"] = request.attempts
        outcome["replica"] = request.replica
        outcome["ttft"] = np.nan
        if status not in (FINISHED, CANCELLED) or request.first_token is None:
            continue
        ttft = request.first_token - request.arrival + frontend
        outcome["ttft"] = ttft / TICKS_PER_SECOND
        if status == FINISHED:
            slo = slos[row["slo_class"]]
            decoding, tokens = end - request.first_token, request.output_tokens - 1
            if tokens > 0:
                outcome["tpot"] = decoding / TICKS_PER_SECOND / tokens
            outcome["good"] = (
                ttft <= most_ttft(slo, request.prompt_tokens)
                and decoding <= to_ticks(slo.tpot) * tokens
            )
    return outcomes


def most_ttft(slo: Slo, prompt_tokens: int) -> int:
    """Ticks."""
    return int(to_ticks(slo.ttft)) + int(to_ticks(slo.ttft_per_token)) * prompt_tokens


def _known(number: int | None) -> int:
    assert number is not None
    return number
