"""BookKeeper's own bookies: they do not follow what operators write into the metadata store. They
are told by their own REST, where that is on, and have forgotten it after a restart."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httpx

from magnetar.env.network.listening import host_port
from magnetar.model.errors import ConfigError
from magnetar.model.ids import BookieId

REST_TIMEOUT_S: Final = 30


class NotSwitchedError(ConfigError):
    """Says of which bookie, and why."""


async def switch_java_bookie(operating: Any, bookie_id: BookieId, *, read_only: bool) -> str:
    """Have it take no new entries, or take them again, and wait until it is registered so. The URL
    by which that was done. Raises ``NotSwitchedError``."""
    address = operating.http_address(bookie_id)
    if address is None:
        raise _not_switched(bookie_id, "it says of no HTTP server (httpServerEnabled)")
    url = f"http://{host_port(*address)}/api/v1/bookie/state/readonly"
    try:
        async with httpx.AsyncClient(timeout=REST_TIMEOUT_S, trust_env=False) as client:
            answer = await client.put(url, json={"readOnly": read_only})
        if answer.status_code != httpx.codes.OK:
            raise _not_switched(
                bookie_id, f"{url} answers {answer.status_code}: {answer.text[:200]}"
            )
        async with asyncio.timeout(REST_TIMEOUT_S):
            await operating.wait_read_only(bookie_id, read_only)
    except httpx.HTTPError as error:
        raise _not_switched(bookie_id, f"{url} does not answer: {error!r}") from error
    except TimeoutError as error:
        why = f"{url} was told, and {REST_TIMEOUT_S} s later it is registered as before"
        raise _not_switched(bookie_id, why) from error
    return url


def _not_switched(bookie_id: BookieId, why: str) -> NotSwitchedError:
    return NotSwitchedError(
        f"bookie {bookie_id} is one of BookKeeper's own, which do not follow what is said in the "
        f"metadata store, and it could not be switched by its REST: {why}"
    )
