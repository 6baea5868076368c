"""``magnetar brokers``: who serves what in a cluster, and moving it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from magnetar.cli.output import json_option, print_json, print_table
from magnetar.cli.rest import RestClient, namespace_path, url_option

OWNED = "/magnetar/v1/namespaces"


@click.group()
def brokers() -> None:
    """List brokers, see what they own, and move it.

    \b
    Examples:
      magnetar brokers list
      magnetar brokers bundles public/default
      magnetar brokers drain one:8080
      magnetar brokers unload public/default 0x40000000_0x80000000
    """


@brokers.command("list")
@url_option
@json_option
def list_brokers(url: str, as_json: bool) -> None:
    """List the brokers of the cluster, with what they report of themselves."""
    found = RestClient(url).get("/magnetar/v1/brokers")
    if as_json:
        print_json(found)
        return
    columns = ("broker", "clients at", "bundles#", "topics#", "in/s#", "out/s#", "zone", "")
    rows = [
        (
            each["brokerId"],
            each["serviceUrl"],
            each["bundles"],
            each["topics"],
            round(each["msgRateIn"]),
            round(each["msgRateOut"]),
            each["zone"],
            _states(each),
        )
        for each in found
    ]
    print_table(columns, rows)


def _states(broker: Mapping[str, Any]) -> str:
    states = {"read-only": broker.get("readOnly"), "draining": broker["draining"]}
    return ", ".join(state for state, holds in states.items() if holds)


@brokers.command()
@click.argument("namespace", default="public/default")
@url_option
@json_option
def bundles(namespace: str, url: str, as_json: bool) -> None:
    """Show how NAMESPACE (TENANT/NAMESPACE) is cut, and who owns each part."""
    found = RestClient(url).get(f"{namespace_path(namespace, OWNED)}/bundles")
    if as_json:
        print_json(found)
        return
    print_table(("bundle", "owner"), [(each["bundle"], each["owner"] or "-") for each in found])


@brokers.command()
@click.argument("broker")
@url_option
def drain(broker: str, url: str) -> None:
    """Have BROKER hand over everything that it owns or leads, and take nothing more."""
    RestClient(url).put(f"/magnetar/v1/brokers/{quote(broker, safe=':')}/drain")
    click.echo(f"{broker} owns nothing; `magnetar brokers undrain` has it take topics again")


@brokers.command()
@click.argument("broker")
@url_option
def undrain(broker: str, url: str) -> None:
    """Have BROKER take topics again."""
    RestClient(url).put(f"/magnetar/v1/brokers/{quote(broker, safe=':')}/undrain")
    click.echo(f"{broker} takes topics")


@brokers.command()
@click.argument("namespace")
@click.argument("bundle", required=False)
@url_option
def unload(namespace: str, bundle: str | None, url: str) -> None:
    """Have BUNDLE of NAMESPACE released by its owner, or all of them; first use gives it to the
    broker with the least to do."""
    part = f"/{quote(bundle, safe='')}" if bundle else ""
    RestClient(url).put(f"{namespace_path(namespace)}{part}/unload")
    click.echo(f"unloaded {namespace}{part}")
