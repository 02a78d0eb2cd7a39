"""The commands `prefixgym train ALGORITHM`: learn a router, compare it with handcrafted ones."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefixgym.experiments.console import RUNS, Json, print_json, print_tables
from prefixgym.experiments.settings import scenario_settings

if TYPE_CHECKING:
    from prefixgym.experiments.training.config import Training
    from prefixgym.experiments.training.report import TrainingReport

app = typer.Typer(help="Train a router.", no_args_is_help=True)

Scenario = Annotated[str | None, typer.Option(help="A name or a .toml file; by default chat-8.")]
Rate = Annotated[
    float | None, typer.Option(help="Requests/s, by default the middle of the ladder.")
]
Config = Annotated[
    Path | None, typer.Option(help="A TOML file with the training's keys, see docs/training.md.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A key of the training (steps=1000000, prior.ttft=-10) or of the scenario "
        "(slo.ttft=1.0). Repeatable.",
    ),
]
Name = Annotated[
    str, typer.Option(help="Write to runs/NAME; by default algorithm, scenario and seed.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Forget what runs/NAME holds.")]


def _overrides(
    scenario: str | None, rate: float | None, settings: list[str] | None
) -> dict[str, object]:
    found: dict[str, object] = dict(scenario_settings(settings))
    if scenario is not None:
        found["scenario"] = f'"{scenario}"'
    if rate is not None:
        found["rate"] = rate
    return found


def _folder(algorithm: str, name: str, training: "Training") -> Path:
    return RUNS / (name or f"{algorithm}-{Path(training.scenario).stem}-{training.seed}")


@app.command()
def ppo(
    scenario: Scenario = None,
    rate: Rate = None,
    config: Config = None,
    settings: Settings = None,
    name: Name = "",
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """PPO on groups of clusters that see the same requests; the recipe that learns best.

    The same command again continues a training that was interrupted.
    """
    from prefixgym.experiments.progress import progress_of
    from prefixgym.experiments.training.config import PPO, make_training
    from prefixgym.experiments.training.ppo import updates_made
    from prefixgym.experiments.training.run_folder import RunFolder
    from prefixgym.experiments.training.session import run_ppo

    training = make_training(PPO, config, _overrides(scenario, rate, settings))
    folder = _folder("ppo", name, training)
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    left = training.updates - updates_made(RunFolder(folder, training, "ppo"))
    work = [training.clusters * training.rollout] * left
    with progress_of(work, training.updates, "updates") as on_update:
        found = run_ppo(training, folder, on_update)
    _show(found, folder, as_json)


def _show(found: "TrainingReport", folder: Path, as_json: bool) -> None:
    if as_json:
        print_json({"folder": str(folder), **found.json()})
        return
    print_tables([found.table()])
    typer.echo(
        f"\nwritten: {folder}/best.safetensors; a router called learned:{folder}/best.safetensors"
        f"\nsee the training with tensorboard --logdir {folder}"
    )


def _off_the_shelf(algorithm: str, what: str, network: str = "the same scorer") -> None:
    """Add the command of one of `training.sb3.SHELVES`, which is too heavy to import here."""

    def command(
        scenario: Scenario = None,
        rate: Rate = None,
        config: Config = None,
        settings: Settings = None,
        name: Name = "",
        fresh: Fresh = False,
        as_json: Json = False,
    ) -> None:
        from prefixgym.experiments.progress import progress_of_requests
        from prefixgym.experiments.training.config import make_training
        from prefixgym.experiments.training.run_folder import RunFolder
        from prefixgym.experiments.training.sb3 import SHELVES
        from prefixgym.experiments.training.session import finished, run_off_the_shelf

        training = make_training(
            SHELVES[algorithm].training, config, _overrides(scenario, rate, settings)
        )
        folder = _folder(algorithm, name, training)
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        found = finished(training, RunFolder(folder, training, algorithm))
        if found is None:
            with progress_of_requests(training.steps) as on_steps:
                found = run_off_the_shelf(training, algorithm, folder, on_steps)
        _show(found, folder, as_json)

    command.__doc__ = f"{what}, as it comes, with {network}. Starts anew when interrupted."
    app.command(algorithm)(command)


_off_the_shelf("sb3-ppo", "Stable-Baselines3's PPO")
_off_the_shelf("flat-ppo", "Stable-Baselines3's PPO", "its own plain MLP over all columns")
_off_the_shelf("maskable-ppo", "sb3-contrib's MaskablePPO")
_off_the_shelf("a2c", "Stable-Baselines3's A2C")
_off_the_shelf("dqn", "Stable-Baselines3's DQN")
_off_the_shelf("qrdqn", "sb3-contrib's QR-DQN")
