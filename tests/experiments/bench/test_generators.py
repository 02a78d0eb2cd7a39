"""The benchmark of the generators measures all of them."""

from prefixgym.envs.scenarios.workloads import GENERATORS
from prefixgym.experiments.bench.generators import POOL, generation


def test_every_generator_is_measured() -> None:
    found = generation(requests=20, repeats=1)
    measured = [name for name in GENERATORS if name != "servegen" or POOL.exists()]
    assert [item.what for item in found] == [f"generator {n}, episodes of 20" for n in measured]
    assert all(item.value > 0 for item in found)
