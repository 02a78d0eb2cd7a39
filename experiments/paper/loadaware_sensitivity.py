"""What the loadaware result depends on: the headline under other assumptions.

python -m prefixgym.experiments.paper.loadaware_sensitivity
"""

from collections.abc import Mapping

import polars as pl

from prefixgym.experiments.console import print_tables
from prefixgym.experiments.paper.loadaware_replays import (
    HARDWARE,
    MEASURED_PACE,
    REFERENCE,
    reproduce,
    summarize,
)
from prefixgym.experiments.paper.loadaware_testbed import Deployment
from prefixgym.experiments.table import Table

SENSITIVITY = {
    "as slow as measured": MEASURED_PACE,
    "the hardware's speed": HARDWARE,
    "1.5 times as slow": Deployment(slowdown=1.5),
    "2 times as slow": Deployment(slowdown=2.0),
    "3 times as slow": Deployment(slowdown=3.0),
    "12 requests/s": Deployment(slowdown=2.4, rate=12.0),
    "14 requests/s": Deployment(slowdown=2.4, rate=14.0),
    "18 requests/s": Deployment(slowdown=2.4, rate=18.0),
    "popular prefixes placed evenly": Deployment(slowdown=2.4, crowded=0),
    "routers see GPU memory, not LMCache": Deployment(slowdown=2.4, host_prefixes=None),
    "both": Deployment(slowdown=2.4, crowded=0, host_prefixes=None),
    "KV memory for all prefixes": Deployment(slowdown=2.4, kv_tokens=393_744),
}
"""How the effect depends on what is inferred or chosen; at the measured pace, except the speeds."""


def sensitivity(variants: Mapping[str, Deployment]) -> pl.DataFrame:
    """The headline under other assumptions.

    Returns:
        One row a variant: variant; kvaware, loadaware (β = 0.5: median imbalances), change, low,
        high (paired), busiest_share and in_flight (kvaware's), hit_rate_lost (kvaware's −
        loadaware's).
    """
    rows = []
    for variant, deployment in variants.items():
        summary = summarize(reproduce(deployment, (REFERENCE, "loadaware 0.5")))
        kvaware, loadaware = summary.to_dicts()
        rows.append(
            {
                "variant": variant,
                "kvaware": kvaware["imbalance"],
                "loadaware": loadaware["imbalance"],
                **{name: loadaware[name] for name in ("change", "low", "high")},
                "busiest_share": kvaware["busiest_share"],
                "hit_rate_lost": kvaware["hit_rate"] - loadaware["hit_rate"],
                "in_flight": kvaware["in_flight"],
            }
        )
    return pl.DataFrame(rows)


def main() -> None:
    """Print a row a variant."""
    headings = (
        "", "kvaware", "β = 0.5", "change %", "95 % interval", "share %", "hits lost %", "N",
    )  # fmt: skip
    rows = [
        (
            row["variant"],
            f"{row['kvaware']:.2f}",
            f"{row['loadaware']:.2f}",
            f"{100 * row['change']:+.0f}",
            f"{100 * row['low']:+.0f} … {100 * row['high']:+.0f}",
            f"{100 * row['busiest_share']:.0f}",
            f"{100 * row['hit_rate_lost']:.1f}",
            f"{row['in_flight']:.0f}",
        )
        for row in sensitivity(SENSITIVITY).to_dicts()
    ]
    print_tables([Table("What the loadaware result depends on", headings, rows)])


if __name__ == "__main__":
    main()
