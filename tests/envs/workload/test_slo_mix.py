"""SLO classes: shares of sessions, one class a session, nothing else changed."""

import dataclasses

import numpy as np
import pytest

from prefixgym.envs.workload.arrivals import Poisson
from prefixgym.envs.workload.generators.shared_prompts import SharedPrompts
from prefixgym.envs.workload.slo_mix import SloMix
from prefixgym.envs.workload.validate import validate

PROMPTS = SharedPrompts(20_000, Poisson(9.0), 64, 1000, 5, 640, 64, 10)
"""Its sessions are questions, each asked some four times."""


def test_sessions_have_classes_by_share_and_nothing_else_changes() -> None:
    mix = SloMix(PROMPTS, (5.0, 3.0, 2.0))
    tape, plain = mix.tape(3), PROMPTS.tape(3)
    validate(tape)
    assert (mix.block_size, mix.num_sessions, mix.max_blocks) == (64, 5000, 11)
    session, first = np.unique(tape.requests["session"], return_index=True)
    class_of = tape.requests["slo_class"][first]
    index = np.searchsorted(session, tape.requests["session"])
    np.testing.assert_array_equal(class_of[index], tape.requests["slo_class"])
    shares = np.bincount(class_of) / len(session)
    np.testing.assert_allclose(shares, (0.5, 0.3, 0.2), atol=0.03)

    again = mix.tape(3).requests
    assert again.tobytes() == tape.requests.tobytes()
    again["slo_class"] = 0
    assert again.tobytes() == plain.requests.tobytes()
    assert np.any(mix.tape(4).requests["slo_class"] != tape.requests["slo_class"])


def test_a_session_keeps_its_class_at_another_rate() -> None:
    fast = SloMix(dataclasses.replace(PROMPTS, arrivals=Poisson(20.0)), (1.0, 1.0)).tape(0)
    slow = SloMix(PROMPTS, (1.0, 1.0)).tape(0)
    np.testing.assert_array_equal(fast.requests["slo_class"], slow.requests["slo_class"])


def test_bad_shares_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^shares\[1\]: found 0"):
        SloMix(PROMPTS, (1.0, 0.0))
