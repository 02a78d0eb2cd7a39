"""`prefixgym tune ROUTER`: search a router's parameters, or those of all routers."""

from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefixgym.experiments.console import RUNS, Json, print_json, print_tables
from prefixgym.experiments.settings import ScenarioSettings, scenario_settings
from prefixgym.experiments.workers import cores, die_with_parent

if TYPE_CHECKING:
    from prefixgym.envs.scenarios.schema import Scenario
    from prefixgym.experiments.tuning.study import Tuning


def tune(
    router: Annotated[
        list[str], typer.Argument(help="See `prefixgym routers`; all for all that can be tuned.")
    ],
    scenario: Annotated[str, typer.Option(help="A name or a .toml file.")],
    settings: ScenarioSettings = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests/s, by default the middle of the ladder.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Of each router, its defaults included.")] = 30,
    episodes: Annotated[
        int, typer.Option(min=1, help="Training episodes of a rung, of which there are three.")
    ] = 2,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Of a training episode, by default the scenario's.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Validation episodes.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Of the search.")] = 0,
    name: Annotated[
        str,
        typer.Option(help="Keep trials and results in runs/NAME; by default tune-SCENARIO."),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="TOML file to add results to, instead of runs/NAME/tuned.toml; trials stay in "
            "runs/NAME."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one a core.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Search parameters by Optuna on training episodes, with the same budget for each router.

    The same command again goes on from where it was interrupted; more trials may be asked for.
    """
    from prefixgym.envs.scenarios.registry import load_scenario
    from prefixgym.experiments.progress import progress_of
    from prefixgym.experiments.scenario_tables import middle_rate
    from prefixgym.experiments.tuning.report import tuned_table
    from prefixgym.experiments.tuning.spaces import SPACES, space_of
    from prefixgym.experiments.tuning.study import Tuning
    from prefixgym.experiments.tuning.tuned_file import write

    names = list(SPACES) if router == ["all"] else router
    for one in names:
        space_of(one)
    whole = load_scenario(scenario, scenario_settings(settings))
    tuning = Tuning(
        whole if requests is None else whole.with_num_requests(requests),
        middle_rate(whole) if rate is None else rate,
        trials,
        episodes=episodes,
        seed=seed,
    )
    folder = RUNS / (name or f"tune-{whole.name}")
    trials_folder = folder / f"{tuning.rate:g}"
    trials_folder.mkdir(parents=True, exist_ok=True)
    path = out or folder / "tuned.toml"
    tables: dict[str, Any] = {}
    processes = min(workers or cores(), len(names))
    with (
        ProcessPoolExecutor(processes, get_context("spawn"), initializer=die_with_parent) as pool,
        progress_of([1] * len(names), len(names), "routers") as on_end,
    ):
        jobs = [pool.submit(_tuned, tuning, whole, one, seeds, trials_folder) for one in names]
        for job in as_completed(jobs):
            one, table = job.result()
            tables[one] = table
            write(path, {one: table})
            on_end(1)
    if as_json:
        print_json({"scenario": whole.name, "file": str(path), "routers": tables})
        return
    print_tables([tuned_table(f"{whole.name}, {tuning.rate:g} requests/s", tables)])
    typer.echo(f"\nwritten: {path}")


def _tuned(
    tuning: "Tuning", whole: "Scenario", router: str, seeds: int, folder: Path
) -> tuple[str, dict[str, Any]]:
    """One router's search and validation, in a process of its own."""
    from prefixgym.experiments.tuning.study import tune as search
    from prefixgym.experiments.tuning.tuned_file import table_of, validated

    found = search(tuning, router, folder)
    validation = validated(found, whole, tuning.rate, whole.seeds.of("validation")[:seeds])
    return router, table_of(found, tuning, validation)
