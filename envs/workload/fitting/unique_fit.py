"""`UniquePrompts` fitted to a trace that shares nothing, or does not say what it shares."""

from prefixgym.envs.workload.fitting.fit import Fit, fit_arrivals
from prefixgym.envs.workload.fitting.length_fit import fit_length
from prefixgym.envs.workload.generators.unique_prompts import UniquePrompts
from prefixgym.envs.workload.statistics.summary import Study


def fit_unique_prompts(study: Study) -> Fit:
    """Arrivals and lengths of a trace. ValueError: the trace has no rate."""
    rate, cv = fit_arrivals(study)
    requests = study.line.tape.requests
    lengths = {key: fit_length(requests[key]) for key in ("prompt_tokens", "output_tokens")}
    return Fit(
        UniquePrompts,
        "unique-prompts",
        {key: fit.length for key, fit in lengths.items()},
        rate,
        cv,
        study.line.tape.block_size,
        tuple(f"{key}: {fit}" for key, fit in lengths.items()),
    )
