"""Weights of networks that score instances: a safetensors file with a card of where they come from.

Reading one executes nothing from it. The card is JSON in the file's metadata, so that weights and
what is known of them cannot be parted.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from prefixgym.agents.flat_scorer import FlatScorer
from prefixgym.agents.scorer import InstanceScorer
from prefixgym.envs.observation import INSTANCE_FIELDS, REQUEST_FIELDS

_CARD = "card"

Scorer = InstanceScorer | FlatScorer
"""The networks whose weights can be kept."""


@dataclass(frozen=True)
class Card:
    """What there is to know of weights.

    Attributes:
        hidden: units of a layer.
        attention: as for `InstanceScorer`.
        prior: whether they correct a linear score; its weights are in the file.
        network: `instances`, an `InstanceScorer`, or `flat`, a `FlatScorer`.
        num_instances: how many a flat network is for; None: any number.
        columns: names of what the network sees, the request's after the instance's.
        command: what made them.
        commit: of the repository then.
        seed: of that training.
        training_seconds: what it took.
        scenario: what they were trained on.
        table: how they did on test seeds: routers, and their metrics.
    """

    hidden: int
    attention: bool
    prior: bool
    network: str = "instances"
    num_instances: int | None = None
    columns: tuple[str, ...] = tuple(f.name for f in (*INSTANCE_FIELDS, *REQUEST_FIELDS))
    command: str = ""
    commit: str = ""
    seed: int = 0
    training_seconds: float = 0.0
    scenario: str = ""
    table: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def card_of(scorer: Scorer, **known: Any) -> Card:
    """The card of this network; `known` says the rest."""
    if isinstance(scorer, FlatScorer):
        return Card(scorer.hidden, False, False, "flat", scorer.num_instances, **known)
    hidden = scorer.head.in_features
    attention = len(scorer.encoder.attention) > 0
    return Card(hidden, attention, scorer.prior is not None, **known)


def save_weights(path: Path, scorer: Scorer, card: Card) -> None:
    """Write both to one file; its folder must exist."""
    tensors = {name: tensor.contiguous() for name, tensor in scorer.state_dict().items()}
    save_file(tensors, path, {_CARD: json.dumps(asdict(card), sort_keys=True)})


def load_weights(path: Path) -> tuple[Scorer, Card]:
    """The network and its card.

    Raises:
        ValueError: it is no such file, was not written by `save_weights`, or was trained on other
            columns than the environment has now.
    """
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            names = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path}: not a readable safetensors file: {error}") from None
    card = _card_in(path, metadata)
    scorer = _network_of(path, card)
    try:
        scorer.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"{path}: found other weights than its card says: {error}") from None
    scorer.requires_grad_(False)
    return scorer, card


def _network_of(path: Path, card: Card) -> Scorer:
    """What the card describes, with other weights."""
    match card.network, card.num_instances:
        case "instances", None:
            prior = [0.0] * len(INSTANCE_FIELDS) if card.prior else None
            return InstanceScorer(card.hidden, prior=prior, attention=card.attention)
        case "flat", int(num_instances):
            return FlatScorer(num_instances, card.hidden)
    raise ValueError(
        f"{path}: found network {card.network!r} with num_instances {card.num_instances!r}, "
        "allowed: 'instances' with null, 'flat' with a number"
    )


def _card_in(path: Path, metadata: Mapping[str, str]) -> Card:
    if _CARD not in metadata:
        raise ValueError(
            f"{path}: found metadata {sorted(metadata)}, expected `{_CARD}`: only weights that "
            "`prefixgym train` wrote can be loaded"
        )
    try:
        written = json.loads(metadata[_CARD])
        card = Card(**written | {"columns": tuple(written["columns"])})
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: its card cannot be read: {error!r}") from None
    expected = tuple(f.name for f in (*INSTANCE_FIELDS, *REQUEST_FIELDS))
    if card.columns != expected:
        raise ValueError(
            f"{path}: was trained on the columns {', '.join(card.columns)}; observations have "
            f"{', '.join(expected)}"
        )
    return card
