"""Backlog quotas among the policies of namespaces and topics: two kinds on one path of REST, shown
on another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from magnetar.cli.limits import NO_LIMIT, as_size, as_time
from magnetar.cli.options import with_options
from magnetar.cli.rest import RestClient
from magnetar.model.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

QUOTA: Final = "backlogQuota"
STORAGE, AGE = "destination_storage", "message_age"
ACTIONS: Final = {
    "hold": "producer_request_hold",
    "exception": "producer_exception",
    "evict": "consumer_backlog_eviction",
}


def quota_options(command: F) -> F:
    """Of ``set``, at both levels."""
    return with_options(
        command,
        (
            click.option(
                "--backlog-size",
                metavar="SIZE",
                help="How far the slowest subscription of a topic may be behind: 10GiB, unlimited.",
            ),
            click.option(
                "--backlog-age",
                metavar="TIME",
                help="How old a message may be that one has not acknowledged: 2d, unlimited.",
            ),
            click.option(
                "--backlog-policy",
                type=click.Choice(tuple(ACTIONS)),
                help="With one of those two, what is done past it: producers wait (hold) or fail "
                "(exception), or the slowest subscriptions go on without what is too much (evict).",
            ),
        ),
    )


def quota_bodies(size: str | None, age: str | None, action: str | None) -> dict[str, object]:
    """By their kinds. Raises ``ConfigError``."""
    if (size is None and age is None) is not (action is None):
        raise ConfigError("--backlog-policy goes with --backlog-size or --backlog-age; name both")
    found: dict[str, object] = {}
    said = {"limitSize": NO_LIMIT, "limitTime": NO_LIMIT, "policy": ACTIONS.get(action or "")}
    if size is not None:
        limit = as_size("--backlog-size", size, 1)
        found[STORAGE] = said | {"limitSize": _not_nothing("--backlog-size", size, limit)}
    if age is not None:
        limit = as_time("--backlog-age", age, 1000)
        found[AGE] = said | {"limitTime": _not_nothing("--backlog-age", age, limit)}
    return found


def _not_nothing(option: str, text: str, limit: int) -> int:
    if not limit:  # nobody could ever publish
        raise ConfigError(f"{option} {text!r} cannot be used; for no limit say unlimited")
    return limit


def send_quotas(rest: RestClient, path: str, quotas: Mapping[str, object]) -> None:
    for kind, quota in quotas.items():
        rest.send_post(f"{path}/{QUOTA}", quota, backlogQuotaType=kind)


def show_quotas(rest: RestClient, path: str, **query: str) -> Any:
    """By their kinds; None: nothing is said. ``path``: that of one."""
    return rest.get(f"{path}Map", **query) or None


def remove_quotas(rest: RestClient, path: str) -> None:
    for kind in (STORAGE, AGE):
        rest.delete(path, backlogQuotaType=kind)
