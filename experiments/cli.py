"""The command `prefixgym`: parses arguments, calls the modules beside it, prints.

A wrong argument, file or value is one line on stderr and exit status 2; `--json` prints one object
on stdout and nothing else there. Heavy modules are imported by the commands that use them.
"""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from prefixgym.experiments.analyze_commands import analyze
from prefixgym.experiments.console import RUNS, Json, print_json, print_tables
from prefixgym.experiments.contest_commands import contest
from prefixgym.experiments.distil_commands import distil
from prefixgym.experiments.evolve_commands import evolve
from prefixgym.experiments.explain_commands import explain
from prefixgym.experiments.imitate_commands import imitate
from prefixgym.experiments.paper_commands import paper
from prefixgym.experiments.reference_commands import references
from prefixgym.experiments.router_commands import app as routers_app
from prefixgym.experiments.scenario_commands import app as scenarios_app
from prefixgym.experiments.settings import (
    ScenarioSettings,
    Settings,
    scenario_settings,
    split_settings,
)
from prefixgym.experiments.trace_commands import Format, ReaderOptions, reader_options
from prefixgym.experiments.trace_commands import app as trace_app
from prefixgym.experiments.train_commands import app as train_app
from prefixgym.experiments.tune_commands import tune
from prefixgym.experiments.workers import cores


class _OneLineErrors(typer.core.TyperGroup):
    """Turns what users can cause, a ValueError or OSError, into one line and exit status 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, OSError) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=_OneLineErrors,
    help="Prefix-cache-aware request routing: simulate, compare, learn.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(analyze)
app.command()(contest)
app.command()(evolve)
app.command()(explain)
app.command()(imitate)
app.command()(distil)
app.command()(paper)
app.command()(references)
app.command()(tune)
app.add_typer(routers_app, name="routers")
app.add_typer(scenarios_app, name="scenarios")
app.add_typer(trace_app, name="trace")
app.add_typer(train_app, name="train")


@app.command()
def leaderboard(
    suite: Annotated[
        str, typer.Option(help="What to run: quick, default, faults or full.")
    ] = "default",
    scenario: Annotated[
        list[str] | None, typer.Option(help="Only this one, a name or .toml file. Repeatable.")
    ] = None,
    router: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this one, by default all but references that know the truth. Repeatable."
        ),
    ] = None,
    settings: ScenarioSettings = None,
    trace: Annotated[
        list[Path] | None, typer.Option(help="Replay this trace as well. Repeatable.")
    ] = None,
    name: Annotated[str, typer.Option(help="Write to runs/NAME; by default the suite's.")] = "",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one a core.")
    ] = None,
    fresh: Annotated[bool, typer.Option(help="Evaluate finished cells again.")] = False,
    as_json: Json = False,
) -> None:
    """Compare routers on scenarios, loads and seeds.

    The same command again continues a run that was interrupted.
    """
    from prefixgym.envs.scenarios.registry import load_scenario, scenario_names
    from prefixgym.experiments.leaderboard import (
        cells_of,
        deployable_routers,
        play_missing,
        read_cells,
        suite_called,
        trace_ladder,
    )
    from prefixgym.experiments.report import Report

    size, overrides = suite_called(suite), scenario_settings(settings)
    names = scenario or size.scenarios or scenario_names()
    scenarios = [load_scenario(name, overrides) for name in names]
    scenarios += [trace_ladder(path, overrides) for path in trace or []]
    cells = cells_of(size, scenarios, router or deployable_routers())
    folder = RUNS / (name or suite)
    failures = play_missing(cells, folder / "cells", workers or cores(), fresh=fresh)
    report = Report.of(read_cells(cells, folder / "cells"), failures)
    files = report.write(folder, f"Leaderboard: {name or suite}")
    if as_json:
        print_json(report.json() | {"files": {key: str(path) for key, path in files.items()}})
    else:
        print_tables(report.tables())
        typer.echo(f"\nwritten: {', '.join(map(str, files.values()))}")
    for failure in failures:
        typer.echo(f"failed: {failure.cell.key}: {failure.message}", err=True)
    raise typer.Exit(1 if failures else 0)


@app.command()
def evaluate(
    router: Annotated[str, typer.Argument(help="See `prefixgym routers`.")],
    scenario: Annotated[str, typer.Option(help="A name or a .toml file.")],
    settings: Settings = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(help="Requests/s, by default the scenario's ladder. Repeatable."),
    ] = None,
    split: Annotated[str, typer.Option(help="Seeds: train, validation or test.")] = "test",
    seeds: Annotated[int, typer.Option(min=1, help="Episodes, a seed each.")] = 10,
    capacity: Annotated[
        bool, typer.Option(help="Also search the highest rate with 90 % attainment.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure one router on one scenario."""
    import polars as pl

    from prefixgym.baselines.router import make_router
    from prefixgym.envs.scenarios.registry import load_scenario
    from prefixgym.experiments.capacity import find_capacity
    from prefixgym.experiments.evaluate import Cell
    from prefixgym.experiments.evaluate import evaluate as evaluate_cell
    from prefixgym.experiments.progress import progress_of
    from prefixgym.experiments.ranking import summarise
    from prefixgym.experiments.table import rates_table

    parameters, overrides = split_settings(settings)
    chosen = load_scenario(scenario, overrides)
    full = dataclasses.asdict(make_router(router, parameters))
    numbers = chosen.seeds.of(split)[:seeds]

    def cell(at: float) -> Cell:
        return Cell(chosen, at, router, tuple(numbers), parameters)

    rates = rate or chosen.rates
    episodes = []
    with progress_of([cell(at).decisions for at in rates], len(rates)) as on_end:
        for at in rates:
            episodes.append(evaluate_cell(cell(at)))
            on_end(cell(at).decisions)
    summary = summarise(pl.concat(episodes))
    result: dict[str, Any] = {
        "scenario": chosen.name,
        "router": router,
        "parameters": full,
        "split": split,
        "cells": summary.to_dicts(),
    }
    if capacity:
        result["capacity"] = find_capacity(
            lambda at: float(evaluate_cell(cell(at))["attainment"].mean()),  # type: ignore[arg-type]
            start=rates[0],
        )
    if as_json:
        print_json(result)
        return
    print_tables([rates_table(summary)])
    if capacity:
        typer.echo(f"\ncapacity: {result['capacity']:.3g} requests/s with 90 % attainment")


@app.command()
def watch(
    router: Annotated[str, typer.Argument(help="See `prefixgym routers`.")],
    scenario: Annotated[str, typer.Option(help="A name or a .toml file.")],
    settings: Settings = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests/s, by default the middle of the ladder.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the episode, by default the first to test with.")
    ] = None,
    skip: Annotated[int, typer.Option(min=0, help="Decisions to take before the first shown.")] = 0,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Decisions to show, by default all that follow.")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Show each K-th decision.", metavar="K")] = 1,
    speed: Annotated[float, typer.Option(help="Times as fast as it would happen.")] = 1.0,
    gif: Annotated[Path | None, typer.Option(help="Also write the episode there.")] = None,
) -> None:
    """See a router at work, in the terminal or as a GIF.

    Ctrl-C ends it; what was seen so far is still written. Without a terminal only the last decision
    is printed.
    """
    from prefixgym.baselines.router import make_router
    from prefixgym.envs.scenarios.registry import load_scenario
    from prefixgym.experiments.scenario_tables import middle_rate
    from prefixgym.experiments.watch import Episode, Film
    from prefixgym.experiments.watch import watch as show

    if speed <= 0:
        raise ValueError(f"--speed: found {speed}, must be above 0")
    parameters, overrides = split_settings(settings)
    chosen = load_scenario(scenario, overrides)
    episode = Episode(
        chosen,
        middle_rate(chosen) if rate is None else rate,
        make_router(router, parameters),
        chosen.seeds.of("test")[0] if seed is None else seed,
        skip,
        steps,
        every,
    )
    film = None if gif is None else Film(gif, speed, episode.num_frames)
    show(episode.frames(), speed, film)
    if film is not None:
        film.write()
        typer.echo(f"written: {gif}")


@app.command()
def replay(
    trace: Annotated[Path, typer.Argument(help="A file in any of `prefixgym trace formats`.")],
    router: Annotated[str, typer.Option(help="See `prefixgym routers`.")],
    profile: Annotated[
        str, typer.Option(help="Of every instance, see `prefixgym profiles`.")
    ] = "llama-3.1-70b/h100/tp4",
    instances: Annotated[int, typer.Option(min=1)] = 10,
    blocks: Annotated[
        int | None, typer.Option(min=1, help="KV blocks an instance; by default the profile's.")
    ] = None,
    format: Format = None,
    options: ReaderOptions = None,
    block_size: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens in a block of the file; inferred if its rows allow one."),
    ] = None,
    speedup: Annotated[float, typer.Option(help="Times as fast as recorded.")] = 1.0,
    ttft: Annotated[float, typer.Option(help="Objective, s.")] = 30.0,
    tpot: Annotated[float, typer.Option(help="Objective, s a token.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Of the router and of spreading.")] = 0,
    spread: Annotated[
        bool, typer.Option(help="Spread stamps that were recorded in batches of seconds.")
    ] = True,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Route one trace and tell how it went.

    A file in the native format may be of any length: it is read while it is played.
    """
    from prefixgym.baselines.router import make_router
    from prefixgym.envs.scenarios.registry import trace_scenario
    from prefixgym.envs.scenarios.workloads import recorded_rate
    from prefixgym.experiments.replay import replay as replay_trace
    from prefixgym.experiments.table import episode_table

    if speedup <= 0:
        raise ValueError(f"--speedup: found {speedup}, must be above 0")
    parameters, overrides = split_settings(settings)
    flags = {
        "cluster.instances.0.profile": json.dumps(profile),
        "cluster.instances.0.count": str(instances),
        "slo.ttft": str(ttft),
        "slo.tpot": str(tpot),
        "workload.spread": json.dumps(spread),
    }
    if blocks is not None:
        flags["cluster.instances.0.kv_blocks"] = str(blocks)
    reading = reader_options(options)
    for key, value in (("format", format), ("trace_block_size", block_size)):
        if value is not None:
            reading[key] = value
    rate = speedup * recorded_rate(trace, **reading)
    scenario = trace_scenario(trace, [rate], flags | overrides, **reading)
    episode = replay_trace(make_router(router, parameters), scenario, rate, seed)
    if as_json:
        print_json({"trace": str(trace), "speedup": speedup, **episode})
        return
    print_tables([episode_table(f"{trace.name}, {router}, {rate:.3g} requests/s", episode)])


@app.command()
def profiles(as_json: Json = False) -> None:
    """List the profiles: models on their GPUs."""
    from prefixgym.envs.cluster.profiles import profile, profile_names
    from prefixgym.experiments.table import Table

    found = [profile(name) for name in profile_names()]
    if as_json:
        print_json({p.name: dataclasses.asdict(p) for p in found})
        return
    rows = [
        (
            p.name,
            p.model,
            f"{p.tp} x {p.gpu.upper()}",
            f"{p.kv_capacity_tokens:,}",
            "" if p.errors is None else f"{p.errors.prefill_mape:.1f}",
            "" if p.errors is None else f"{p.errors.decode_mape:.1f}",
        )
        for p in found
    ]
    headings = ("profile", "model", "GPUs", "KV tokens", "prefill error %", "decode error %")
    print_tables([Table("Profiles", headings, rows)])


@app.command()
def bench(
    trace: Annotated[
        Path | None, typer.Option(help="Mooncake trace of the replay; skipped where it is absent.")
    ] = None,
    peer: Annotated[
        bool, typer.Option(help="Install NVIDIA Dynamo (75 MB) in runs/peers and measure it too.")
    ] = True,
    page: Annotated[
        Path | None, typer.Option(help="Also write the figures there, docs/benchmarks.md say.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the simulator's speed beside named peers, about three minutes."""
    from prefixgym.experiments.bench.dynamo_peer import install
    from prefixgym.experiments.bench.report import markdown, measure, shown
    from prefixgym.experiments.bench.speed import TRACE, machine

    recorded = trace or (TRACE if TRACE.exists() else None)
    peer_python = None
    if recorded is not None and peer:
        folder = RUNS / "peers" / "dynamo"
        peer_python = folder / "bin" / "python"
        if not peer_python.exists():
            typer.echo("installing the peer: ai-dynamo-runtime", err=True)
            peer_python = install(folder)
    found = measure(recorded, peer_python, lambda what: typer.echo(f"measuring: {what}", err=True))
    if page is not None:
        page.write_text(markdown(found), encoding="utf-8")
    if as_json:
        print_json({"machine": machine(), "measurements": [vars(item) for item in found]})
        return
    typer.echo(machine())
    for item in found:
        wanted = (
            f"  wanted {item.wanted}: {'met' if item.met else 'NOT met'}" if item.wanted else ""
        )
        typer.echo(f"  {item.what:<62} {shown(item):>22}{wanted}")
    if recorded is None:
        typer.echo(f"left out: the trace replay, no trace at {TRACE} (use --trace)")


def main() -> None:
    """Entry point of the console script."""
    app()
