"""What a training is: one TOML file, or the defaults, with single keys overridden."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from prefixgym.agents.files import weights_file
from prefixgym.agents.linear_score import load_weights
from prefixgym.agents.scorer import COLUMNS
from prefixgym.envs.scenarios.randomisation import Randomisation
from prefixgym.envs.scenarios.registry import load_scenario, toml_value
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.scenario_tables import middle_rate
from prefixgym.experiments.toml_text import toml_text
from prefixgym.experiments.training.judge import TAIL_LIMIT


class Training(BaseModel):
    """What all learners have in common.

    Attributes:
        scenario: a name or a .toml file.
        settings: dotted keys of the scenario and their values as TOML text.
        rate: requests/s; by default the middle of the scenario's ladder.
        num_requests: decisions of a training episode; by default the scenario's. Judgements are of
            whole episodes always.
        steps: decisions to learn from.
        seed: of the network, of what it tries and of the episodes.
        clusters: environments that are played at once.
        threads: of the simulator.
        hidden, attention: as for `InstanceScorer`.
        prior: weights of a linear score over the instance columns, which the network corrects; or
            their file, as learned:PATH or learned/NAME. Empty: none.
        sharpness: factor on the prior. While it learns, an instance is drawn with a probability
            proportional to exp(score), so this is how closely the prior is followed at first.
        tardiness, cap: price of late requests, as for the rewards (`prefixgym.envs.reward`).
        discount_time: s after which what is earned counts 1/e of now.
        randomise: what differs from episode to episode, as for the environment.
        evaluate_every: decisions between two judgements.
        validation_episodes: validation seeds of a judgement.
        test_episodes: test seeds of the final report.
        handcrafted: routers to be held against, with parameters as NAME:KEY=VALUE,….
        tail_limit: a checkpoint counts only if its p99 TTFT is at most so many times that of the
            handcrafted router with the best attainment.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    scenario: str = "chat-8"
    settings: dict[str, str] = {}
    rate: float | None = Field(default=None, gt=0)
    num_requests: int | None = Field(default=None, ge=1)
    steps: int = Field(default=1_000_000, ge=1)
    seed: int = Field(default=0, ge=0)
    clusters: int = Field(default=32, ge=1)
    threads: int = Field(default=1, ge=1)
    hidden: int = Field(default=32, ge=1)
    attention: bool = False
    prior: dict[str, float] = {"ttft": -20.0, "hit": 2.0, "requests": -2.0}
    sharpness: float = Field(default=3.0, gt=0)
    tardiness: float = Field(default=0.25, ge=0)
    cap: float = Field(default=8.0, gt=0)
    discount_time: float = Field(default=20.0, gt=0)
    randomise: Randomisation = Randomisation()
    evaluate_every: int = Field(default=200_000, ge=1)
    validation_episodes: int = Field(default=4, ge=1)
    test_episodes: int = Field(default=10, ge=1)
    handcrafted: tuple[str, ...] = ("loadaware:beta=0.5", "llmd_precise", "smetric")
    tail_limit: float = Field(default=TAIL_LIMIT, gt=0)

    @field_validator("prior", mode="before")
    @classmethod
    def _read(cls, prior: Any) -> Any:
        return load_weights(weights_file(prior)) if isinstance(prior, str) else prior

    @model_validator(mode="after")
    def _columns_exist(self) -> Self:
        if unknown := sorted(set(self.prior) - set(COLUMNS)):
            raise ValueError(f"prior: found {unknown}, allowed: {', '.join(COLUMNS)}")
        if not self.handcrafted:
            raise ValueError("handcrafted: found none, must be at least one router")
        return self

    @property
    def prior_weights(self) -> list[float] | None:
        """The prior as `InstanceScorer` takes it."""
        if not self.prior:
            return None
        return [self.sharpness * self.prior.get(column, 0.0) for column in COLUMNS]

    def load_scenario(self) -> Scenario:
        """The scenario with its settings."""
        return load_scenario(self.scenario, self.settings)

    def rate_of(self, scenario: Scenario) -> float:
        """The load."""
        return middle_rate(scenario) if self.rate is None else self.rate

    def toml(self) -> str:
        """A file that says the same."""
        given = {k: v for k, v in self.model_dump().items() if v is not None}
        given["settings"] = {f'"{key}"': text for key, text in self.settings.items()}
        return "".join(f"{key} = {toml_text(value)}\n" for key, value in given.items())


class PPO(Training):
    """Proximal policy optimisation, see `prefixgym.experiments.training.ppo`.

    Attributes:
        credit: which decision is rewarded for a request. `attributed`: the one that routed it;
            `goodput`: the last before it ended; `shaped`: as goodput, and what is expected of the
            requests in flight is paid as it changes.
        rollouts_per_arrivals: clusters that see the same requests at the same times.
        rollout: decisions of each cluster in an update.
        wait: decisions of each cluster between a decision and the update that learns from it, so
            that its request has ended by then. Only for attributed credit.
        epochs: passes over a rollout.
        minibatch: decisions in a gradient step.
        learning_rate: of Adam, at first; falls linearly to a tenth.
        gae_lambda: of generalised advantage estimation.
        entropy: coefficient of the entropy bonus.
        clip: furthest that a decision's probability may be moved, as a ratio.
        max_gradient: norm to which gradients of actor and critic are clipped, each.
        checkpoint_every: updates between two checkpoints.
    """

    credit: Literal["attributed", "goodput", "shaped"] = "attributed"
    rollouts_per_arrivals: int = Field(default=8, ge=2)
    rollout: int = Field(default=256, ge=1)
    wait: int = Field(default=384, ge=0)
    epochs: int = Field(default=6, ge=1)
    minibatch: int = Field(default=4096, ge=1)
    learning_rate: float = Field(default=1e-2, gt=0)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    entropy: float = Field(default=0.0, ge=0)
    clip: float = Field(default=0.2, gt=0)
    max_gradient: float = Field(default=0.5, gt=0)
    checkpoint_every: int = Field(default=10, ge=1)

    @model_validator(mode="after")
    def _groups_are_whole(self) -> Self:
        if self.clusters % self.rollouts_per_arrivals:
            raise ValueError(
                f"clusters: found {self.clusters}, must be a multiple of rollouts_per_arrivals, "
                f"which is {self.rollouts_per_arrivals}"
            )
        return self

    @property
    def waited(self) -> int:
        """Decisions of each cluster that are played before they are learned from."""
        return self.wait if self.credit == "attributed" else 0

    @property
    def updates(self) -> int:
        """How many updates it takes to make `steps` decisions, the last one whole."""
        return -(-self.steps // (self.clusters * self.rollout))


class OffTheShelf(Training):
    """An algorithm of Stable-Baselines3 or sb3-contrib.

    Attributes:
        reward: `goodput` or `shaped`, as for `PPO.credit`.
        arguments: keyword arguments of the algorithm that replace those of
            `prefixgym.experiments.training.sb3`.
    """

    reward: Literal["goodput", "shaped"] = "shaped"
    arguments: dict[str, Any] = {}

    @property
    def choices(self) -> dict[str, Any]:
        """Keyword arguments of the policy."""
        return {"hidden": self.hidden, "prior": self.prior_weights, "attention": self.attention}


class FlatOffTheShelf(OffTheShelf):
    """The same with the algorithm's own plain network over the whole observation.

    Attributes:
        hidden: units of each of its two layers.
        attention, prior: it has neither.
    """

    hidden: int = Field(default=64, ge=1)
    attention: Literal[False] = False
    prior: dict[str, float] = Field(default={}, max_length=0)

    @property
    def choices(self) -> dict[str, Any]:
        """Keyword arguments of the policy."""
        return {"net_arch": [self.hidden, self.hidden]}


T = TypeVar("T", bound=Training)


def make_training(kind: type[T], file: Path | None, overrides: Mapping[str, Any]) -> T:
    """A training from a file, or the defaults, with some dotted keys overridden.

    Strings among the overrides are TOML text. Dotted keys that are none of the training's are the
    scenario's.

    Raises:
        ValueError: unreadable file, unknown key, or a value that is not allowed.
    """
    document: dict[str, Any] = {}
    name = "--set" if file is None else file.name
    if file is not None:
        try:
            document = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"{file}: not a readable TOML file: {error}") from None
    for key, text in overrides.items():
        table, _, below = key.partition(".")
        value = toml_value(text) if isinstance(text, str) else text
        if not below:
            document[key] = value
        elif table in kind.model_fields:
            document[table] = dict(document.get(table, kind.model_fields[table].default))
            document[table][below] = text if table == "settings" else value
        else:
            document["settings"] = {**document.get("settings", {}), key: text}
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise ValueError(f"{name}: {_explained(kind, error)}") from None


def _explained(kind: type[BaseModel], error: ValidationError) -> str:
    detail = error.errors(include_url=False)[0]
    key = ".".join(map(str, detail["loc"]))
    if detail["type"] == "extra_forbidden":
        section = Randomisation if len(detail["loc"]) > 1 else kind
        return f"{key}: no such key, allowed: {', '.join(section.model_fields)}"
    if detail["type"] == "value_error":
        return ": ".join(filter(None, (key, str(detail["ctx"]["error"]))))
    return f"{key}: found {detail['input']!r}, {detail['msg'][0].lower()}{detail['msg'][1:]}"
