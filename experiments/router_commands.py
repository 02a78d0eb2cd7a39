"""The commands `prefixgym routers …`: list them, explain one, write the page."""

from pathlib import Path
from typing import Annotated

import typer

from prefixgym.experiments.console import Json, NameIsACommand, print_json, print_tables

app = typer.Typer(
    cls=NameIsACommand,
    help="List the routers, or explain one: prefixgym routers NAME.",
    invoke_without_command=True,
    subcommand_metavar="[NAME | COMMAND] [ARGS]...",
)


@app.callback()
def list_routers(ctx: typer.Context, as_json: Json = False) -> None:
    """List the routers, or explain one: prefixgym routers NAME."""
    from prefixgym.baselines.router import router_names
    from prefixgym.experiments.router_tables import family_tables, router_facts

    if ctx.invoked_subcommand is not None:
        return
    if as_json:
        print_json({name: router_facts(name) for name in router_names()})
        return
    print_tables(family_tables())
    typer.echo("\nAll about one: prefixgym routers NAME")


@app.command()
def show(router: Annotated[str, typer.Argument()], as_json: Json = False) -> None:
    """Explain a router: its rule, what it knows, its parameters."""
    from prefixgym.experiments.router_tables import parameters_table, router_facts, rule_of

    facts = router_facts(router)
    if as_json:
        print_json(facts)
        return
    knows = ", ".join(facts["knows"]) or "nothing but the request"
    typer.echo(f"{router}, {facts['family']}: {facts['source']}\nknows: {knows}\n")
    typer.echo(rule_of(router))
    if facts["parameters"]:
        print_tables([parameters_table(router)])
    setting = next(iter(facts["parameters"].items()), None)
    example = "" if setting is None else f" --set {setting[0]}={setting[1]}"
    scenario = "split-8" if facts["family"] == "split" else "chat-8"
    typer.echo(f"\nTry it: prefixgym evaluate {router} --scenario {scenario}{example}")


@app.command()
def page(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("docs/routers.md"),
) -> None:
    """Write the page on the routers."""
    from prefixgym.experiments.router_page import router_page

    path.write_text(router_page(), encoding="utf-8")
    typer.echo(f"written: {path}")
