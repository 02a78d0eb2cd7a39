"""Checks of fields; an error names the field, what was found and what is allowed."""

import math

import numpy as np


def check_whole(key: str, value: object, least: int, most: int) -> int:
    """`value`; ValueError unless it is an int in least … most."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ValueError(f"{key}: found {value!r}, must be a whole number")
    if not least <= value <= most:
        raise ValueError(f"{key}: found {value}, must be between {least} and {most}")
    return int(value)


def check_number(key: str, value: object, least: float, *, above: bool = False) -> None:
    """Raise ValueError unless `value` is a finite number ≥ least (> least where `above`)."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ValueError(f"{key}: found {value!r}, must be a number")
    if not math.isfinite(value) or value < least or (above and value == least):
        bound = "above" if above else "at least"
        raise ValueError(f"{key}: found {value}, must be finite and {bound} {least:g}")


def check_probability(key: str, value: float) -> None:
    """Raise ValueError unless `value` is a number in 0 … 1."""
    check_number(key, value, 0)
    if value > 1:
        raise ValueError(f"{key}: found {value}, must be at most 1")


def check_flag(key: str, value: object) -> None:
    """Raise ValueError unless `value` is a bool: the string "false" would count as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{key}: found {value!r}, must be true or false")
