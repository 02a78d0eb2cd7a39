"""What tapes of sessions have in common whose every prompt goes on from the answer before."""

import numpy as np

from prefixgym.envs.workload.generators.agentic import Agentic
from prefixgym.envs.workload.generators.chat import MultiTurnChat
from prefixgym.envs.workload.tape import Tape
from prefixgym.envs.workload.validate import validate


def check_session_tape(workload: MultiTurnChat | Agentic, tape: Tape) -> None:
    """Raise AssertionError or ValueError unless the tape is valid and within its bounds."""
    validate(tape)
    requests = tape.requests
    assert len(requests) == workload.num_requests
    sessions = np.unique(requests["session"])
    assert list(sessions) == list(range(len(sessions)))
    assert len(sessions) <= workload.num_sessions
    known = np.maximum(requests["num_blocks"], requests["cacheable_blocks"])
    assert known.max() <= workload.max_blocks
    assert requests["prompt_tokens"].max() <= workload.max_prompt_tokens
    full = (requests["prompt_tokens"] + requests["output_tokens"]) // workload.block_size
    np.testing.assert_array_equal(requests["cacheable_blocks"], full)
