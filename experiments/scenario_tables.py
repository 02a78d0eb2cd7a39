"""Scenarios as tables: a row each, or one with all its keys."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from prefixgym.envs.scenarios.arrivals import LOADS, PROCESSES
from prefixgym.envs.scenarios.schema import InstanceGroup, Scenario, WorkloadSection
from prefixgym.envs.scenarios.workloads import GENERATORS, SET_BY_SCENARIO
from prefixgym.envs.slo import Slo
from prefixgym.envs.workload.reuse import Reuse, reuse
from prefixgym.envs.workload.tape import Tape
from prefixgym.experiments.attributes import attributes_of, summary_of
from prefixgym.experiments.table import Table, number
from prefixgym.experiments.toml_text import toml_text

Row = tuple[str, str, str]
"""A dotted key as `--set` takes it, its value as TOML has it, and what it means."""


def middle_rate(scenario: Scenario) -> float:
    """The rate in the middle of the ladder, requests/s: of a built-in scenario, its knee."""
    return scenario.rates[len(scenario.rates) // 2]


def sample_tape(scenario: Scenario) -> Tape:
    """The first training episode, in the middle of the ladder."""
    workload = scenario.build(middle_rate(scenario)).workload
    return workload.tape(scenario.seeds.train.first)


def scenarios_table(scenarios: Sequence[Scenario]) -> Table:
    """A row for each scenario."""
    return Table(
        title="Scenarios",
        headings=(
            "scenario",
            "instances",
            "workload",
            "prompt\ntokens",
            "output\ntokens",
            "hit\n%",
            "TTFT\ns",
            "TPOT\nms",
            "knee\n/s",
        ),
        rows=[_summary(scenario, reuse(sample_tape(scenario))) for scenario in scenarios],
        prose=True,
    )


def _described(group: InstanceGroup) -> str:
    role = "" if group.role == "mixed" else f" ({group.role})"
    return f"{group.count} x {group.profile}{role}"


def _summary(scenario: Scenario, found: Reuse) -> tuple[str, ...]:
    return (
        scenario.name,
        "\n".join(map(_described, scenario.cluster.instances)),
        scenario.workload.generator,
        f"{found.prompt_tokens:,.0f}",
        f"{found.output_tokens:,.0f}",
        f"{100 * found.token_hit:.0f}",
        "\n".join(map(_ttft, scenario.slos)),
        "\n".join(f"{1000 * slo.tpot:g}" for slo in scenario.slos),
        "" if scenario.knee is None else number(scenario.knee.rate),
    )


def _ttft(slo: Slo) -> str:
    per_token = f" + {slo.ttft_per_token:g}/token" if slo.ttft_per_token > 0 else ""
    return f"{slo.ttft:g}{per_token}"


def keys_table(scenario: Scenario) -> Table:
    """All keys of a scenario file, those that it leaves out as well."""
    headings = ("key", "value", "meaning")
    return Table(f"Keys of {scenario.name}", headings, list(_section(scenario, "")), prose=True)


_IN_WORDS = ("name", "description", "source")


def _section(section: BaseModel, path: str) -> Iterator[Row]:
    """Rows of a table of the file and of the tables below it, single values first."""
    meaning = attributes_of(type(section))
    tables: list[Iterator[Row]] = []
    for name, field in type(section).model_fields.items():
        value, key = getattr(section, name), path + name
        if isinstance(value, BaseModel):
            tables.append(_section(value, f"{key}."))
        elif isinstance(value, tuple) and any(isinstance(item, BaseModel) for item in value):
            tables += [_section(item, f"{key}.{i}.") for i, item in enumerate(value)]
        elif absent := _table_of(field.annotation):
            tables.append(_absent(*absent, key, meaning[name]))
        elif not (path == "" and name in _IN_WORDS):
            if key == "workload.generator" and value in GENERATORS:
                yield key, _value(value), f"{meaning[name]} {summary_of(GENERATORS[value])}"
            elif key == "workload.arrivals":
                yield from _arrivals(value, section.generator, meaning[name])  # type: ignore[attr-defined]
            else:
                yield key, _value(value), _allowed(meaning[name], field.annotation)
    if isinstance(section, WorkloadSection):
        yield from _generator(section, path)
    for table in tables:
        yield from table


def _table_of(annotation: Any) -> tuple[type[BaseModel], bool] | None:
    """The table that may stand in this place, and whether it is one of a list."""
    for part in typing.get_args(annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part, typing.get_origin(annotation) is tuple
    return None


def _absent(table: type[BaseModel], listed: bool, key: str, meaning: str) -> Iterator[Row]:
    """Rows of a table that the file leaves out: what may be set there."""
    yield key, "", meaning
    described = attributes_of(table)
    first = f"{key}.0" if listed else key
    for name, field in table.model_fields.items():
        yield f"{first}.{name}", "", _allowed(described[name], field.annotation)


def _allowed(meaning: str, annotation: Any) -> str:
    """The meaning of a key, with its values where these are words that it does not explain."""
    words = typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()
    if all(word in meaning for word in words):
        return meaning
    return f"{meaning} Allowed: {', '.join(words)}."


def _value(value: Any) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump()
    return "" if value is None else toml_text(value)


def _generator(section: WorkloadSection, path: str) -> Iterator[Row]:
    """The keys of the workload's generator; of a trace, which has no class, those given."""
    given = section.model_extra or {}
    cls = GENERATORS.get(section.generator)
    if cls is None:
        for key, value in given.items():
            yield path + key, _value(value), "see `envs/scenarios/workloads.py`"
        return
    meaning = attributes_of(cls)
    for field in dataclasses.fields(cls):
        if field.name not in SET_BY_SCENARIO:
            default = None if field.default is dataclasses.MISSING else field.default
            value = _value(given.get(field.name, default))
            yield path + field.name, value, meaning[field.name]


def _arrivals(table: Mapping[str, Any] | None, generator: str, meaning: str) -> Iterator[Row]:
    """How requests come, of a generator that leaves it to the scenario."""
    cls = GENERATORS.get(generator)
    if cls is None or "arrivals" not in typing.get_type_hints(cls):
        return
    table = table or {}
    name = table.get("process", "poisson")
    process = PROCESSES[name]
    allowed = ", ".join(PROCESSES)
    yield "workload.arrivals.process", toml_text(name), f"{summary_of(process)} Allowed: {allowed}."
    described = attributes_of(process)
    for key, value in table.items():
        if key in LOADS:
            load = attributes_of(LOADS[key])
            for field in dataclasses.fields(LOADS[key]):
                inner = value.get(field.name, field.default)
                yield f"workload.arrivals.{key}.{field.name}", _value(inner), load[field.name]
        elif key != "process":
            yield f"workload.arrivals.{key}", _value(value), described[key]
