"""What histories make of an instance that is found to be down, and comes back without a cache."""

import pytest
from made_views import decide, one_view, router_for

PROMPT = list(range(4))
AWAY = [1, 0]
BACK = [1, 1]


@pytest.mark.parametrize(
    ("name", "seconds_away", "remembers"),
    [
        ("gorgo", 1.0, False),
        ("dynamo_approximate", 1.0, False),
        ("llmd_approximate", 1.0, True),  # it looks every two minutes
        ("llmd_approximate", 119.0, False),
        ("prefixaware", 200.0, True),
        ("aibrix_prefix_cache", 200.0, True),
        ("smg_cache_aware", 200.0, True),
    ],
)
def test_who_goes_on_believing_in_a_lost_cache(
    name: str, seconds_away: float, remembers: bool
) -> None:
    """A prompt goes to instance 1, which then is away while another prompt comes, and is back."""
    router = router_for(2, name)
    only = one_view(2, ids=PROMPT, request={"slot": 0, "time": 1.0}, available=[0, 1])
    assert decide(router, only) == 1
    later = {"slot": 1, "index": 1, "time": 1.0 + seconds_away}
    assert decide(router, one_view(2, ids=[90], request=later, available=AWAY)) == 0
    # Whoever has forgotten goes by what is elsewhere: 1 is the busier one.
    busy = {"requests": [0, 2], "context_tokens": [0, 600], "waiting": [0, 2], "running": [0, 2]}
    back = {"slot": 2, "index": 2, "time": 1.5 + seconds_away}
    choice = decide(router, one_view(2, ids=PROMPT, request=back, available=BACK, **busy))
    assert (choice == 1) == remembers
