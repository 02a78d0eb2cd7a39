import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.envs.scenarios.workloads import GENERATORS, SET_BY_SCENARIO
from prefixgym.experiments.attributes import attributes_of, summary_of


class Base:
    """A base.

    Attributes:
        first: one line.
        second, third: two
            lines: of text.

    More text: not an attribute.
    """


class Derived(Base):
    """A derived class. With a second sentence.

    Attributes:
        first: other words.
    """


def test_descriptions_are_those_of_the_class_and_its_bases() -> None:
    assert attributes_of(Derived) == {
        "first": "other words.",
        "second": "two lines: of text.",
        "third": "two lines: of text.",
    }
    assert summary_of(Derived) == "A derived class. With a second sentence."
    assert attributes_of(int) == {}


@pytest.mark.parametrize("name", GENERATORS)
def test_every_parameter_of_every_generator_is_described(name: str) -> None:
    fields = {field.name for field in dataclasses.fields(GENERATORS[name])}
    assert fields - set(SET_BY_SCENARIO) <= attributes_of(GENERATORS[name]).keys()


def tables(annotation: Any) -> Iterator[type[BaseModel]]:
    """Every kind of table that may stand at or below a place with this type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from tables(field.annotation)
    for part in typing.get_args(annotation):
        yield from tables(part)


@pytest.mark.parametrize("table", dict.fromkeys(tables(Scenario)))
def test_every_key_of_a_scenario_file_is_described(table: type[BaseModel]) -> None:
    values = {
        name
        for name, field in table.model_fields.items()
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel))
    }
    assert values <= attributes_of(table).keys()
