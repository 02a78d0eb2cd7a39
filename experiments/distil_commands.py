"""`prefixgym distil`: one network out of the specialists of several scenarios."""

from pathlib import Path
from typing import Annotated

import typer

from prefixgym.experiments.console import RUNS, Json, print_json, print_tables


def distil(
    lessons: Annotated[
        list[str],
        typer.Argument(
            help="A scenario, a load in requests/s and who is good there: "
            "chat-8@25=learned:runs/a/weights.safetensors.",
            metavar="SCENARIO[@RATE]=ROUTER...",
        ),
    ],
    rounds: Annotated[int, typer.Option(min=0, help="Of DAgger; 0 only clones.")] = 2,
    episodes: Annotated[int, typer.Option(min=1, help="Labelled in a round, each lesson.")] = 2,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over all labels in a round.")] = 6,
    hidden: Annotated[int, typer.Option(min=1, help="Width of the network.")] = 32,
    seeds: Annotated[int, typer.Option(min=1, help="Validation and test episodes.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Of the network.")] = 0,
    name: Annotated[str, typer.Option(help="Write to runs/NAME.")] = "distil",
    as_json: Json = False,
) -> None:
    """Teach one network to decide in every scenario as the specialist there does."""
    import torch

    from prefixgym.agents.learned_router import LearnedRouter
    from prefixgym.agents.linear_score import LinearScore, weight_row, weights_of
    from prefixgym.agents.weights import card_of, save_weights
    from prefixgym.experiments.contest.entrants import match_of
    from prefixgym.experiments.evolution.report import WEIGHTS
    from prefixgym.experiments.imitation.distillation import Distillation, Graduate, Lesson
    from prefixgym.experiments.imitation.distillation import distil as learn
    from prefixgym.experiments.progress import progress_of
    from prefixgym.experiments.provenance import command, commit
    from prefixgym.experiments.table import Table
    from prefixgym.experiments.training.judge import HANDCRAFTED, Judge, described_router

    torch.set_num_threads(1)  # networks this small are slower on two
    taught = []
    for text in lessons:
        where, equals, teacher = text.partition("=")
        if not equals:
            raise ValueError(f"lesson: found {text!r}, expected SCENARIO[@RATE]=ROUTER")
        match = match_of(where, {})
        judge = Judge(match.scenario, match.rate, match.scenario.seeds.of("validation")[:seeds])
        for handcrafted in HANDCRAFTED:
            judge.add_handcrafted(handcrafted)
        key = f"{match.scenario.name}@{match.rate:g}"
        taught.append(Lesson(key, described_router(teacher), judge))
    prior = tuple(weight_row(weights_of(LinearScore())).tolist())
    asked = Distillation(prior, rounds, episodes, hidden, epochs, seed)
    with progress_of([1] * (rounds + 1), rounds + 1, "rounds") as on_end:
        found = learn(asked, taught, lambda _: on_end(1))
    best: Graduate = max(found, key=lambda graduate: graduate.preference(taught))
    router, rows, table = LearnedRouter(best.scorer), [], {}
    for lesson in taught:
        scenario = lesson.judge.scenario
        test = Judge(scenario, lesson.judge.rate, scenario.seeds.of("test")[:seeds])
        players = {"network": router, "specialist": lesson.teacher}
        verdicts = {who: test.verdict(player) for who, player in players.items()}
        table[lesson.name] = {
            metric: verdicts["network"].metrics[metric] for metric in ("attainment", "ttft_p99")
        }
        best_known = max(
            lesson.judge.handcrafted, key=lambda h: lesson.judge.handcrafted[h].attainment
        )
        test.add_handcrafted(best_known)
        verdicts[best_known] = test.handcrafted[best_known]
        rows += [
            (lesson.name, who, f"{100 * v.attainment:.2f}", f"{1e3 * v.tail:,.0f}")
            for who, v in verdicts.items()
        ]
    folder = RUNS / name
    folder.mkdir(parents=True, exist_ok=True)
    path: Path = folder / WEIGHTS
    card = card_of(
        best.scorer,
        command=command(),
        commit=commit(),
        seed=seed,
        training_seconds=round(best.seconds, 1),
        scenario=", ".join(lesson.name for lesson in taught),
        table=table,
    )
    save_weights(path, best.scorer, card)
    if as_json:
        figures = [
            {
                "round": one.number,
                "labels": one.labels,
                "agreement": one.agreement,
                "validation": {
                    lesson.name: dict(verdict.metrics)
                    for lesson, verdict in zip(taught, one.verdicts, strict=True)
                },
            }
            for one in found
        ]
        print_json({"folder": str(folder), "rounds": figures, "test": table})
        return
    headings = ("scenario", "router", "attainment %", "TTFT p99 ms")
    print_tables([Table(title=f"{seeds} test seeds each", headings=headings, rows=rows)])
    for one in found:
        typer.echo(
            f"round {one.number}: {one.labels} labels, agrees with specialists on "
            f"{100 * one.agreement:.1f} %, validation attainment "
            + ", ".join(f"{100 * verdict.attainment:.2f}" for verdict in one.verdicts)
        )
    typer.echo(f"written: {path}, of round {best.number}")
