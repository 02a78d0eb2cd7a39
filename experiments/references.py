"""How far handcrafted routers are from the references: look-ahead and upper bound."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from prefixgym.baselines.references.upper_bound import upper_bound
from prefixgym.envs.scenarios.registry import scenario_names
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.evaluate import Cell
from prefixgym.experiments.scenario_tables import middle_rate
from prefixgym.experiments.table import Table

LOOKAHEAD = "lookahead"

_FAST = 50.0  # requests/s
_FAST_HORIZON = 2.5  # s

_HEAD = f"""\
# References: how good could routing be?

<!-- Written by `prefixgym references --page docs/references.md`: edit the command, not this. -->

Two yardsticks stand beside the routers of the field. Neither could be deployed.

- **`{LOOKAHEAD}`** forks the simulation for a few instances and lets base routers take the next
  decisions in each, with the requests that will really come; the instance whose future loses least
  is taken. It is the teacher for learned routers. With its default `tardiness` of 0 it sacrifices
  requests that are lost anyway, as attainment rewards it; `--set tardiness=0.1` makes lateness
  count. Above {_FAST:g} requests/s its base routers are `cache_aware_zmq` and `greedy_dump` and its
  horizon {_FAST_HORIZON:g} s of arrivals: the default's 40 decisions are too few there to see TPOT.
- The **upper bound** holds for every router, clairvoyant ones included: what one pooled machine
  with all caches shared and without limits could serve in time. A linear programme over intervals
  of time; the argument is in
  [`baselines/references/upper_bound.py`](../baselines/references/upper_bound.py).

What is possible lies between the two. All routers play the same requests. `oracle_greedy`, which is
not in the table, forks too, but looks at the request in hand alone.
"""

_ABOUT_GAP = """\
*gap*: upper bound less look-ahead, in points. What is really out of reach is less, since the bound
gives away what routing is about. It is loosest where decoding is scarce, as in `retrieval-8` and
`unique-prompts-8`: on the pooled machine no prefill slows down the requests that decode beside it.
"""


def cells_of(scenarios: Sequence[Scenario], num_seeds: int, routers: Sequence[str]) -> list[Cell]:
    """The cells of the look-ahead, which take longest, and of `routers`."""
    return [
        Cell(
            scenario,
            middle_rate(scenario),
            router,
            _seeds(scenario, num_seeds),
            _lookahead_parameters(scenario) if router == LOOKAHEAD else {},
        )
        for router in (LOOKAHEAD, *routers)
        for scenario in scenarios
    ]


def _lookahead_parameters(scenario: Scenario) -> dict[str, str | int]:
    """The default's horizon spans a second or more at most rates; where they are higher, TPOT is
    what is missed, and takes seconds to see."""
    rate = middle_rate(scenario)
    if rate <= _FAST:
        return {}
    return {"base": "cache_aware_zmq+greedy_dump", "horizon": round(_FAST_HORIZON * rate)}


def _seeds(scenario: Scenario, count: int) -> tuple[int, ...]:
    return tuple(scenario.seeds.test.range()[:count])


def from_leaderboard(folder: Path, cells: Sequence[Cell]) -> pl.DataFrame:
    """The results of a leaderboard at the rates and seeds of `cells`.

    Raises:
        ValueError: it has not evaluated them.
    """
    episodes = pl.read_parquet(folder / "episodes.parquet")
    parts = []
    for cell in cells:
        met = (pl.col("scenario") == cell.scenario.name) & (pl.col("rate") == cell.rate)
        part = episodes.filter(met & pl.col("seed").is_in(cell.seeds))
        if part["seed"].n_unique() < len(cell.seeds):
            raise ValueError(
                f"{folder}: has not evaluated {cell.scenario.name} at {cell.rate:g} requests/s "
                f"with seeds {', '.join(map(str, cell.seeds))}"
            )
        parts.append(part)
    return pl.concat(parts)


def bound_of(scenario: Scenario, num_seeds: int) -> float:
    """The upper bound on the attainment of a scenario, mean over its first test seeds."""
    setup = scenario.build(middle_rate(scenario))
    bounds = [
        upper_bound(setup.workload.tape(seed), setup.cluster, setup.slos)
        for seed in _seeds(scenario, num_seeds)
    ]
    return sum(bounds) / len(bounds)


def standings(results: pl.DataFrame, bounds: dict[str, float]) -> pl.DataFrame:
    """One row a scenario: attainment of the look-ahead and of the best handcrafted router.

    Args:
        results: finished cells.
        bounds: upper bound by scenario.
    """
    means = results.group_by("scenario", "rate", "router", maintain_order=True).agg(
        pl.col("attainment").mean()
    )
    real = means.filter(pl.col("router") != LOOKAHEAD)
    best = real.sort("attainment", descending=True).group_by("scenario", "rate").first()
    rows = best.rename({"router": "best", "attainment": "best_attainment"})
    own = means.filter(pl.col("router") == LOOKAHEAD).rename({"attainment": LOOKAHEAD})
    rows = rows.join(own.drop("router"), on=["scenario", "rate"], how="left")
    bound = pl.DataFrame({"scenario": list(bounds), "bound": list(bounds.values())})
    order = {name: place for place, name in enumerate(scenario_names())}
    return rows.join(bound, on="scenario", how="left").sort(
        pl.col("scenario").replace_strict(order, default=len(order)), "scenario"
    )


def standings_table(rows: pl.DataFrame) -> Table:
    """The rows for people."""

    def percent(share: float | None) -> str:
        return "" if share is None else f"{100 * share:.1f}"

    def points(a: float | None, b: float | None) -> str:
        return "" if a is None or b is None else f"{round(100 * (a - b), 1) + 0.0:+.1f}"  # no -0.0

    return Table(
        title="Attainment at the knee, %",
        headings=(
            "scenario", "requests/s", "best handcrafted", "%", LOOKAHEAD, "against best",
            "upper bound", "gap",
        ),
        rows=[
            (
                row["scenario"],
                f"{row['rate']:g}",
                row["best"],
                percent(row["best_attainment"]),
                percent(row[LOOKAHEAD]),
                points(row[LOOKAHEAD], row["best_attainment"]),
                percent(row["bound"]),
                points(row["bound"], row[LOOKAHEAD]),
            )
            for row in rows.to_dicts()
        ],
    )  # fmt: skip


def page(rows: pl.DataFrame, num_seeds: int) -> str:
    """docs/references.md."""
    both = rows.drop_nulls([LOOKAHEAD])
    ahead = both.filter(pl.col(LOOKAHEAD) > pl.col("best_attainment")).height
    about = (
        f"Mean of {num_seeds} test seeds. The look-ahead is ahead of every handcrafted router in "
        f"{ahead} of {both.height} scenarios.\n\n{_ABOUT_GAP}"
    )
    return "\n".join([_HEAD, standings_table(rows).markdown(), about])
