"""Compressed KV: which level each chunk is sent at, by hand, and what must always hold."""

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from prefixgym.experiments.paper.compressed_kv import (
    TEXT,
    Codec,
    Level,
    Moment,
    Transfer,
    break_even,
    last_seen,
)

FINE, COARSE = Level("fine", 100.0), Level("coarse", 10.0)


def transfer(tokens: int = 30, recompute: float = 1.0, decode: float = 0.0) -> Transfer:
    levels = (FINE, Level("coarse", 10.0, decode))
    codec = Codec(levels, text_bytes_per_token=1.0, chunk_tokens=10)
    return Transfer(codec, tokens, lambda new, _: recompute * new)


def names(levels: list[Level | None]) -> list[str]:
    return ["text" if level is TEXT else level.name for level in levels]


def test_a_context_is_cut_into_chunks() -> None:
    codec = transfer().codec
    assert codec.chunks(30) == [10, 10, 10]
    assert codec.chunks(31) == [10, 10, 10, 1]
    assert codec.chunks(9) == [9]


def test_the_best_level_that_is_in_time_is_chosen() -> None:
    # 30 tokens: 3,000 bytes fine, 300 coarse, 30 as text, which takes 30 s to compute.
    for bandwidth, deadline, chosen in (
        (100.0, 31.0, "text"),  # 10 bytes of the first chunk, 0.1 s, and 30 s
        (100.0, 30.05, "fine"),  # 30 s, text is 50 ms late
        (100.0, 30.0, "fine"),  # just in time
        (100.0, 29.0, "coarse"),  # 3 s
        (100.0, 2.0, "coarse"),  # nothing is in time: the lowest
    ):
        found = transfer().choose(Moment(), bandwidth, deadline)
        assert names([found]) == [chosen], (bandwidth, deadline)


def test_the_estimate_is_what_the_last_chunk_met() -> None:
    # 12 s for 30 tokens. First 300 bytes/s are expected: fine takes 10 s. The first chunk meets 150
    # and takes 6.67 s; of 5.33 s left, fine would take 13.3, coarse 1.33. The second chunk, coarse,
    # takes 0.1 s at 1,000 bytes/s: 5.23 s are left, fine takes 1 s of them if the link stays so,
    # and 5 s as it is at 200 bytes/s.
    met = [150.0, 1000.0, 200.0]
    finish, sent_as = transfer().adapted(met, last_seen(met, 300.0), deadline=12.0)
    assert names(sent_as) == ["fine", "coarse", "fine"]
    assert finish == pytest.approx(1000 / 150 + 0.1 + 5.0)


def test_text_is_computed_while_more_of_it_arrives() -> None:
    # Text of 10 tokens takes 0.1 s at 100 bytes/s; each chunk is then computed for 10 s.
    finish, sent_as = transfer().adapted([100.0] * 3, [100.0] * 3, deadline=40.0)
    assert names(sent_as) == ["text"] * 3
    assert finish == pytest.approx(0.1 + 30.0)
    assert transfer().whole_text(100.0) == pytest.approx(0.3 + 30.0)


def test_decoding_goes_on_while_the_next_chunk_arrives() -> None:
    # A chunk of 100 bytes takes 1 s at 100 bytes/s; only the last one's decoding is seen.
    quick = transfer(decode=0.02)
    assert quick.fixed([100.0] * 3, quick.codec.levels[1]) == pytest.approx(3.0 + 0.2)
    # Where decoding is slower than the link, all of it is.
    slow = transfer(decode=0.3)
    assert slow.fixed([100.0] * 3, slow.codec.levels[1]) == pytest.approx(1.0 + 3 * 3.0)


def test_mistakes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"found sizes \[10.0, 100.0\], allowed: one or more"):
        Codec((COARSE, FINE))
    with pytest.raises(ValueError, match="chunk_tokens: found 0, allowed: 1 or more"):
        Codec((FINE,), chunk_tokens=0)
    never = transfer(recompute=0.001, decode=1.0)
    with pytest.raises(ValueError, match="coarse: decoding takes as long as prefill"):
        break_even(never, never.codec.levels[1])


SIZES = st.lists(st.floats(100.0, 1e5), min_size=1, max_size=4).map(lambda x: sorted(x)[::-1])
TRANSFERS = st.builds(
    lambda sizes, decode, chunk, tokens, prefill: Transfer(
        Codec(tuple(Level(f"{i}", s, decode) for i, s in enumerate(sizes)), chunk_tokens=chunk),
        tokens,
        lambda new, context: prefill * (new + 1e-4 * new * (context + new / 2)),
    ),
    SIZES,
    st.floats(0.0, 1e-4),
    st.integers(100, 3000),
    st.integers(1, 20_000),
    st.floats(1e-5, 1e-3),
)
BANDWIDTH = st.floats(1e6, 1e11)
DEADLINE = st.floats(0.01, 30.0)
ALMOST = 1 + 1e-9


def best(t: Transfer, bandwidth: float) -> float:
    return min(t.finish(Moment(), level, bandwidth) for level in (TEXT, *t.codec.levels))


@given(TRANSFERS, BANDWIDTH, DEADLINE)
def test_a_steady_link_meets_the_deadline_wherever_something_does(
    t: Transfer, bandwidth: float, deadline: float
) -> None:
    """And is never later than the lowest level, but for text that is in time all the same."""
    steady = [bandwidth] * len(t.codec.chunks(t.tokens))
    finish, _ = t.adapted(steady, steady, deadline)
    if best(t, bandwidth) <= deadline:
        assert finish <= deadline * ALMOST
    assert finish <= max(deadline, t.fixed(steady, t.codec.levels[-1])) * ALMOST


@given(TRANSFERS, st.lists(BANDWIDTH, min_size=1, max_size=8), DEADLINE)
def test_a_link_that_only_becomes_faster_meets_what_was_expected_of_it(
    t: Transfer, bandwidths: list[float], deadline: float
) -> None:
    rising = sorted(bandwidths)
    count = len(t.codec.chunks(t.tokens))
    rising += rising[-1:] * (count - len(rising))
    assume(best(t, rising[0]) <= deadline)
    met = rising[:count]
    finish, _ = t.adapted(met, last_seen(met, rising[0]), deadline)
    assert finish <= deadline * ALMOST


@given(TRANSFERS, BANDWIDTH)
def test_with_no_time_at_all_it_is_the_lowest_level(t: Transfer, bandwidth: float) -> None:
    steady = [bandwidth] * len(t.codec.chunks(t.tokens))
    finish, sent_as = t.adapted(steady, steady, deadline=0.0)
    assert set(sent_as) == {t.codec.levels[-1]}
    assert finish == t.fixed(steady, t.codec.levels[-1])


@given(TRANSFERS, BANDWIDTH)
def test_lower_levels_and_faster_links_are_never_later(t: Transfer, bandwidth: float) -> None:
    times = [t.finish(Moment(), level, bandwidth) for level in t.codec.levels]
    for higher, lower in itertools.pairwise(times):
        assert lower <= higher * ALMOST
    for level in (TEXT, *t.codec.levels):
        assert t.finish(Moment(), level, 2 * bandwidth) <= t.finish(Moment(), level, bandwidth)


@given(TRANSFERS)
def test_at_the_break_even_bandwidth_both_take_as_long(t: Transfer) -> None:
    plain = Level("plain", 1e4)
    bandwidth = break_even(t, plain)
    assert t.finish(Moment(), plain, bandwidth) == pytest.approx(t.whole_text(bandwidth))
    assert t.finish(Moment(), plain, 1.01 * bandwidth) < t.whole_text(1.01 * bandwidth)
    assert t.finish(Moment(), plain, 0.99 * bandwidth) > t.whole_text(0.99 * bandwidth)
