"""Popularity that changes: how long prefixes live, how popular they stay, how hot bursts are."""

import dataclasses

import numpy as np
import pytest

from prefixgym.envs.workload.arrivals import Poisson
from prefixgym.envs.workload.generators.changing_popularity import HotPrefixes, replaced
from prefixgym.envs.workload.generators.shared_prompts import SharedPrompts
from prefixgym.envs.workload.popularity import choose, zipf_weights
from prefixgym.envs.workload.reuse import reuse

COUNT = 100_000


@pytest.mark.parametrize("half_life", [200.0, 5000.0])
def test_half_of_the_holders_are_gone_after_the_half_life(half_life: float) -> None:
    generator = np.random.default_rng(0)
    rank = choose(zipf_weights(50, 0.8), generator, COUNT)
    holder, rank_of = replaced(rank, half_life, generator)
    np.testing.assert_array_equal(rank_of[holder], rank)
    assert sorted(set(holder)) == list(range(len(rank_of)))
    # Nobody comes back: a rank's holders follow each other.
    for r in (0, 49):
        assert np.all(np.diff(holder[rank == r]) >= 0)
    # Of pairs of picks of one rank, `lag` requests apart, half have the same holder.
    for lag in (int(half_life / 2), int(half_life), int(2 * half_life)):
        pairs = np.flatnonzero(rank[lag:] == rank[:-lag])
        same = np.mean(holder[pairs] == holder[pairs + lag])
        assert same == pytest.approx(2 ** (-lag / half_life), abs=0.06)


def test_new_groups_cost_reuse() -> None:
    stay = SharedPrompts(20_000, Poisson(9.0), 64, 100, None, 6400, 64, 10, zipf=0.8)
    change = dataclasses.replace(stay, half_life=2000.0)
    assert reuse(stay.tape(0)).token_hit == pytest.approx(0.99 * (1 - 100 / 20_000), abs=0.001)
    tape = change.tape(0)
    groups = len(np.unique(tape.runs["start"][tape.requests["first_run"]]))
    assert reuse(tape).token_hit == pytest.approx(0.99 * (1 - groups / 20_000), abs=0.001)
    # 100 ranks lose 20,000 · ln 2 / 2,000 holders each; those of rare ranks partly before a pick.
    assert 100 * 3 < groups < 100 * (1 + 20_000 * np.log(2) / 2000)


def test_questions_return_with_their_group() -> None:
    workload = SharedPrompts(5000, Poisson(9.0), 16, 10, 3, 64, (5, 50), 10, half_life=500.0)
    requests = workload.tape(0).requests
    length: dict[int, int] = {}
    for row in requests:
        assert length.setdefault(int(row["session"]), row["prompt_tokens"]) == row["prompt_tokens"]
    assert sorted(length) == list(range(len(length)))
    assert 30 < len(length) <= workload.num_sessions == 5000


def test_hot_prefixes_take_their_share_for_their_duration() -> None:
    hot = HotPrefixes(every=1000.0, duration=200.0, share=0.6)
    prefix = np.full(COUNT, -1)
    found = hot.redirect(prefix, 500, np.random.default_rng(1))
    redirected = found >= 0
    # A fifth of the requests come during bursts.
    assert redirected.mean() == pytest.approx(0.2 * 0.6, rel=0.15)
    places = np.flatnonzero(redirected)
    for burst in np.split(places, np.flatnonzero(np.diff(places) > 60) + 1):
        assert burst[-1] - burst[0] < 200 or len(set(found[burst])) > 1
    assert len(set(found[redirected])) > 50


def test_bursts_of_one_prefix_leave_other_requests_as_they_are() -> None:
    calm = SharedPrompts(3000, Poisson(9.0), 16, 40, None, 64, 20, 10, zipf=1.0)
    hot = dataclasses.replace(calm, hot_prefixes=HotPrefixes(500.0, 100.0, 0.8))
    roots = [tape.runs["start"][tape.requests["first_run"]] for tape in (calm.tape(3), hot.tape(3))]
    assert 0.05 < np.mean(roots[0] != roots[1]) < 0.3


def test_bad_fields_are_refused_by_key() -> None:
    with pytest.raises(ValueError, match=r"^every: found 5"):
        HotPrefixes(5.0, 6.0, 0.5)
    with pytest.raises(ValueError, match=r"^duration: found 0"):
        HotPrefixes(5.0, 0.0, 0.5)
    with pytest.raises(ValueError, match=r"^share: found 1.5, must be at most 1"):
        HotPrefixes(5.0, 1.0, 1.5)
    with pytest.raises(ValueError, match=r"^half_life: found -1"):
        SharedPrompts(10, Poisson(1.0), 16, 2, None, 10, 10, 10, half_life=-1.0)
