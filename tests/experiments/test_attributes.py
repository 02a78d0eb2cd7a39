import dataclasses

import pytest

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
