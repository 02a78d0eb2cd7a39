"""A teacher's decisions in the situations that somebody gets into.

For behaviour cloning the teacher itself acts. A clone that then acts gets into situations that the
teacher never sees, and knows nothing of them; in DAgger the learner acts, and the teacher says what
it would have done (Ross, Gordon, Bagnell, AISTATS 2011). A teacher that remembers its own choices
would be misled by that: `lookahead` and others that decide by the view alone are meant.
"""

from collections.abc import Sequence

import numpy as np

from prefixgym.agents.imitation import Labels
from prefixgym.agents.learned_router import Observer
from prefixgym.baselines.references.reference import Reference
from prefixgym.baselines.router import Router
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.envs.simulation import Simulation
from prefixgym.experiments.evaluate import begin


def label(
    teacher: Router, actor: Router | None, scenario: Scenario, rate: float, seeds: Sequence[int]
) -> Labels:
    """Play whole episodes, one a seed, and label all decisions.

    Args:
        teacher: says what is right; a reference is shown the simulation.
        actor: decides; None lets the teacher decide.
        scenario: cluster, workload, objectives and what the router may know.
        rate: requests/s.
        seeds: of training.

    Raises:
        ValueError: the scenario has several routers side by side, who see different things.
    """
    setup = scenario.build(rate)
    if setup.knowledge.replicas.count > 1:
        raise ValueError(
            f"{scenario.name}: found {setup.knowledge.replicas.count} routers side by side; "
            "a teacher can label one"
        )
    simulation = Simulation(**setup._asdict(), num_envs=len(seeds))
    begin(simulation, teacher if actor is None else actor, setup.cluster, seeds)
    if actor is not None:
        if isinstance(teacher, Reference):
            teacher.watch(simulation)
        teacher.reset(setup.cluster, seeds)
    observe = Observer(setup.cluster, len(seeds))
    requests, instances, actions = [], [], []
    while not simulation.done.all():
        going = ~simulation.done
        request, rows = observe(simulation.view)
        requests.append(request[going])
        instances.append(rows[going])
        labelled = teacher.route(simulation.view)
        actions.append(labelled[going])
        simulation.step(labelled if actor is None else actor.route(simulation.view))
    return Labels(np.concatenate(requests), np.concatenate(instances), np.concatenate(actions))
