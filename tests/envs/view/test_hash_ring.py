import numpy as np
import pytest

from prefixgym.envs.rng import random_word
from prefixgym.envs.view.hash_ring import HashRing, ring_owner

KEYS = [np.uint64(random_word(np.uint64(1), k)) for k in range(4000)]


def owners(ring: HashRing, num_instances: int, closed: tuple[int, ...] = ()) -> list[int]:
    is_open = np.array([i not in closed for i in range(num_instances)])
    return [ring_owner(ring.positions, ring.owners, key, is_open) for key in KEYS]


def test_owner_is_that_of_the_next_point() -> None:
    ring = HashRing(3, virtual_nodes=5)
    is_open = np.ones(3, np.bool_)
    for key in [0, 1 << 62, int(ring.positions[4]), int(ring.positions[4]) + 1, (1 << 64) - 1]:
        later = [p for p in range(15) if int(ring.positions[p]) >= key]
        expected = ring.owners[later[0] if later else 0]
        assert ring_owner(ring.positions, ring.owners, np.uint64(key), is_open) == expected


def test_every_instance_owns_its_virtual_nodes() -> None:
    ring = HashRing(4, virtual_nodes=7)
    assert np.bincount(ring.owners).tolist() == [7, 7, 7, 7]
    assert (np.diff(ring.positions.astype(np.float64)) > 0).all()


@pytest.mark.parametrize("num_instances", [2, 8, 64])
def test_shares_are_about_equal(num_instances: int) -> None:
    # A share's relative standard deviation is about 1 / sqrt(virtual nodes) = 8 %.
    shares = np.diff(HashRing(num_instances, 160).positions.astype(np.float64), prepend=0.0) / 2**64
    ring = HashRing(num_instances, 160)
    by_instance = np.bincount(ring.owners, weights=shares) * num_instances
    assert (abs(by_instance - 1) < 0.35).all()


def test_closing_an_instance_moves_only_its_keys_and_spreads_them() -> None:
    ring = HashRing(5, virtual_nodes=160)
    before, after = owners(ring, 5), owners(ring, 5, closed=(2,))
    moved = [b for a, b in zip(before, after, strict=True) if a == 2]
    assert all(a == b for a, b in zip(before, after, strict=True) if a != 2)
    assert set(moved) == {0, 1, 3, 4}


def test_adding_an_instance_moves_keys_only_to_it() -> None:
    before, after = owners(HashRing(4, 160), 4), owners(HashRing(5, 160), 5)
    assert all(a == b or b == 4 for a, b in zip(before, after, strict=True))
    assert after == owners(HashRing(5, 160), 5)
