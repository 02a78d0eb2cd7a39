"""prefixgym: a reinforcement-learning environment for prefix-cache-aware LLM request routing."""

from importlib.metadata import version

import prefixgym.envs  # registers the environments with Gymnasium  # noqa: F401

__version__ = version("prefixgym")
