"""``magnetar health``: what is wrong, and what to do."""

from __future__ import annotations

import click

from magnetar.cli.output import json_option, print_json, print_table
from magnetar.cli.rest import RestClient, url_option


@click.command()
@url_option
@json_option
def health(url: str, as_json: bool) -> None:
    """Show how each part of the platform is; exits with 1 when one is not well.

    \b
    Example:
      magnetar health
    """
    found = RestClient(url).get_health()
    if as_json:
        print_json(found)
    else:
        rows = [
            (each["part"], "ok" if each["ok"] else "NOT WELL", each["problem"], each["remedy"])
            for each in found["parts"]
        ]
        print_table(("part", "is", "what is wrong", "what to do"), rows)
    if not found["ok"]:
        click.get_current_context().exit(1)
