"""What a scenario file may say: every key, its unit and its limits.

A scenario is a cluster and what happens to it, a workload and how its clients behave, objectives
and what the router may know of the cluster, with a ladder of loads and seeds. Times are seconds,
rates requests per second, lengths tokens.
"""

import hashlib
import itertools
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from prefixgym.envs.clients import Clients
from prefixgym.envs.cluster.faults import Autoscaler, Fault, check_faults
from prefixgym.envs.cluster.profiles import profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec, Link, Role
from prefixgym.envs.scenarios.knee import KneeSection
from prefixgym.envs.scenarios.objectives import (
    ONE,
    SEVERAL,
    Objectives,
    SloClassSection,
    SloSection,
    slos_of,
    with_classes,
)
from prefixgym.envs.scenarios.randomisation import Conditioner, Randomisation
from prefixgym.envs.scenarios.workloads import build_workload, trace_of
from prefixgym.envs.slo import Slo
from prefixgym.envs.view.knowledge import Knowledge
from prefixgym.envs.workload.tape import Tape, Workload


class Setup(NamedTuple):
    """A scenario at one load: arguments of `Simulation`, by name (`**setup._asdict()`)."""

    cluster: ClusterSpec
    workload: Workload
    slos: tuple[Slo, ...]
    knowledge: Knowledge
    faults: tuple[Fault, ...]
    autoscaler: Autoscaler | None
    clients: Clients


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class InstanceGroup(_Section):
    """Instances that are alike.

    Attributes:
        profile: a name from `prefixgym profiles`: model, GPU and tensor parallelism.
        count: how many.
        kv_blocks: blocks of KV cache on each; by default what the profile's memory holds.
        max_batched_tokens: tokens an engine step may compute.
        max_sequences: requests that may run at once.
        host: whose host overhead the steps have; by default the profile's.
        role: what they are for: both halves of requests, their prefill or their decoding.
    """

    profile: str
    count: int = Field(ge=1)
    kv_blocks: int | None = Field(default=None, ge=1)
    max_batched_tokens: int = Field(default=8192, ge=1)
    max_sequences: int = Field(default=256, ge=1)
    host: str | None = None
    role: Role = "mixed"

    @model_validator(mode="after")
    def _profile_exists(self) -> "InstanceGroup":
        profile(self.profile, self.host)
        return self


class LinkSection(_Section):
    """What KV goes over where instances have roles, see `cluster/transfers.py`.

    Attributes:
        bandwidth: bytes/s that an instance sends or receives.
        latency: s.
    """

    bandwidth: float = Field(default=50e9, gt=0)
    latency: float = Field(default=0.0, ge=0)


class ClusterSection(_Section):
    """The instances that the router serves.

    Attributes:
        block_size: tokens in a KV block.
        frontend_latency: s that a request spends outside the engine, part of its TTFT.
        instances: groups, in the order in which routers number the instances.
        link: between instances that prefill and instances that decode.
    """

    block_size: int = Field(ge=1)
    frontend_latency: float = Field(default=0.010, ge=0)
    instances: tuple[InstanceGroup, ...] = Field(min_length=1)
    link: LinkSection = LinkSection()

    def build(self) -> ClusterSpec:
        """The cluster; ValueError if the numbers do not fit."""
        return ClusterSpec(
            instances=tuple(
                InstanceSpec(
                    profile=profile(group.profile, group.host),
                    kv_blocks=group.kv_blocks,
                    max_batched_tokens=group.max_batched_tokens,
                    max_sequences=group.max_sequences,
                    role=group.role,
                )
                for group in self.instances
                for _ in range(group.count)
            ),
            block_size=self.block_size,
            frontend_latency=self.frontend_latency,
            link=Link(self.link.bandwidth, self.link.latency),
        )


class WorkloadSection(BaseModel):
    """The requests of an episode; keys not listed here are the generator's (see `workloads.py`).

    Attributes:
        generator: where the requests come from.
        num_requests: requests of an episode; a trace plays all its rows if this is left out, else
            windows of so many.
        arrivals: how they come, see `arrivals.py`; Poisson by default. Traces and the generators of
            clients have their own.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    generator: Literal[
        "shared-prompts",
        "chat",
        "agentic",
        "long-documents",
        "retrieval",
        "unique-prompts",
        "clients",
        "servegen",
        "trace",
    ]
    num_requests: int | None = Field(default=None, ge=1)
    arrivals: dict[str, Any] | None = None

    def build(self, rate: float, block_size: int) -> Workload:
        """The generator at `rate` requests/s; ValueError if it refuses a key or a value."""
        return build_workload(
            self.generator,
            self.model_extra or {},
            num_requests=self.num_requests,
            rate=rate,
            arrivals=self.arrivals,
            block_size=block_size,
        )


class SeedRange(_Section):
    """Seeds first, first + 1, …, first + count − 1.

    Attributes:
        first: the first of these episodes' seeds; the others follow it.
        count: how many episodes there are.
    """

    first: int = Field(ge=0)
    count: int = Field(ge=1)

    def range(self) -> range:
        """The seeds."""
        return range(self.first, self.first + self.count)


class SeedsSection(_Section):
    """Seeds to learn from, to choose by, and to report; no seed is in two of them."""

    train: SeedRange
    validation: SeedRange
    test: SeedRange

    def of(self, split: str) -> range:
        """The seeds of one part; ValueError if there is none of that name."""
        parts: dict[str, SeedRange] = dict(self)
        if split not in parts:
            raise ValueError(f"split: found {split!r}, allowed: {', '.join(parts)}")
        return parts[split].range()

    @model_validator(mode="after")
    def _disjoint(self) -> "SeedsSection":
        parts = sorted(
            (part.first, part.first + part.count, name)
            for name in ("train", "validation", "test")
            for part in (getattr(self, name),)
        )
        for (_, end, name), (start, _, following) in itertools.pairwise(parts):
            if start < end:
                raise ValueError(f"{name} and {following} share seed {start}, they must share none")
        return self


class Scenario(_Section):
    """One scenario file.

    Attributes:
        name: as in the file's name.
        description: one sentence.
        source: where the workload, the profile and the objectives come from.
        rates: load ladder in requests/s, ascending.
        knee: the load around which the ladder stands, see `knee.py`.
        cluster: the instances.
        workload: the requests.
        slo: their objectives, of one class or of several, see `objectives.py`.
        knowledge: what the router knows of the cluster, see `view/knowledge.py`.
        faults: what happens to instances, see `cluster/faults.py`.
        autoscaler: adds and drains instances by load; left out, nobody does.
        clients: how they behave that wait too long, or whose request has failed.
        seeds: episodes for training, validation and test.
        randomisation: what differs between the episodes that a learner plays, unless it is told
            otherwise; evaluation knows none.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    description: str
    source: str
    rates: tuple[float, ...] = Field(min_length=1)
    knee: KneeSection | None = None
    cluster: ClusterSection
    workload: WorkloadSection
    slo: Objectives
    knowledge: Knowledge = Knowledge()
    faults: tuple[Fault, ...] = ()
    autoscaler: Autoscaler | None = None
    clients: Clients = Clients()
    seeds: SeedsSection
    randomisation: Randomisation = Randomisation()

    @model_validator(mode="after")
    def _consistent(self) -> "Scenario":
        if self.rates[0] <= 0 or any(b <= a for a, b in itertools.pairwise(self.rates)):
            raise ValueError(f"rates: found {list(self.rates)}, must be above 0 and ascend")
        cluster = self.build(self.rates[0]).cluster
        Conditioner(self.randomisation, cluster)
        check_faults(self.faults, self.autoscaler, len(cluster.instances))
        return self

    def build(self, rate: float) -> Setup:
        """The scenario at `rate` requests/s."""
        return Setup(
            cluster=self.cluster.build(),
            workload=self.build_workload(rate),
            slos=self.slos,
            knowledge=self.knowledge,
            faults=self.faults,
            autoscaler=self.autoscaler,
            clients=self.clients,
        )

    def build_workload(self, rate: float) -> Workload:
        """The requests alone, at `rate` requests/s."""
        try:
            workload = self.workload.build(rate, self.cluster.block_size)
        except ValueError as error:
            raise ValueError(f"workload.{error}") from None
        return with_classes(workload, self.slo)

    @property
    def slos(self) -> tuple[Slo, ...]:
        """The objectives, by class."""
        return slos_of(self.slo)

    def with_num_requests(self, num_requests: int) -> "Scenario":
        """The same scenario with shorter or longer episodes."""
        workload = self.workload.model_copy(update={"num_requests": num_requests})
        return self.model_copy(update={"workload": workload})

    @property
    def trace(self) -> Tape | None:
        """The recorded requests, if the workload is a trace."""
        if self.workload.generator != "trace":
            return None
        return trace_of(self.workload.model_extra or {}, self.cluster.block_size)

    @property
    def num_requests(self) -> int:
        """Requests of an episode."""
        if self.workload.num_requests is not None:
            return self.workload.num_requests
        assert self.trace is not None  # other generators need a number
        return len(self.trace.requests)

    def identity(self) -> dict[str, Any]:
        """Everything that an episode's outcome depends on, besides its rate and seed."""
        parts = self.model_dump(
            include={"cluster", "workload", "slo", "knowledge", "faults", "autoscaler", "clients"}
        )
        if self.trace is not None:
            content = self.trace.requests.tobytes() + self.trace.runs.tobytes()
            parts["workload"]["path"] = hashlib.sha256(content).hexdigest()
        elif "path" in parts["workload"]:
            content = Path(parts["workload"]["path"]).read_bytes()
            parts["workload"]["path"] = hashlib.sha256(content).hexdigest()
        return parts


def explain(error: ValidationError) -> str:
    """Pydantic's findings in one line: for each the key, what was found and what is allowed."""
    findings = []
    details = error.errors(include_url=False)
    for detail in details:
        # A list is reported as too short once an item of it was refused.
        if any(d["loc"][: len(detail["loc"])] == detail["loc"] for d in details if d is not detail):
            continue
        key = ".".join(str(part) for part in detail["loc"] if part not in (ONE, SEVERAL))
        if detail["type"] == "extra_forbidden":
            allowed = ", ".join(_section_at(detail["loc"][:-1]).model_fields)
            findings.append(f"{key}: no such key, allowed: {allowed}")
        elif detail["type"] == "missing":
            findings.append(f"{key}: missing")
        elif detail["type"] == "value_error":
            findings.append(": ".join(filter(None, (key, str(detail["ctx"]["error"])))))
        else:
            message = detail["msg"][0].lower() + detail["msg"][1:]
            findings.append(f"{key}: found {detail['input']!r}, {message}")
    return "; ".join(findings)


def _section_at(location: tuple[int | str, ...]) -> type[BaseModel]:
    """The model whose keys stand at this place of a scenario file."""
    section: Any = Scenario
    for part in location:
        if part in (ONE, SEVERAL):
            section = SloSection if part == ONE else tuple[SloClassSection, ...]
        elif isinstance(part, str):
            section = section.model_fields[part].annotation
            if type(None) in get_args(section):
                section = get_args(section)[0]
        else:
            section = section.__args__[0]
    found: type[BaseModel] = section
    return found
