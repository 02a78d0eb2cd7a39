"""The table of what tuning has found."""

from collections.abc import Mapping
from typing import Any

from prefixgym.experiments.table import Table


def tuned_table(title: str, tables: Mapping[str, Mapping[str, Any]]) -> Table:
    """Routers by validation attainment as tuned, best first; from `tuned_file.table_of`."""
    headings = (
        "router",
        "attainment\ndefault %",
        "attainment\ntuned %",
        "TTFT p99\ndefault ms",
        "TTFT p99\ntuned ms",
        "trials",
        "given\nup",
        "parameters",
    )
    best_first = sorted(
        tables.items(), key=lambda item: -item[1]["validation"]["tuned"]["attainment"]
    )
    rows = []
    for router, table in best_first:
        default, tuned = (table["validation"][name] for name in ("default", "tuned"))
        rows.append(
            (
                router,
                f"{100 * default['attainment']:.2f}",
                f"{100 * tuned['attainment']:.2f}",
                f"{1000 * default['ttft_p99']:.0f}",
                f"{1000 * tuned['ttft_p99']:.0f}",
                str(table["budget"]["trials"]),
                str(table["budget"]["given_up"]),
                "\n".join(f"{key} {_shown(value)}" for key, value in table["parameters"].items()),
            )
        )
    return Table(title, headings, rows)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
