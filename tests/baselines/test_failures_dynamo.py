"""What users report of Dynamo's router (`routers_flexlb_dynamo_preble_mooncake.md` §2.9, §9)."""

from typing import Any

import numpy as np
import pytest
from made_tapes import Sent, play
from numpy.typing import NDArray

from prefixgym.baselines.router import make_router

BLOCK = 16
SYSTEM = 2048 // BLOCK
INSTANCES = 8


def shared_system_prompt(num_requests: int = 600) -> list[Sent]:
    """80 % of the requests begin with the same 2,048 tokens, the others share nothing.

    All add 16 tokens of their own and answer with 256, at 20 requests/s. The system prompt came
    once before, so that one instance has it when the others arrive.
    """
    rng = np.random.default_rng(0)
    fresh = 1_000_000
    requests = [Sent(0.0, [*range(SYSTEM), fresh])]
    time = 2.0
    for _ in range(num_requests):
        time += rng.exponential(1 / 20)
        fresh += 1000
        first = 0 if rng.random() < 0.8 else fresh
        requests.append(Sent(time, [*range(first, first + SYSTEM), fresh + SYSTEM], 256))
    return requests


def served(name: str, **parameters: Any) -> tuple[NDArray[np.float64], float]:
    """Shares of the instances in the popular requests, largest first, and their median TPOT, s."""
    requests = shared_system_prompt()
    outcomes = play(make_router(name, parameters), requests, INSTANCES, block_size=BLOCK)
    popular = outcomes[[request.ids[0] == 0 for request in requests]][1:]
    counts = np.bincount(popular["instance"], minlength=INSTANCES)
    return np.sort(counts / len(popular))[::-1], float(np.median(popular["tpot"]))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("dynamo", {}),
        ("dynamo_classic", {}),
        ("dynamo_approximate", {}),
        ("dynamo", {"overlap_score_credit_decay": 1.0}),
    ],
)
def test_a_shared_system_prompt_pulls_everything_to_one_instance(
    name: str, parameters: dict[str, Any]
) -> None:
    """ai-dynamo/dynamo#737: one of eight instances is overloaded while the others idle.

    Reported of 0.1.1; the costs of later versions do it at loads where less than a system prompt's
    blocks of own blocks are in flight on the one that has it. A request weighs one block here, what
    it decodes nothing, so that some fifty in flight do not outweigh 128 cached ones. A credit that
    decays does not help, as nearly nothing is left to prefill.
    """
    shares, tpot = served(name, **parameters)
    balanced_shares, balanced_tpot = served("least_load")
    assert shares[0] == 1.0  # 81 % of all requests
    assert balanced_shares[0] < 0.15
    assert tpot > 1.6 * balanced_tpot  # 13.4 against 7.3 ms


def test_weighing_requests_in_flight_spreads_them() -> None:
    """The option of the newest versions, at an eighth of the system prompt a request."""
    shares, tpot = served("dynamo", decode_active_request_weight=16.0)
    assert shares[0] < 0.25
    assert tpot < 1.1 * served("least_load")[1]
