"""All partitions' stored states in memory, kept by watches: what a broker goes by.

Owns the copy, and the order in which changes are told. Every broker has all of them, as Kafka's
brokers have the cluster's metadata: it answers clients' questions for any partition out of it, and
learns here which replicas are its own.

Rules:

* A watch is set before what it watches is read, so that no change is missed; what is read late is
  newer, never older.
* Versions of one node only grow here. A node that is gone, or has begun anew, is told as gone
  first: its replicas' logs are of something else then.
* What cannot be read is read again, after a pause that grows to ``PAUSE_S_MAX``. Meanwhile the
  copy is what was known last: everything that is decided by it is compared and set.
* When a session is connected again everything is read anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final, TypeAlias
from urllib.parse import quote, unquote

import structlog

from magnetar.env.metadata import MetadataStore, SessionState
from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.replication.state_store import ROOT, StateStore, VersionedState
from magnetar.log.partition.replication.wake import Wake
from magnetar.model.errors import MetadataError, MetadataFormatError, NoNodeError

log = structlog.get_logger(__name__)

READS_AT_ONCE: Final = 64
PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 2.0
LOOK_S: Final = 30.0
"""Everything is listed again this often, should a watch have been lost."""

Told: TypeAlias = Callable[[Partition, "VersionedState | None"], None]
EndWatch: TypeAlias = Callable[[], None]


class StateImage:
    """``run`` keeps it; ``states`` is what is known."""

    def __init__(self, metadata: MetadataStore) -> None:
        self.states: dict[Partition, VersionedState] = {}
        self._assigned: frozenset[int] | None = None
        """Of ``states``; None: not known since they changed."""
        self.store = StateStore(metadata)
        self.whole = asyncio.Event()
        """Set when everything there was has been read once."""
        self._metadata = metadata
        self._told: list[Told] = []
        self._wake = Wake()
        self._root_stale = True
        self._stale_topics: dict[str, None] = {}
        self._stale: dict[Partition, None] = {}
        self._topics: dict[str, EndWatch] = {}
        self._partitions: dict[Partition, EndWatch] = {}
        self._numbers: dict[str, dict[int, None]] = {}
        """Of each topic's partitions: there may be as many topics as partitions."""
        self._ends = [
            metadata.watch(ROOT, self._root_changed),
            metadata.watch_session(self._session_changed),
        ]

    def watch(self, told: Told) -> None:
        """``told(partition, state)`` of each change, in order; None: it is gone. What is known
        already is told at once."""
        self._told.append(told)
        for partition, state in list(self.states.items()):
            told(partition, state)

    def of_topic(self, topic: str) -> Mapping[int, VersionedState]:
        """By the numbers of its partitions."""
        return {each[1]: state for each, state in self.states.items() if each[0] == topic}

    def assigned(self) -> AbstractSet[int]:
        """The brokers that have replicas, whether they live or not. Kept: it is asked for with each
        partition that is shown to a client while a broker is away, and looks at all of them."""
        if self._assigned is None:
            states = self.states.values()
            self._assigned = frozenset(each for found in states for each in found.state.replicas)
        return self._assigned

    def stored(self, partition: Partition, state: VersionedState) -> None:
        """This process has just written or read it: others are told before a watch comes."""
        self._learn(partition, state)

    def refresh(self, partition: Partition) -> None:
        """What is known of it may not be true any more."""
        self._partition_changed(partition)

    def deleted(self, partition: Partition) -> None:
        """By this process, as far as it knows: it counts as gone, and is told again if the store
        has it still (it may have been restored meanwhile, with the very state that was known)."""
        self._learn(partition, None)
        self._partition_changed(partition)

    # -- what has changed ---------------------------------------------------------------------

    def _root_changed(self, _path: str) -> None:
        self._root_stale = True
        self._wake.set()

    def _topic_changed(self, topic: str, _path: str) -> None:
        self._stale_topics[topic] = None
        self._wake.set()

    def _partition_changed(self, partition: Partition) -> None:
        self._stale[partition] = None
        self._wake.set()

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._all_stale()

    def _all_stale(self) -> None:
        self._root_stale = True
        self._stale_topics.update(dict.fromkeys(self._topics))
        self._stale.update(dict.fromkeys(self._partitions))
        self._wake.set()

    # -- reading ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled."""
        pause_s = PAUSE_S_MIN
        loop = asyncio.get_running_loop()
        listed_s = loop.time()
        while True:
            try:
                await self._catch_up()
                self.whole.set()
                pause_s = PAUSE_S_MIN
            except MetadataError as error:
                log.info("states of partitions cannot be read now", error=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(PAUSE_S_MAX, 2 * pause_s)
                continue
            await self._wake.wait(LOOK_S)
            if loop.time() - listed_s >= LOOK_S:
                listed_s = loop.time()
                self._all_stale()

    async def _catch_up(self) -> None:
        while self._root_stale or self._stale_topics or self._stale:
            if self._root_stale:
                await self._list_topics()
            for topic in list(self._stale_topics):
                await self._list_partitions(topic)
            some = list(self._stale)[:READS_AT_ONCE]
            read = await asyncio.gather(
                *(self._read(each) for each in some), return_exceptions=True
            )
            for failed in read:
                if isinstance(failed, BaseException):
                    raise failed

    async def _list_topics(self) -> None:
        self._root_stale = False
        try:
            names = await self._children(ROOT)
        except MetadataError:
            self._root_stale = True
            raise
        found = {unquote(name) for name in names}
        for topic in sorted(found - self._topics.keys()):
            path = f"{ROOT}/{quote(topic, safe='')}"
            self._topics[topic] = self._metadata.watch(path, partial(self._topic_changed, topic))
            self._stale_topics[topic] = None
        for topic in [each for each in self._topics if each not in found]:
            self._topics.pop(topic)()
            self._stale_topics.pop(topic, None)
            self._forget(topic, frozenset())

    async def _list_partitions(self, topic: str) -> None:
        self._stale_topics.pop(topic, None)
        try:
            names = await self._children(f"{ROOT}/{quote(topic, safe='')}")
        except MetadataError:
            self._stale_topics[topic] = None
            raise
        numbers = [int(name) for name in names]
        for number in numbers:
            partition = topic, number
            if partition not in self._partitions:
                self._partitions[partition] = self.store.watch(
                    topic, number, partial(self._partition_changed, partition)
                )
                self._numbers.setdefault(topic, {})[number] = None
                self._stale[partition] = None
        self._forget(topic, frozenset(numbers))

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._metadata.children(path)
        except NoNodeError:
            return []

    def _forget(self, topic: str, but: AbstractSet[int]) -> None:
        known = self._numbers.get(topic, {})
        for number in [each for each in known if each not in but]:
            partition = topic, number
            del known[number]
            self._partitions.pop(partition)()
            self._stale.pop(partition, None)
            self._learn(partition, None)
        if not known:
            self._numbers.pop(topic, None)

    async def _read(self, partition: Partition) -> None:
        # Before it is read: a change that comes meanwhile has it read once more.
        self._stale.pop(partition, None)
        try:
            found = await self.store.read(*partition)
        except NoNodeError:
            self._learn(partition, None)
        except MetadataFormatError as error:
            log.warning("a partition's state is passed over", error=str(error))
        except MetadataError:
            self._stale[partition] = None
            raise
        else:
            self._learn(partition, found)

    def _learn(self, partition: Partition, state: VersionedState | None) -> None:
        known = self.states.get(partition)
        if state is None:
            if known is None:
                return
            del self.states[partition]
        elif known is not None and state.version <= known.version:
            if state.state.topic_id == known.state.topic_id:
                return
            self._made_again(partition, state)
        elif known is not None and state.state.topic_id != known.state.topic_id:
            self._made_again(partition, state)
        else:
            self.states[partition] = state
        self._assigned = None
        self._tell(partition, state)

    def _made_again(self, partition: Partition, state: VersionedState) -> None:
        """The topic was deleted and made again: replicas' logs are of something else."""
        self._tell(partition, None)
        self.states[partition] = state

    def _tell(self, partition: Partition, state: VersionedState | None) -> None:
        for told in self._told:
            told(partition, state)

    def close(self) -> None:
        """End every watch."""
        for end in (*self._ends, *self._topics.values(), *self._partitions.values()):
            end()
        self._topics.clear()
        self._partitions.clear()
        self._numbers.clear()
