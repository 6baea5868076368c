"""The stored state of partitions, in the metadata store: read, and changed by compare-and-set.

Owns the paths, and what is done when a compare is lost or an answer does not come. It decides
nothing: ``election`` does.

Rules:

* A change is a function of what is stored. Whoever loses the compare reads again and asks the
  function again; it may say that nothing is to be done any more.
* A topic that is deleted and made again has other states at the same paths, whose versions begin
  at 0 like those before. So a state's id has a node of its own, made before the state and deleted
  with it, and a state is changed only while that is there: what was read of an earlier making
  fits no later one (docs/adr/0161-states-are-changed-beside-their-ids.md).
* That a topic is deleted is noted in the node of its id before its state goes: a state that is gone
  without it was lost (docs/adr/0169-a-replica-that-failed-is-not-believed.md).
* An answer that does not come (``MetadataUnavailableError``) leaves the outcome in doubt. It is
  raised, and the caller reads before it does anything else: a leader goes on counting both sets.

Paths: ``/partitions/TOPIC/N`` (bytes: ``partition_state``), ``/partition-ids/ID`` (empty, or
``deleted``). The name of a topic is escaped, since it may have a slash in it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from magnetar.env.emptied_nodes import delete_emptied
from magnetar.env.metadata import GuardedWrites, MetadataStore
from magnetar.log.partition.replication import election
from magnetar.log.partition.replication.election import Live
from magnetar.log.partition.replication.partition_state import (
    PartitionState,
    decode_state,
    encode_state,
)
from magnetar.model.errors import (
    BadVersionError,
    MetadataError,
    MetadataFormatError,
    NodeExistsError,
    NoNodeError,
)

ROOT: Final = "/partitions"
IDS: Final = "/partition-ids"
DELETED: Final = b"deleted"
Change = Callable[[PartitionState], PartitionState | None]


class VersionedState(NamedTuple):
    """``version``: to compare with."""

    state: PartitionState
    version: int


def state_path(topic: str, number: int) -> str:
    return f"{ROOT}/{quote(topic, safe='')}/{number}"


def id_path(topic_id: str) -> str:
    return f"{IDS}/{topic_id}"


class StateStore:
    """All partitions' states. Methods raise ``MetadataError``, and ``MetadataFormatError`` for a
    node that is none of ours."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def create(self, topic: str, number: int, state: PartitionState) -> VersionedState:
        """Raises ``NodeExistsError``."""
        state.check()
        if state.topic_id:
            state = replace(state, guarded=True)
            await self._metadata.create(id_path(state.topic_id), b"")
        try:
            await self._metadata.create(state_path(topic, number), encode_state(state))
        except NodeExistsError:
            if state.guarded:
                with suppress(MetadataError):  # of no use, and in nobody's way
                    await self._metadata.delete(id_path(state.topic_id))
            raise
        return VersionedState(state, 0)

    async def read(self, topic: str, number: int) -> VersionedState:
        """Raises ``NoNodeError``."""
        path = state_path(topic, number)
        found = await self._metadata.get(path)
        return VersionedState(decode_state(found.value, path), found.version)

    async def read_newest(self, topic: str, number: int) -> VersionedState:
        """As ``read``, and no older than this call: a server may not have yet what another has
        taken, of a write whose answer was lost, too."""
        await self._metadata.sync()
        return await self.read(topic, number)

    async def delete(self, topic: str, number: int) -> None:
        """It is no error if there is none. What is left by who fails between its steps is a node
        that says so."""
        path = state_path(topic, number)
        deleted = None
        while True:
            try:
                found = await self.read(topic, number)
            except NoNodeError:
                return
            except MetadataFormatError:
                with suppress(NoNodeError):
                    await self._metadata.delete(path)
                return
            if deleted not in (None, found.state.topic_id):
                return  # made again meanwhile
            deleted = found.state.topic_id
            if found.state.guarded:
                with suppress(NoNodeError):
                    await self._metadata.put(id_path(deleted), DELETED, -1)
            try:
                await self._metadata.delete(path, found.version)
            except (BadVersionError, NoNodeError):
                continue  # changed since it was read, or gone
            if found.state.guarded:
                with suppress(MetadataError):  # the topic is deleted, whatever becomes of this
                    await self._metadata.delete(id_path(deleted))
            with suppress(MetadataError):
                await delete_emptied(self._metadata, path.rpartition("/")[0], ROOT)
            return

    async def deletion_noted(self, topic_id: str) -> bool:
        """Of a partition without a state: nothing says that it should have one. (A deletion that
        was finished has left nothing.)"""
        try:
            return (await self._metadata.get(id_path(topic_id))).value == DELETED
        except NoNodeError:
            return True

    async def partitions(self) -> list[tuple[str, int]]:
        """Of which there is a state, in order."""
        try:
            topics = await self._metadata.children(ROOT)
        except NoNodeError:
            return []
        found = []
        for topic in topics:
            try:
                numbers = await self._metadata.children(f"{ROOT}/{topic}")
            except NoNodeError:  # deleted meanwhile
                continue
            found += [(unquote(topic), int(number)) for number in numbers]
        return sorted(found)

    async def replace(
        self, topic: str, number: int, old: VersionedState, state: PartitionState
    ) -> VersionedState:
        """Store ``state`` if ``old`` is what is stored: a leader's change. Raises
        ``BadVersionError``: it is not; ``NoNodeError``: the topic is deleted, or about to be."""
        state.check()
        path, value = state_path(topic, number), encode_state(state)
        if old.state.guarded:
            assert isinstance(self._metadata, GuardedWrites), "a store of another package"
            guard = id_path(old.state.topic_id)
            try:
                version = await self._metadata.put_beside(guard, path, value, old.version)
            except NoNodeError as error:
                raise NoNodeError(
                    f"partition {topic}-{number} is deleted, or the node of its id is lost (then "
                    f"restore the metadata store, or delete the topic): {error}"
                ) from error
        else:
            version = await self._metadata.put(path, value, old.version)
        return VersionedState(state, version)

    async def change(self, topic: str, number: int, change: Change) -> VersionedState:
        """Store what ``change`` makes of the stored state, however often that has changed before it
        is done; what is stored then."""
        while True:
            found = await self.read(topic, number)
            following = change(found.state)
            if following is None:
                return found
            try:
                return await self.replace(topic, number, found, following)
            except BadVersionError:
                continue  # somebody else was first: what is right now is for ``change`` to say

    async def elect(
        self, topic: str, number: int, live: Callable[[], Live], *, unclean: bool = False
    ) -> VersionedState:
        """A controller's look at one partition. ``live`` is asked at each try."""
        return await self.change(
            topic, number, lambda state: election.elect(state, live(), unclean=unclean)
        )

    def watch(self, topic: str, number: int, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` on the loop after each change. Returns what ends it."""
        return self._metadata.watch_value(state_path(topic, number), lambda _path: changed())
