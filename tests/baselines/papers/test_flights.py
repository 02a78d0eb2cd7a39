"""What the papers' routers hear of their requests agrees with the view's own ledger."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from made_tapes import Sent, play

from prefixgym.baselines.papers.flights import NOWHERE
from prefixgym.baselines.papers.mooncake import Mooncake
from prefixgym.envs.view.view import View


@dataclass
class Checked(Mooncake):
    """Mooncake that compares its books with the view."""

    most_decoding: ClassVar[list[int]] = []
    early_rejection: str = "early"

    def hear(self, view: View) -> None:
        super().hear(view)
        decode, rows = self._flights.decode[0], view.instances[0]
        decoding = rows["requests"] - rows["prefill_requests"]
        assert decode["requests"].tolist() == decoding.tolist()
        slots = self._flights.slots[0]
        in_flight = slots[slots["instance"] != NOWHERE]
        assert len(in_flight) == rows["requests"].sum()
        for i in range(len(rows)):
            here = in_flight[in_flight["instance"] == i]
            assert here["prompt_tokens"].sum() == rows["context_tokens"][i]
            mine = here["prompt_tokens"][here["decoding"] == 1]
            assert mine.sum() == decode["prompt_tokens"][i]
        self.most_decoding.append(int(decoding.max()))


def test_books_agree_with_the_ledger_at_every_decision() -> None:
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.exponential(0.02, 600))
    requests = [
        Sent(
            float(time),
            range(100 * k, 100 * k + int(rng.integers(1, 20))),
            int(rng.integers(1, 60)),
        )
        for k, time in enumerate(times)
    ]
    outcomes = play(Checked(), requests, 3)
    assert max(Checked.most_decoding) > 5
    assert 0 < (outcomes["status"] != 0).sum() < 300  # some were turned away
