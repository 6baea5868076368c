"""A lent cursor's acknowledgements, kept by the topic's owner: ``log.ack_store.AckStore`` over a
connection to it.

Owns the sending of one subscription's acknowledgements (``ack_sending`` decides what is sent) and
the end of its binding, whoever ends it.

Rules:

* What is reported as stored has been stored by the owner. Whoever waits for it waits while the
  owner moves: the state has it all, and the next owner is told. Where nobody waits the owner stores
  it in its own time.
* All that changed is sent in one turn of the loop, every so often (``env.flush_timer``), so that
  one request has it for each owner.
* When no owner has answered for ``patience_s`` the binding is given up, before its owner takes it
  for abandoned (``binding_rules``).
* After the end nothing is sent; whoever waits is told ``BindingEndedError``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple, Protocol

import structlog

from magnetar.cluster.topic_name import TopicName
from magnetar.env.flush_timer import FlushTimer
from magnetar.env.tasks import TaskScope
from magnetar.log.acknowledgements import AckImage, AckState
from magnetar.model.errors import (
    BindingEndedError,
    MagnetarError,
    NotAllowedError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from magnetar.model.ids import Position
from magnetar.topics.consuming.bound import SeatsTaken
from magnetar.topics.following.ack_sending import AckSending, Send

log = structlog.get_logger(__name__)

RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 2.0
RELEASE_S: Final = 5.0
"""How long a release waits for an owner; without an answer the binding ends with our registration,
or as an abandoned one."""


class LentCursor(NamedTuple):
    """A subscription that this broker is bound to."""

    topic: TopicName
    subscription: str
    epoch: int


class Borrowed(NamedTuple):
    """What the owner says when it binds us to a subscription. ``term``: see ``ack_sending``."""

    cursor: LentCursor
    image: AckImage
    term: int
    properties: Mapping[str, str]


class NewsKind(Enum):
    """What is told of a binding, unasked."""

    ENDED = "ended"
    WANTED = "wanted"  # give it back
    ASKED = "asked"  # whether it is served
    MOVED = "moved"  # the cursor, by what the owner has done
    SAY_AGAIN = "say again"  # the owner is another one, or the connection broke
    GREW = "grew"  # the topic's log may be read up to ``mark_delete``; of no subscription


class OwnerNews(NamedTuple):
    """``reset_epoch``: how often the cursor that has moved had been reset; None: an owner of an
    earlier release does not say it."""

    what: NewsKind
    epoch: int = 0
    mark_delete: Position | None = None
    reset_epoch: int | None = None


class CursorOwners(Protocol):
    """The owners of topics, for a broker that serves some of their subscriptions. What is asked may
    raise ``MagnetarError`` of any kind: ask again."""

    async def open_topic(self, topic: TopicName, create: bool) -> Position:
        """Have an owner open it, and make it if ``create``; returns the last entry that may be
        read. Raises ``TopicNotFoundError``."""
        ...

    async def bind(
        self,
        topic: TopicName,
        subscription: str,
        first: Position,
        properties: Mapping[str, str],
        told: Callable[[OwnerNews], None],
    ) -> Borrowed:
        """Be bound to the subscription, which is made so that ``first`` is read first if there is
        none. ``told`` hears of every binding to it, until ``forget``."""
        ...

    async def merge(self, cursor: LentCursor, image: AckImage, stored: bool) -> int:
        """Taken by the owner when it returns, in the term that is returned (``ack_sending``); also
        stored if that is asked for. Raises ``BindingEndedError``, ``NotAllowedError``."""
        ...

    async def follow(self, topic: TopicName, told: Callable[[OwnerNews], None]) -> Position:
        """Have ``told`` hear, from now on, how far the topic's log may be read; returns how far
        that is now. It hears ``SAY_AGAIN`` when it has to be asked for again. Raises
        ``TopicNotFoundError``."""
        ...

    def unfollow(self, topic: TopicName) -> None:
        """Tell nothing of it from now on."""
        ...

    async def keep(self, cursor: LentCursor, seats: SeatsTaken | None) -> None:
        """It is served by this binding, to those. Raises ``BindingEndedError``."""
        ...

    async def release(self, cursor: LentCursor) -> None:
        """Raises ``BindingEndedError``."""
        ...

    async def delete(self, cursor: LentCursor) -> None:
        """Delete the subscription. Raises ``BindingEndedError``."""
        ...

    def forget(self, topic: TopicName, subscription: str) -> None:
        """Tell nothing of it from now on."""
        ...


class RemoteAckStore:
    """See the module's text. ``ended`` is called once, when the binding was ended by others."""

    durable = True

    def __init__(
        self,
        borrowed: Borrowed,
        state: AckState,
        owners: CursorOwners,
        scope: TaskScope,
        timer: FlushTimer,
        patience_s: float,
        ended: Callable[[MagnetarError], None],
    ) -> None:
        self.cursor = borrowed.cursor
        self._state = state
        self._owners = owners
        self._scope = scope
        self._timer = timer
        self._patience_s = patience_s
        self._on_ended = ended
        self._lent_version = state.version
        self._sending = AckSending(state.version, borrowed.term)
        self._stored_mark_delete = state.mark_delete
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._name = f"acknowledgements {borrowed.cursor.subscription}"
        self._due = scope.guarded(self._flush, self._name)
        self._failing_since_s: float | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._over: MagnetarError | None = None

    # -- for the cursor -----------------------------------------------------------------------

    @property
    def stored_mark_delete(self) -> Position:
        return min(self._stored_mark_delete, self._state.mark_delete)

    def mark_dirty(self) -> None:
        self._timer.add(self)

    @property
    def dirty(self) -> bool:
        """For ``FlushTimer``."""
        return self._over is None and self._sending.wants(self._state.version, stored=False)

    def tick(self) -> None:
        """For ``FlushTimer``."""
        self._due()

    async def wait_stored(self) -> None:
        if self._over is not None:
            raise self._over
        if not self._sending.wants(self._state.version, stored=True):
            return
        waiter = self._loop.create_future()
        self._waiters.append((self._state.version, waiter))
        self._loop.call_soon(self._due)
        await waiter

    async def mark_deleted(self) -> None:
        if self._over is not None:
            raise self._over
        await self._owners.delete(self.cursor)
        self.end(BindingEndedError(f"subscription {self.cursor.subscription} was deleted"))

    async def finish_deletion(self) -> None:
        """What is left is the owner's to delete."""

    async def close(self) -> None:
        """Store what changed and give the subscription back. Raises what failed; it is over
        anyhow."""
        if self._over is not None:
            return
        try:
            async with asyncio.timeout(RELEASE_S):
                if self._state.version > self._lent_version:  # else the owner has all of it
                    await self.wait_stored()
                await self._owners.release(self.cursor)
        except BindingEndedError:
            pass  # it was over already
        except TimeoutError:
            raise ServiceNotReadyError(
                f"subscription {self.cursor.subscription} of {self.cursor.topic} is not given back "
                f"in order: no owner answered in {RELEASE_S:g} s"
            ) from None
        finally:
            self.end(BindingEndedError(f"subscription {self.cursor.subscription} was given back"))

    # -- for the owner's news -----------------------------------------------------------------

    def say_again(self) -> None:
        """Another owner, or another connection: it is to hear of us, and of all."""
        self._sending.say_again()
        self._due()

    def knows_reset(self, reset_epoch: int | None) -> bool:
        """Whether the owner has heard of each reset here when it had heard of so many. What it had
        done before that must not undo one: it takes it back itself when it hears of it."""
        return reset_epoch is None or reset_epoch >= self._state.reset_epoch

    def keep(self, seats: Awaitable[SeatsTaken | None]) -> None:
        """The owner asks whether we serve it, and to whom."""
        self._scope.spawn(self._keep(seats), f"keep {self.cursor.subscription}")

    async def _keep(self, seats: Awaitable[SeatsTaken | None]) -> None:
        try:
            await self._owners.keep(self.cursor, await seats)
        except BindingEndedError as error:
            self.fail(error)
        except MagnetarError as error:  # it asks again
            log.info("the owner is not told", topic=str(self.cursor.topic), error=str(error))

    def fail(self, error: MagnetarError) -> None:
        """The binding is over, and whoever serves by it is to stop."""
        if self._over is None:
            self.end(error)
            self._on_ended(error)

    def end(self, error: MagnetarError) -> None:
        """Send nothing from now on."""
        if self._over is not None:
            return
        self._over = error
        self._owners.forget(self.cursor.topic, self.cursor.subscription)
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        waiters, self._waiters = self._waiters, []
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    # -- sending ------------------------------------------------------------------------------

    def _flush(self) -> None:
        if self._task is None and self._over is None and self._has_more:
            self._task = self._scope.spawn(self._send_all(), self._name)

    @property
    def _has_more(self) -> bool:
        return self._sending.wants(self._state.version, stored=bool(self._waiters))

    async def _send_all(self) -> None:
        """Until all is taken, and stored if somebody waits for that."""
        retry_s, opens = RETRY_FIRST_S, False
        try:
            while (send := self._begin(stored := bool(self._waiters))) is not None:
                begun_s, mark_delete = self._loop.time(), self._state.mark_delete
                # Taken whatever is sent: what is in the whole need not be sent again as a change.
                changes = self._state.take_changes()
                if changes is None or send is Send.WHOLE:
                    self._sending.sends_whole()
                    changes = self._state.snapshot()
                try:
                    if opens:  # an owner takes nothing for a topic that it has not opened yet
                        await self._owners.open_topic(self.cursor.topic, create=False)
                    term = await self._owners.merge(self.cursor, changes, stored)
                except (BindingEndedError, NotAllowedError, TopicNotFoundError) as error:
                    self.fail(error)
                    return
                except MagnetarError as error:
                    self._sending.failed()
                    if not self._may_try_again(error, begun_s):
                        return
                    await asyncio.sleep(retry_s)
                    retry_s, opens = min(2 * retry_s, RETRY_MAX_S), True
                else:
                    retry_s, opens = RETRY_FIRST_S, False
                    self._answered(term, stored, mark_delete)
        finally:
            self._task = None

    def _begin(self, stored: bool) -> Send | None:
        # What was trimmed meanwhile nobody will read: the owner has let it expire, and images of it
        # would speak of ledgers that the log does not hold.
        self._state.forget_trimmed()
        return self._sending.begin(self._state.version, stored)

    def _may_try_again(self, error: MagnetarError, begun_s: float) -> bool:
        now_s = self._loop.time()
        if self._failing_since_s is None:
            # When it was asked, not when it had not answered: it has not heard of us since then.
            self._failing_since_s = begun_s
            log.info(
                "acknowledgements not taken by the owner yet",
                topic=str(self.cursor.topic),
                subscription=self.cursor.subscription,
                error=str(error),
            )
        if now_s - self._failing_since_s < self._patience_s:
            return True
        self.fail(
            BindingEndedError(
                f"subscription {self.cursor.subscription} of {self.cursor.topic} is given up: no "
                f"owner has taken its acknowledgements for {self._patience_s:g} s: {error}"
            )
        )
        return False

    def _answered(self, term: int, stored: bool, mark_delete: Position) -> None:
        self._sending.answered(term)
        self._failing_since_s = None
        if not stored:
            return
        self._stored_mark_delete = mark_delete
        waiters, self._waiters = self._waiters, []
        for wanted, waiter in waiters:
            if waiter.done():
                continue
            if wanted <= self._sending.stored:
                waiter.set_result(None)
            else:
                self._waiters.append((wanted, waiter))
