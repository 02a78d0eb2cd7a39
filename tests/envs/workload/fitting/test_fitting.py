"""Fits to what the generators themselves made must find the parameters again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixgym.envs.workload.arrivals import Gamma, Poisson
from prefixgym.envs.workload.distributions import Empirical, Geometric, LogNormal, Mixture
from prefixgym.envs.workload.durations import duration
from prefixgym.envs.workload.fitting.agent_fit import fit_agentic
from prefixgym.envs.workload.fitting.chat_fit import fit_chat
from prefixgym.envs.workload.fitting.length_fit import fit_length, two_normals
from prefixgym.envs.workload.fitting.shared_fit import fit_shared_prompts
from prefixgym.envs.workload.fitting.turns_fit import beta_geometric, fit_turns
from prefixgym.envs.workload.fitting.unique_fit import fit_unique_prompts
from prefixgym.envs.workload.generators.agentic import Agentic
from prefixgym.envs.workload.generators.chat import MultiTurnChat
from prefixgym.envs.workload.generators.shared_prompts import SharedPrompts
from prefixgym.envs.workload.generators.unique_prompts import UniquePrompts
from prefixgym.envs.workload.lengths import Length, distribution
from prefixgym.envs.workload.statistics.summary import Study
from prefixgym.envs.workload.statistics.timeline import FIRST_TOKEN, PER_TOKEN
from prefixgym.envs.workload.tape import NO_ROW


def draws(length: Length, size: int = 6000) -> np.ndarray:
    return distribution("length", length, 0).sample(np.random.default_rng(1), size)


def test_lengths_get_the_simplest_form_that_fits() -> None:
    assert fit_length([7, 7, 7]).length == 7
    found = fit_length(draws(LogNormal(300, 0.8, high=9000)))
    assert found.family == "lognormal"
    assert isinstance(found.length, LogNormal)
    assert found.length.median == pytest.approx(300, rel=0.05)
    assert found.length.sigma == pytest.approx(0.8, rel=0.05)
    typed_or_pasted = Mixture((7, 3), (LogNormal(20, 0.7, high=9000), LogNormal(4000, 0.5, 9000)))
    found = fit_length(draws(typed_or_pasted))
    assert found.family == "two lognormals"
    assert isinstance(found.length, Mixture)
    assert found.length.weights[0] == pytest.approx(0.7, abs=0.02)
    assert [part.median for part in found.length.of] == pytest.approx([20, 4000], rel=0.06)
    steps = draws(Mixture((1, 1, 1), (3, 50, 2000)))
    found = fit_length(steps)
    assert found.family == "measured quantiles"
    assert found.distance < 0.06  # the levels are 5 % apart
    assert draws(found.length).mean() == pytest.approx(steps.mean(), rel=0.1)


def test_lengths_of_zero_are_kept_where_they_may_be() -> None:
    values = [0] * 50 + [100] * 50
    assert distribution("length", fit_length(values, least=0).length, 0).low == 0
    assert distribution("length", fit_length(values).length).low == 1


def test_two_normals() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(0, 1, 3000), rng.normal(8, 0.5, 1000)])
    weights, means, sigmas = two_normals(values)
    assert weights == pytest.approx((0.75, 0.25), abs=0.01)
    assert means == pytest.approx((0, 8), abs=0.06)
    assert sigmas == pytest.approx((1, 0.5), abs=0.04)


@settings(max_examples=30)
@given(alpha=st.floats(0.3, 20), beta=st.floats(0.05, 20), high=st.integers(2, 400))
def test_turns_have_the_probabilities_of_their_formula(
    alpha: float, beta: float, high: int
) -> None:
    k = np.arange(1, high)
    reach = np.concatenate([[1.0], np.cumprod((beta + k - 1) / (alpha + beta + k - 1))])
    found = distribution("turns", beta_geometric(alpha, beta, high)).probabilities()
    exact = reach - np.append(reach[1:], 0.0)
    count = min(10, high - 1)
    np.testing.assert_allclose(found[:count], exact[:count], atol=2e-6)
    # The tail is exact at the numbers between its straight lines.
    assert len(found) == high
    assert np.max(np.abs(np.cumsum(found) - np.cumsum(exact))) < 0.03


def test_turns_and_gaps_are_found_although_the_window_cuts_them() -> None:
    # Sessions all over an hour; turns go on with the Beta-geometric chance, gaps of 300 s.
    rng = np.random.default_rng(3)
    alpha, beta, window = 2.0, 1.0, 3600.0
    turn, gap, left = [], [], []
    for start in rng.uniform(0, window, 4000):
        go_on, time, number = rng.beta(beta, alpha), start, 1
        while time < window:
            pause = rng.lognormal(np.log(300.0), 1.0)
            follows = rng.random() < go_on
            seen = follows and time + pause < window
            turn.append(number)
            gap.append(pause if seen else np.nan)
            left.append(window - time)
            if not follows:
                break
            time, number = time + pause, number + 1
    found = fit_turns(np.array(turn), np.array(gap), np.array(left), max(turn))
    assert isinstance(found.gap, LogNormal)
    assert found.gap.median == pytest.approx(300, rel=0.08)
    assert found.gap.sigma == pytest.approx(1.0, rel=0.08)
    assert np.nanmedian(gap) < 290  # as seen, without what the window cut off
    assert beta / (alpha + beta) == pytest.approx(found.beta / (found.alpha + found.beta), abs=0.03)
    assert (beta + 2) / (alpha + beta + 2) == pytest.approx(
        (found.beta + 2) / (found.alpha + found.beta + 2), abs=0.05
    )


CHAT = MultiTurnChat(
    6000,
    Gamma(5.0, 2.0),
    64,
    turns=Geometric(2.5, 40),
    think_time=LogNormal(60.0, 0.8),
    num_system_prompts=2,
    zipf=1.0,
    system_tokens=640,
    opening_tokens=LogNormal(900, 0.5, high=6000, low=200),
    user_tokens=LogNormal(150, 0.5, high=6000, low=80),
    output_tokens=LogNormal(250, 0.5, high=2000),
)


@pytest.mark.parametrize("derive", [False, True])
def test_a_chat_is_found_again(derive: bool) -> None:
    found = fit_chat(Study.of(CHAT.tape(5), derive))
    parameters = found.parameters
    assert found.rate == pytest.approx(5.0, rel=0.1)
    assert found.arrival_cv == pytest.approx(2.0, abs=0.25)
    assert parameters["num_system_prompts"] == 2
    assert parameters["system_tokens"] == 640
    assert parameters["zipf"] == pytest.approx(1.0, abs=0.15)
    turns = distribution("turns", parameters["turns"]).probabilities()
    assert turns[0] == pytest.approx(0.4, abs=0.03)
    assert turns[1] == pytest.approx(0.24, abs=0.03)
    gaps = duration("gap", parameters["think_time"]).sample(np.random.default_rng(0), 4000)
    assert np.median(gaps) == pytest.approx(60, rel=0.07)
    for key, median in (
        ("opening_tokens", 900),
        ("lone_tokens", 900),
        ("user_tokens", 150),
        ("closing_tokens", 150),
        ("output_tokens", 250),
    ):
        assert np.median(draws(parameters[key])) == pytest.approx(median, rel=0.08), key
    assert len(found.workload(50).tape(0).requests) == 50


def test_a_closed_loop_is_fitted_to_its_think_times() -> None:
    chat = MultiTurnChat(
        2000, Poisson(5.0), 64, think_time=LogNormal(8.0, 0.5), closed_loop=True, turns=4
    )
    found = fit_chat(Study.of(chat.tape(0)))
    assert found.parameters["closed_loop"]
    gaps = duration("gap", found.parameters["think_time"]).sample(np.random.default_rng(0), 4000)
    assert np.median(gaps) == pytest.approx(8, rel=0.05)


def test_agents_are_found_again() -> None:
    made = Agentic(
        6000,
        Poisson(4.0),
        64,
        calls=(10, 30),
        think_time=LogNormal(5.0, 0.6),
        system_tokens=1280,
        repository_tokens=0,
        file_tokens=(2000, 4000),
        new_tokens=(200, 400),
        output_tokens=100,
        reset_probability=0.2,
        summary_tokens=200,
        max_prompt_tokens=20_000,
        spawn_probability=0.05,
        sub_agents=2,
        sub_agent_calls=(3, 5),
        sub_agent_think_time=3.0,
        sub_agent_system_tokens=0,
        sub_agent_task_tokens=600,
        sub_agent_new_tokens=50,
        nominal_ttft=FIRST_TOKEN,
        nominal_tpot=PER_TOKEN,
    )
    found = fit_agentic(Study.of(made.tape(2)))
    parameters = found.parameters
    assert found.rate == pytest.approx(4.0, rel=0.1)
    assert parameters["system_tokens"] == 1280
    assert np.mean(draws(parameters["new_tokens"])) == pytest.approx(300, rel=0.05)
    assert parameters["output_tokens"] == 100
    assert np.mean(draws(parameters["summary_tokens"])) == pytest.approx(200, abs=60)
    assert parameters["spawn_probability"] == pytest.approx(0.05, rel=0.15)
    assert parameters["sub_agents"] == 2
    assert np.mean(draws(parameters["sub_agent_new_tokens"])) == pytest.approx(50, rel=0.1)
    # The longest prompt seen is below the one that is allowed.
    per_token = parameters["reset_probability"] / parameters["max_prompt_tokens"]
    assert per_token == pytest.approx(0.2 / 20_000, rel=0.2)
    gaps = duration("gap", parameters["think_time"]).sample(np.random.default_rng(0), 4000)
    assert np.median(gaps) == pytest.approx(5, rel=0.05)
    assert len(found.workload(300).tape(0).requests) == 300
    with pytest.raises(ValueError, match="no request waits for another"):
        fit_agentic(Study.of(CHAT.tape(0)))


def test_sessions_without_a_clock_get_the_rate_of_sixteen_at_a_time() -> None:
    chat = MultiTurnChat(
        400, Poisson(5.0), 64, turns=5, think_time=10.0, output_tokens=100, closed_loop=True
    )
    tape = chat.tape(0)
    tape.requests["arrival"][tape.requests["parent"] == NO_ROW] = 0
    found = fit_agentic(Study.of(tape))
    # Most sessions have five calls of 3.9 s each and four pauses of 10 s; the edges cut some short.
    whole = 16 * 5 / (5 * (FIRST_TOKEN + 100 * PER_TOKEN) + 4 * 10)
    assert found.rate == pytest.approx(whole, rel=0.35)


def test_shared_prompts_are_found_again() -> None:
    made = SharedPrompts(
        5000,
        Poisson(4.0),
        64,
        num_groups=300,
        prompts_per_group=None,
        system_tokens=LogNormal(2000, 0.4, high=9000, low=640),
        question_tokens=(1, 300),
        output_tokens=50,
        zipf=0.8,
    )
    found = fit_shared_prompts(Study.of(made.tape(1))).parameters
    assert found["num_groups"] == pytest.approx(300, rel=0.15)
    assert found["zipf"] == pytest.approx(0.8, abs=0.12)
    assert found["half_life"] > 20_000
    # What is shared is known in whole blocks.
    assert np.median(draws(found["system_tokens"])) == pytest.approx(2000 - 32, rel=0.1)
    assert np.mean(draws(found["question_tokens"])) == pytest.approx(150 + 32, rel=0.1)
    assert found["output_tokens"] == 50


def test_unique_prompts_are_fitted_and_share_nothing_with_the_others() -> None:
    study = Study.of(UniquePrompts(1000, Poisson(4.0), 64).tape(0))
    assert np.median(draws(fit_unique_prompts(study).parameters["prompt_tokens"])) > 100
    with pytest.raises(ValueError, match="no first block returns"):
        fit_shared_prompts(study)
    with pytest.raises(ValueError, match="fewer than two follow-ups"):
        fit_chat(study)


def test_a_trace_of_one_moment_has_no_rate() -> None:
    tape = CHAT.tape(0)
    tape.requests["arrival"] = 7
    with pytest.raises(ValueError, match="all requests arrive at once"):
        fit_unique_prompts(Study.of(tape))


def test_quantiles_of_the_tail_reach_the_maximum() -> None:
    values = np.arange(1, 5001) ** 2
    length = fit_length(values).length
    assert isinstance(length, Empirical)
    assert length.high == 5000**2
