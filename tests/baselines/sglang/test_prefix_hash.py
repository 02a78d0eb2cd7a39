"""prefix_hash's margin in requests; the rest of it is in `test_routers`."""

from made_views import decide, one_view, router_for


def test_the_margin_lets_a_home_be_above_the_factor() -> None:
    router = router_for(4, "prefix_hash", balance_abs_threshold=10)
    ids = next([k] for k in range(99) if decide(router, one_view(4, [k])) == 2)
    # Mean (40 + 1) / 4 = 10.25: 1.25 · 10.25 = 12.8, 10.25 + 10 = 20.25.
    assert decide(router, one_view(4, ids, requests=[7, 6, 20, 7])) == 2
    assert decide(router, one_view(4, ids, requests=[7, 5, 21, 7])) == 1
    first_version = router_for(4, "prefix_hash")
    assert decide(first_version, one_view(4, ids, requests=[7, 6, 20, 7])) == 1
    # Mean 50.25: the factor is the wider one, 62.8.
    assert decide(router, one_view(4, ids, requests=[46, 46, 62, 46])) == 2
    assert decide(router, one_view(4, ids, requests=[46, 45, 63, 46])) == 1
