"""The statistics of a trace as tables for the terminal."""

import math

from prefixgym.envs.workload.reuse import Reuse
from prefixgym.envs.workload.statistics.lru_curve import LruCurve
from prefixgym.envs.workload.statistics.quantiles import Quantiles
from prefixgym.envs.workload.statistics.sessions import Sessions
from prefixgym.envs.workload.statistics.sharing import Sharing
from prefixgym.envs.workload.statistics.summary import Statistics
from prefixgym.envs.workload.statistics.timeline import FIRST_TOKEN, PER_TOKEN
from prefixgym.envs.workload.statistics.traffic import Traffic
from prefixgym.experiments.table import Table, number

_LENGTH_COLUMNS = ("mean", "p10", "p50", "p90", "p99", "max")
_QUANTILES = ("p10", "p50", "p80", "p90", "p99", "max")
_FIGURES = ("figure", "value")


def percent(share: float) -> str:
    """A share in percent, one decimal: 36.6."""
    return f"{100 * share:.1f}"


def whole(value: float) -> str:
    """A whole number with its thousands apart: 12,035."""
    return f"{value:,.0f}"


def inspection(found: Statistics) -> list[Table]:
    """All tables of one trace; those on prefixes only where it names blocks and some return."""
    tables = [_arrivals(found.traffic), _lengths(found)]
    if found.reuse is None or found.lru is None or found.sharing is None:
        return tables
    tables.append(_reuse(found.reuse))
    if found.reuse.block_hit > 0:
        tables += [_lru(found.lru, found.block_size), _sharing(found.sharing)]
        tables += [_sessions(found.sessions), _quantiles(found)]
    return tables


def _arrivals(traffic: Traffic) -> Table:
    rows = [
        ("requests", whole(traffic.requests)),
        ("span, s", whole(traffic.span)),
        ("requests/s", number(traffic.rate)),
        ("prompt tokens/s", number(traffic.prompt_token_rate)),
        ("gaps of 0, %", percent(traffic.ties)),
        ("CV of the gaps (Poisson: 1)", number(traffic.gap_cv)),
    ]
    if traffic.batch_interval > 0:
        name = f"  with its batches of {number(traffic.batch_interval)} s spread evenly"
        rows.append((name, number(traffic.gap_cv_spread)))
    rows += [
        (f"variance/mean of counts in {window[:-1]} s (Poisson: 1)", number(value))
        for window, value in traffic.dispersion.items()
    ]
    rows.append(("busiest minute/mean", number(traffic.peak)))
    return Table("Arrivals", _FIGURES, rows)


def _lengths(found: Statistics) -> Table:
    rows = [
        (name, *(whole(lengths[column]) for column in _LENGTH_COLUMNS))
        for name, lengths in (("prompt", found.prompt_tokens), ("output", found.output_tokens))
    ]
    return Table("Lengths, tokens", ("", *_LENGTH_COLUMNS), rows)


def _reuse(reuse: Reuse) -> Table:
    rows = [
        ("blocks", whole(reuse.blocks)),
        ("different blocks", whole(reuse.unique_blocks)),
        ("  of these used once, %", percent(reuse.blocks_used_once)),
        ("block hit, %", percent(reuse.block_hit)),
        ("token hit, %", percent(reuse.token_hit)),
        ("token hit of the 2nd half, %; the 1st only warms", percent(reuse.token_hit_second_half)),
        ("mean hit of a request, % of its tokens", percent(reuse.request_hit)),
        ("requests without a hit, %", percent(reuse.requests_without_hit)),
        ("blocks that hit, p50 / p90 / p99", " / ".join(map(whole, reuse.hit_depth))),
    ]
    return Table("Reuse with an infinite cache, cold at first", _FIGURES, rows)


def _lru(lru: LruCurve, block_size: int) -> Table:
    ceiling = lru.block_hit[-1]
    rows = [
        (
            whole(capacity) if capacity < lru.capacity[-1] else f"{whole(capacity)} (all)",
            number(capacity * block_size / 1e6),
            percent(hit),
            percent(hit / ceiling) if ceiling > 0 else "",
            percent(token_hit),
        )
        for capacity, hit, token_hit in zip(
            lru.capacity, lru.block_hit, lru.token_hit_second_half, strict=True
        )
    ]
    headings = ("blocks", "M tokens", "block hit %", "of ceiling %", "token hit % 2nd half")
    return Table("One LRU cache by its capacity", headings, rows)


def _sharing(sharing: Sharing) -> Table:
    hot = f"{whole(sharing.hot_blocks)} hot block{'s' * (sharing.hot_blocks != 1)}"
    rows = [
        ("different first blocks", whole(sharing.roots)),
        ("most popular, % of requests", " / ".join(map(percent, sharing.top_roots))),
        ("Zipf exponent of first blocks (R²)", _zipf(sharing.root_zipf)),
        ("Zipf exponent of all blocks (R²)", _zipf(sharing.block_zipf)),
        (f"hits in {hot}, % of all blocks", percent(sharing.hot_hit)),
        ("hits of turns that continue a session, %", percent(sharing.continuation_hit)),
        ("other hits, %", percent(sharing.other_hit)),
    ]
    return Table("Sharing", _FIGURES, rows)


def _zipf(fit: tuple[float, float]) -> str:
    exponent, r2 = fit
    return "-" if math.isnan(exponent) else f"{number(exponent)} ({r2:.2f})"


def _sessions(sessions: Sessions) -> Table:
    rows = [
        ("sessions", whole(sessions.sessions)),
        ("with several turns, %", percent(sessions.multi_turn_sessions)),
        ("requests in those, %", percent(sessions.multi_turn_requests)),
    ]
    how = "derived from prefixes" if sessions.derived else "as the trace states them"
    return Table(f"Sessions, {how}", _FIGURES, rows)


def _quantiles(found: Statistics) -> Table:
    sessions = found.sessions
    rows = [
        _row("turns of a session", sessions.turns),
        _row("gap between turns, s", sessions.gap),
        _row("growth a turn, tokens", sessions.growth),
        _row("  without the answer before", sessions.added),
        _row("reuse gap, s", found.reuse_gap),
    ]
    title = "Turns and gaps; reuse gap: since the last use of a block used again, hot ones left out"
    if sessions.closed_loop:
        title += (
            f"\nFollow-ups wait for answers, taken to need {FIRST_TOKEN:g} s and "
            f"{1000 * PER_TOKEN:g} ms a token"
        )
    return Table(title, ("", *_QUANTILES), rows)


def _row(name: str, values: Quantiles) -> tuple[str, ...]:
    return (name, *(_short(values[level]) if level in values else "" for level in _QUANTILES))


def _short(value: float) -> str:
    return whole(value) if abs(value) >= 100 or value == round(value) else number(value)
