"""``magnetar prove``: the loss comparison of the two engines."""

from __future__ import annotations

from pathlib import Path

import click

from magnetar.cli.paths import GivenPath
from magnetar.config import LoggingConfig
from magnetar.logs import configure


@click.command()
@click.option("--scenario", "names", multiple=True, help="Only this one; again for more.")
@click.option("--list", "listed", is_flag=True, help="Say which there are, and run none.")
@click.option(
    "--out",
    type=GivenPath(directory=True),
    default=Path("out/prove"),
    show_default=True,
    help="Directory for the pages.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of what is left to chance.")
def prove(names: tuple[str, ...], listed: bool, out: Path, seed: int) -> None:
    """Make the same faults on both engines and count what is lost.

    Starts clusters of its own, as processes on loopback addresses, with a real ZooKeeper (needs
    Java and PySpark's jars; power cuts need a C compiler). Writes one page as HTML and Markdown
    (and JSON), and exits with 1 when something did not come out as expected.

    \b
    Examples:
      magnetar prove
      magnetar prove --scenario leader-dies --scenario isr-shrinks
      magnetar prove --list
    """
    from magnetar.proving.pages import verdict
    from magnetar.proving.running import run, write
    from magnetar.proving.scenarios import SCENARIOS, chosen

    if listed:
        for each in SCENARIOS:
            click.echo(f"{each.name:22} {each.title}")
        return
    wanted = chosen(names)
    configure(LoggingConfig(level="error"))
    result = run(wanted, seed, click.echo)
    page = write(result, out)
    click.echo(f"{verdict(result)}\n{page}")
    if not result.as_expected:
        click.get_current_context().exit(1)
