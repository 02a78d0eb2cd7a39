"""One router's parameters searched by Optuna on training episodes.

TPE (Bergstra et al., NeurIPS 2011) proposes parameters; every trial plays the same episodes, a few
at a time, and is given up once its mean is below the median of the earlier trials at that point.
The first trial has the defaults. Trials are kept in a journal file. The sampler of each trial is
seeded by the search's seed and the number of trials before it, so a search that was killed goes on
as it would have gone on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from prefixgym.baselines.router import make_router
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.goodput_objective import GoodputObjective
from prefixgym.experiments.tuning.spaces import Value, defaults, suggest

OVER = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(frozen=True)
class Tuning:
    """What is tuned for, the same for all routers that are compared.

    Attributes:
        scenario: cluster, workload, objectives and what the router may know; its `num_requests` is
            the length of the training episodes.
        rate: requests/s.
        trials: of each router, the one with its defaults and those given up included.
        rungs: how often a trial may be given up, plus one.
        episodes: of each rung.
        seed: of the search.
    """

    scenario: Scenario
    rate: float
    trials: int = 30
    rungs: int = 3
    episodes: int = 2
    seed: int = 0

    @property
    def seeds(self) -> range:
        """The training episodes of every trial."""
        return self.scenario.seeds.of("train")[: self.rungs * self.episodes]

    @property
    def decisions(self) -> int:
        """Of a trial that is not given up."""
        return self.scenario.num_requests * len(self.seeds)


@dataclass(frozen=True)
class Tuned:
    """What was found.

    Attributes:
        router: its name.
        parameters: those that were searched.
        score: of these on the training episodes, see `prefixgym.experiments.goodput_objective`.
        default_score: of the defaults.
        trials: how many there were.
        given_up: how many of these were not played to their end.
    """

    router: str
    parameters: dict[str, Value]
    score: float
    default_score: float
    trials: int
    given_up: int


def tune(
    tuning: Tuning, router: str, folder: Path, on_trial: Callable[[], None] = lambda: None
) -> Tuned:
    """Search on until `trials` trials are over.

    Args:
        tuning: what for.
        router: whose parameters.
        folder: where the journal `ROUTER.journal` is kept; must exist.
        on_trial: called after every trial.

    Raises:
        ValueError: the router has nothing to tune, or the journal is of another search.
    """
    first = defaults(router)
    study = _open(tuning, router, folder)
    objective = GoodputObjective(tuning.scenario, tuning.rate, tuning.episodes)
    while (done := len(study.get_trials(deepcopy=False, states=OVER))) < tuning.trials:
        chance = np.random.SeedSequence([tuning.seed, done]).generate_state(1)[0]
        study.sampler = optuna.samplers.TPESampler(seed=int(chance))
        if done == 0:
            study.enqueue_trial(first)
        trial = study.ask()
        _play(trial, study, router, objective, tuning)
        on_trial()
    objective.close()
    trials = study.get_trials(deepcopy=False, states=OVER)
    (default,) = [trial.value for trial in trials[:1]]
    best = study.best_trial
    given_up = sum(trial.state == TrialState.PRUNED for trial in trials)
    return Tuned(router, best.params, best.values[0], float(default or 0.0), len(trials), given_up)


def trials_over(tuning: Tuning, router: str, folder: Path) -> int:
    """How many trials of a search are over already."""
    if not _journal(router, folder).exists():
        return 0
    return len(_open(tuning, router, folder).get_trials(deepcopy=False, states=OVER))


def _journal(router: str, folder: Path) -> Path:
    return folder / f"{router}.journal"


def _open(tuning: Tuning, router: str, folder: Path) -> optuna.Study:
    """The study in the journal; trials that a killed process had begun are void."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(_journal(router, folder))))
    study = optuna.create_study(
        study_name=router,
        storage=storage,
        direction="maximize",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
    )
    identity = _identity(tuning)
    known = study.user_attrs.get("identity")
    if known is None:
        study.set_user_attr("identity", identity)
    elif known != identity:
        differs = next(key for key in identity if known.get(key) != identity[key])
        raise ValueError(
            f"{_journal(router, folder)}: its search has another {differs}; choose another folder, "
            "or the same settings to go on"
        )
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.WAITING)):
        begun = study.ask() if trial.state == TrialState.WAITING else trial
        study.tell(begun.number, state=TrialState.FAIL)
    return study


def _identity(tuning: Tuning) -> dict[str, str]:
    """Everything but the number of trials, as text: more of them go on."""
    values = {key: repr(getattr(tuning, key)) for key in ("rate", "rungs", "episodes", "seed")}
    return {"scenario": repr(tuning.scenario.identity())} | values


def _play(
    trial: optuna.Trial,
    study: optuna.Study,
    router: str,
    objective: GoodputObjective,
    tuning: Tuning,
) -> None:
    """One trial, rung by rung."""
    made = make_router(router, suggest(trial, router))
    scores: list[float] = []
    for rung in range(tuning.rungs):
        seeds = tuning.seeds[rung * tuning.episodes : (rung + 1) * tuning.episodes]
        scores += objective(made, seeds).tolist()
        trial.report(float(np.mean(scores)), rung)
        if rung + 1 < tuning.rungs and trial.should_prune():
            study.tell(trial, state=TrialState.PRUNED)
            return
    study.tell(trial, float(np.mean(scores)))
