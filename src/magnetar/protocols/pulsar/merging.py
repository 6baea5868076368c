"""Images of lent cursors on their way to the owners: which go together.

Rules:

* Images that nobody waits for to be stored go to an owner together, all of one turn of the loop:
  it costs the owner one request, however many subscriptions were handed over.
* One that somebody waits for is a request of its own: it must not wait for what is slow elsewhere.
* Whoever sends an image hears what became of it, whatever becomes of the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from magnetar.env.tasks import TaskScope, awaited
from magnetar.model.errors import BrokerError, MagnetarError, ServiceNotReadyError
from magnetar.protocols.pulsar.owner_line import OwnerLine, answer, refusal
from magnetar.wire.pulsar.pulsar_pb2 import (
    CommandBoundCursor,
    LentImage,
)

IMAGE_BYTES_MAX: Final = 1 << 20
"""Of one request: below what any broker takes as a frame."""


class _Merge(NamedTuple):
    """An image that is to be taken, and who waits for the term in which it is."""

    image: LentImage
    term: asyncio.Future[int]


class Merging:
    """``request``: makes the request that images are put into."""

    def __init__(self, request: Callable[[], CommandBoundCursor], scope: TaskScope) -> None:
        self._request = request
        self._scope = scope
        self._waiting: dict[OwnerLine, list[_Merge]] = {}
        """What is sent at the end of this turn."""

    async def send(self, line: OwnerLine, image: LentImage, stored: bool) -> int:
        """The term in which the owner took ``image``, and has ``stored`` it if that is asked for.
        Raises what the owner says, and ``ServiceNotReadyError``."""
        loop = asyncio.get_running_loop()
        merge = _Merge(image, loop.create_future())
        if stored:
            await self._ask(line, [merge], stored=True)
        else:
            if not self._waiting:
                loop.call_soon(self._send_waiting)
            self._waiting.setdefault(line, []).append(merge)
        return await merge.term

    def _send_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        policy = awaited(by="Merging.send")
        for line, merges in waiting.items():
            for some in _in_requests(merges):
                self._scope.spawn(self._ask(line, some, stored=False), "merge", policy)

    async def _ask(self, line: OwnerLine, merges: Sequence[_Merge], stored: bool) -> None:
        request = self._request()
        request.stored = stored
        request.images.extend(merge.image for merge in merges)
        try:
            reply = await answer(line, request)
            if reply.HasField("error"):
                raise refusal(line, reply)
            if len(reply.results) != len(merges):
                raise BrokerError(
                    f"the broker at {line.peer} answers for {len(reply.results)} images of "
                    f"{len(merges)}; it is of another release"
                )
        except MagnetarError as error:
            _fail(merges, error)
        except BaseException:
            _fail(merges, ServiceNotReadyError("the request was given up"))
            raise
        else:
            for merge, result in zip(merges, reply.results, strict=True):
                if result.HasField("error"):
                    _fail([merge], refusal(line, result))
                elif not merge.term.done():
                    merge.term.set_result(result.term)


def _in_requests(merges: Sequence[_Merge]) -> Iterator[Sequence[_Merge]]:
    some: list[_Merge] = []
    size = 0
    for merge in merges:
        size += len(merge.image.image)
        if some and size > IMAGE_BYTES_MAX:
            yield some
            some, size = [], len(merge.image.image)
        some.append(merge)
    yield some


def _fail(merges: Sequence[_Merge], error: MagnetarError) -> None:
    for merge in merges:
        if not merge.term.done():
            merge.term.set_exception(error)
            merge.term.exception()  # who waited for it may be gone by now
