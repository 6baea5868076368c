"""``magnetar namespaces permissions`` and ``magnetar topics permissions``: what roles may do."""

from __future__ import annotations

from urllib.parse import quote

import click

from magnetar.cli.output import json_option, print_json, print_table
from magnetar.cli.rest import RestClient, namespace_path, topic_path, url_option

action_option = click.option(
    "--action",
    "actions",
    multiple=True,
    required=True,
    type=click.Choice(["produce", "consume"]),
    help="May be repeated.",
)


@click.group("permissions")
def of_namespaces() -> None:
    """What roles may do with a namespace's topics. It counts where security.authentication is on.

    \b
    Examples:
      magnetar namespaces permissions list public/default
      magnetar namespaces permissions grant public/default alice --action produce
      magnetar namespaces permissions revoke public/default alice
    """


@click.group("permissions")
def of_topics() -> None:
    """What roles may do with one topic, besides what they may by its namespace.

    \b
    Examples:
      magnetar topics permissions list flights
      magnetar topics permissions grant flights bob --action consume
      magnetar topics permissions revoke flights bob
    """


@of_namespaces.command("list")
@click.argument("namespace")
@url_option
@json_option
def list_of_namespace(namespace: str, url: str, as_json: bool) -> None:
    """Each role, and what it may do."""
    _list(url, namespace_path(namespace), as_json)


@of_namespaces.command("grant")
@click.argument("namespace")
@click.argument("role")
@action_option
@url_option
def grant_namespace(namespace: str, role: str, actions: tuple[str, ...], url: str) -> None:
    """Let ROLE do that, and nothing else."""
    _grant(url, namespace_path(namespace), namespace, role, actions)


@of_namespaces.command("revoke")
@click.argument("namespace")
@click.argument("role")
@url_option
def revoke_namespace(namespace: str, role: str, url: str) -> None:
    """Let ROLE do nothing. What it has open goes on until its clients come again."""
    _revoke(url, namespace_path(namespace), namespace, role)


@of_topics.command("list")
@click.argument("topic")
@url_option
@json_option
def list_of_topic(topic: str, url: str, as_json: bool) -> None:
    """Each role, and what it may do, by the namespace or for the topic alone."""
    _list(url, topic_path(topic), as_json)


@of_topics.command("grant")
@click.argument("topic")
@click.argument("role")
@action_option
@url_option
def grant_topic(topic: str, role: str, actions: tuple[str, ...], url: str) -> None:
    """Let ROLE do that with TOPIC and its partitions."""
    _grant(url, topic_path(topic), topic, role, actions)


@of_topics.command("revoke")
@click.argument("topic")
@click.argument("role")
@url_option
def revoke_topic(topic: str, role: str, url: str) -> None:
    """Take back what was said for TOPIC."""
    _revoke(url, topic_path(topic), topic, role)


def _list(url: str, path: str, as_json: bool) -> None:
    found = RestClient(url).get(f"{path}/permissions")
    if as_json:
        print_json(found)
    else:
        rows = [(role, ", ".join(actions)) for role, actions in sorted(found.items())]
        print_table(("role", "may"), rows)


def _grant(url: str, path: str, what: str, role: str, actions: tuple[str, ...]) -> None:
    RestClient(url).send_post(f"{path}/permissions/{quote(role, safe='')}", list(actions))
    click.echo(f"{role} may {' and '.join(sorted(set(actions)))} in {what}")


def _revoke(url: str, path: str, what: str, role: str) -> None:
    RestClient(url).delete(f"{path}/permissions/{quote(role, safe='')}")
    click.echo(f"nothing is granted to {role} in {what} any more")
