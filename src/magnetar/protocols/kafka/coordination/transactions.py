"""The coordinator of transactions: those of the ids whose logs this broker has open.

``transaction`` decides; this stores what it decides in the coordinator's log, sends markers to the
partitions' leaders, and looks at time.

Rules:

* Of an id one request is done after the other, and answered when what it changes is stored.
* Once an outcome is stored its markers are sent until every partition has confirmed its own,
  however long that takes, by whoever has the log then: a coordinator that opens a log goes on with
  what it finds there. Only then may the id's next transaction begin.
* A partition that does not exist any more needs no marker. That is the coordinator's to say, by the
  newest that the metadata store has: a leader, or this broker, that has not heard yet of a topic
  that was made, or has grown, would leave its transaction open for ever.
* Offsets that a transaction commits are a part of it like any partition: their place is the log of
  the group's offsets.

Why: docs/adr/0117-transactions.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from magnetar.cluster.topic_name import TopicName
from magnetar.env.keyed_locks import KeyedLocks
from magnetar.model.errors import MagnetarError, ServiceNotReadyError, TopicNotFoundError
from magnetar.protocols.kafka.coordination import transaction
from magnetar.protocols.kafka.coordination.coordinator import (
    NAMESPACE,
    Coordinator,
    Shard,
    Since,
)
from magnetar.protocols.kafka.coordination.coordinator_state import Change, TransactionKey
from magnetar.protocols.kafka.coordination.transaction import (
    Beginning,
    Place,
    TransactionRecord,
    TransactionVerdict,
    needs_producer_id,
)
from magnetar.protocols.kafka.coordination.transaction_states import TransactionState
from magnetar.protocols.kafka.names import kafka_name, topic_of
from magnetar.protocols.kafka.partitions.partition import Ending
from magnetar.protocols.kafka.peers import told_as, told_one
from magnetar.protocols.kafka.services import NO_NODE, KafkaServices, Node
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode, error_code
from magnetar.wire.kafka.topic_shapes import TopicPartitions
from magnetar.wire.kafka.transaction_messages import (
    DescribeTransactionsRequest,
    TransactionMarker,
    WriteTxnMarkersRequest,
)

log = structlog.get_logger(__name__)

TIME_CHECK_S: Final = 1.0
OPEN_CHECK_S: Final = 5.0
EXPIRY_CHECK_S: Final = 60.0
RETRY_S: Final = 0.05
RETRY_S_MAX: Final = 2.0
OUTCOME_S: Final = 2.0
"""How long the answer to EndTxn waits for the markers: mostly all have them by then, and the
client's next transaction need not wait."""
SAID_BY_PRODUCERS: Final = (ErrorCode.INVALID_PRODUCER_EPOCH,)
"""A newer producer of the id has written there since: what this marker would end is ended."""


class Transactions:
    """See the module's text."""

    def __init__(self, services: KafkaServices, coordinator: Coordinator) -> None:
        self._services = services
        self.coordinator = coordinator
        self._locks: KeyedLocks[str] = KeyedLocks()
        self._group_locks: KeyedLocks[int] = KeyedLocks()
        self._finishing: dict[str, asyncio.Event] = {}
        coordinator.watch_opened(self._opened)

    # -- requests -----------------------------------------------------------------------------

    async def begin(self, name: str, said: Beginning) -> tuple[ErrorCode, TransactionRecord | None]:
        """InitProducerId of a transactional id. Raises as ``Coordinator.shard``."""
        async with self._locks.held(name):
            shard = await self.coordinator.shard(name)
            record = shard.log.state.transactions.get(name)
            new_id = -1
            if needs_producer_id(record):
                new_id = await self._services.new_producer_id()
            verdict = transaction.begin(record, said, new_id, self._services.now_ms())
            await self._store(shard, name, verdict)
            return verdict.error, verdict.record or record

    async def add(
        self, name: str, producer_id: int, epoch: int, places: Sequence[Place]
    ) -> ErrorCode:
        """AddPartitionsToTxn, AddOffsetsToTxn. Raises as ``Coordinator.shard``."""
        async with self._locks.held(name):
            shard = await self.coordinator.shard(name)
            record = shard.log.state.transactions.get(name)
            now_ms = self._services.now_ms()
            verdict = transaction.add(record, producer_id, epoch, places, now_ms)
            await self._store(shard, name, verdict)
            return verdict.error

    async def end(self, name: str, producer_id: int, epoch: int, commits: bool) -> ErrorCode:
        """EndTxn. The outcome is stored when it returns with ``NONE``, and mostly every partition
        has its marker. Raises as ``Coordinator.shard``."""
        async with self._locks.held(name):
            shard = await self.coordinator.shard(name)
            record = shard.log.state.transactions.get(name)
            now_ms = self._services.now_ms()
            verdict = transaction.end(record, producer_id, epoch, commits, now_ms)
            await self._store(shard, name, verdict)
        finished = self._finishing.get(name)
        if verdict.error is ErrorCode.NONE and finished is not None:
            try:
                async with asyncio.timeout(OUTCOME_S):
                    await finished.wait()
            except TimeoutError:
                pass  # it is decided; the markers go on
        return verdict.error

    async def _store(self, shard: Shard, name: str, verdict: TransactionVerdict) -> None:
        if verdict.record is None:
            return
        await self._keep(shard, name, verdict.record)
        if verdict.record.ending:
            self._finish(name)

    async def _keep(self, shard: Shard, name: str, record: TransactionRecord) -> None:
        """Stored when it returns. Raises as ``Coordinator.change``."""
        await self.coordinator.change(shard, [(TransactionKey(name), record)])
        # Now: its dates may be of another day by the next look, when somebody sets the clock.
        steady_ms = self._services.steady_ms()
        shard.used_since[name] = Since(record.changed_ms, steady_ms)
        if record.ongoing:
            shard.open_since.setdefault(name, Since(record.started_ms, steady_ms))
        else:
            shard.open_since.pop(name, None)

    def offsets_place(self, group_id: str) -> Place:
        """What a transaction that commits offsets of the group has as a part."""
        return kafka_name(self.coordinator.topic_for(group_id)), 0

    # -- is it part of it ---------------------------------------------------------------------

    async def takes_part(self, name: str, producer_id: int, epoch: int, place: Place) -> ErrorCode:
        """Whether the producer may write there now, as the id's coordinator says: the broker that
        leads the partition asks. Raises ``ServiceNotReadyError``, ``MetadataError``."""
        shard = self.coordinator.open_shard(name)
        if shard is None:
            topic = self.coordinator.topic_for(name)
            node = await self._services.leader_of(topic, await self._services.nodes())
            if node is NO_NODE:
                raise ServiceNotReadyError(f"the coordinator of {name} is not known")
            if node != self._services.node:
                return await self._ask(node, name, producer_id, epoch, place)
            shard = await self.coordinator.shard(name)
        record = shard.log.state.transactions.get(name)
        return transaction.takes_part(record, producer_id, epoch, place)

    async def _ask(
        self, node: Node, name: str, producer_id: int, epoch: int, place: Place
    ) -> ErrorCode:
        request = DescribeTransactionsRequest([name])
        answer = await self._services.ask(node, ApiKey.DESCRIBE_TRANSACTIONS, 0, request)
        said = told_one(answer.transactions)
        if said.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if said.error_code:
            raise ServiceNotReadyError(f"the coordinator of {name} answers {said.error_code}")
        places = tuple((topic.name, index) for topic in said.topics for index in topic.partitions)
        state = told_as(TransactionState, said.state)
        record = TransactionRecord(said.producer_id, said.producer_epoch, 0, state, places)
        return transaction.takes_part(record, producer_id, epoch, place)

    # -- offsets ------------------------------------------------------------------------------

    async def keep_offsets(
        self,
        name: str,
        producer_id: int,
        epoch: int,
        group_id: str,
        changes: Sequence[Change],
        refusal: Callable[[Shard], ErrorCode],
    ) -> ErrorCode:
        """TxnOffsetCommit: they count when the transaction commits. ``refusal``: what the group has
        against whoever commits. Raises as ``Coordinator.shard``."""
        shard = await self.coordinator.shard(group_id)
        if (refused := refusal(shard)) is not ErrorCode.NONE:
            return refused
        # Held from the question to the answer: a marker that comes between would find nothing to
        # end, and the offsets would wait for another for ever.
        async with self._group_locks.held(producer_id):
            place = self.offsets_place(group_id)
            error = await self.takes_part(name, producer_id, epoch, place)
            if error is ErrorCode.NONE:
                # Asked again: meanwhile the partitions may have gone to another member, which was
                # told what is committed and waits for nothing.
                error = refusal(shard)
            if error is ErrorCode.NONE:
                await self.coordinator.change(shard, changes)
            return error

    async def _end_offsets(
        self, topic: TopicName, ending: Ending, asked: Callable[[], bool]
    ) -> ErrorCode:
        async with self._group_locks.held(ending.producer_id):
            shard = await self.coordinator.shard_of(topic)
            await self.coordinator.settle(shard)  # what it may hold of them has to end, too
            if not asked():  # it was told another time: what waits by now is of the next one
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            now_ms = self._services.now_ms()
            pending = shard.log.state.pending
            changes: list[Change] = [*pending.ended(ending.producer_id, ending.commits, now_ms)]
            if changes:
                await self.coordinator.change(shard, changes)
            return ErrorCode.NONE

    # -- markers ------------------------------------------------------------------------------

    async def end_in(
        self, place: Place, ending: Ending, asked: Callable[[], bool] = lambda: True
    ) -> ErrorCode:
        """Have a partition that this broker leads end the transaction; stored when it returns.
        ``asked``: whoever wants it still waits."""
        name, index = place
        try:
            topic = topic_of(name)
            if topic.namespace == NAMESPACE:
                return await self._end_offsets(topic, ending, asked)
            partition = await self._services.partition(name, index)
            now_ms = self._services.now_ms()
            return (await partition.end_transaction(ending, now_ms, asked)).error
        except MagnetarError as error:
            return error_code(error)

    def _opened(self, shard: Shard) -> None:
        """A log was opened here: what a former coordinator has decided is finished."""
        for name, record in shard.log.state.transactions.items():
            if record.ending:
                self._finish(name)

    def _finish(self, name: str) -> None:
        if name not in self._finishing:
            self._finishing[name] = asyncio.Event()
            self._services.scope.spawn(self._finish_one(name), f"transaction {name}")

    async def _finish_one(self, name: str) -> None:
        wait_s = RETRY_S
        try:
            while not self._services.closing:
                try:
                    if await self._mark_all(name):
                        return
                except ServiceNotReadyError:
                    return  # the log has moved; its coordinator finds what is to be done
                except MagnetarError as error:
                    log.info("markers not sent yet", transaction=name, error=str(error))
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_S_MAX)
        finally:
            self._finishing.pop(name).set()

    async def _mark_all(self, name: str) -> bool:
        """Send the markers once; True if nothing is left to be done."""
        shard = await self.coordinator.shard(name)
        record = shard.log.state.transactions.get(name)
        if record is None or not record.ending:
            return True
        coordinator_epoch = shard.log.topic.log.epoch
        ending = Ending(record.producer_id, record.epoch, record.commits, coordinator_epoch)
        nodes = await self._services.nodes()
        by_node: dict[Node, list[Place]] = {}
        for place in record.partitions:
            try:
                node = await self._services.leader_of(await self._name_of(place), nodes)
            except TopicNotFoundError:
                continue
            except MagnetarError as error:  # the others get their markers, and this one later
                log.info("markers not sent yet", transaction=name, place=place, error=str(error))
                node = NO_NODE
            by_node.setdefault(node, []).append(place)
        outcomes = await asyncio.gather(
            *(self._mark_at(node, places, ending) for node, places in by_node.items())
        )
        if not all(outcomes):
            return False
        async with self._locks.held(name):
            if shard.log.state.transactions.get(name) is not record:
                return False
            done = transaction.marked(record, self._services.now_ms())
            await self._keep(shard, name, done)
        return True

    async def _name_of(self, place: Place) -> TopicName:
        """Raises ``TopicNotFoundError``: it is gone for certain."""
        try:
            return await self._name_known(place)
        except TopicNotFoundError:
            await self._services.control.partitioned.sync()
        return await self._name_known(place)

    async def _name_known(self, place: Place) -> TopicName:
        name, index = place
        topic = await self._services.name_of(name, index)
        services = self._services
        there = topic.namespace == NAMESPACE or await services.topics.exists(topic)
        if not there and not await services.count_of(topic_of(name)):
            raise TopicNotFoundError(f"topic {name} was deleted")
        return topic

    async def _mark_at(self, node: Node, places: Sequence[Place], ending: Ending) -> bool:
        """Whether all of them have their markers."""
        if node is NO_NODE:
            return False
        if node == self._services.node:
            found = await asyncio.gather(*(self.end_in(place, ending) for place in places))
            return all(map(_done, found))
        topics: dict[str, list[int]] = {}
        for name, index in places:
            topics.setdefault(name, []).append(index)
        marker = TransactionMarker(
            ending.producer_id,
            ending.epoch,
            ending.commits,
            [TopicPartitions(name, indexes) for name, indexes in topics.items()],
            ending.coordinator_epoch,
        )
        key, request = ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest([marker])
        try:
            answer = await self._services.ask(node, key, 1, request)
        except ServiceNotReadyError:
            return False  # not this coordinator's place, but that broker, is not there
        told = [
            part for said in answer.markers for topic in said.topics for part in topic.partitions
        ]
        return len(told) == len(places) and all(_done(part.error_code) for part in told)

    # -- time ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Looks for transactions that are open for too long, and for logs that are this broker's
        and that nobody has asked for."""
        looked_s = expired_s = float("-inf")
        loop = asyncio.get_running_loop()
        while True:
            if loop.time() - looked_s >= OPEN_CHECK_S:
                looked_s = loop.time()
                await self._open_own()
            for shard in self.coordinator.open_shards():
                self._opened(shard)  # and once more for what a log in doubt has let go of
                await self._time_out(shard)
            if loop.time() - expired_s >= EXPIRY_CHECK_S:
                expired_s = loop.time()
                for shard in self.coordinator.open_shards():
                    await self._expire(shard)
            await asyncio.sleep(TIME_CHECK_S)

    async def _open_own(self) -> None:
        """A log may hold transactions that wait for markers, and readers that wait for those."""
        try:
            await self.coordinator.open_led()
        except MagnetarError as error:
            log.debug("coordinator logs not looked for", error=str(error))

    def _since(self, before: Mapping[str, Since], dates: Mapping[str, int]) -> dict[str, Since]:
        """What was known by the steady clock of these dates stays; of others it is worked out."""
        return {
            name: known
            if (known := before.get(name)) and known.date_ms == date_ms
            else Since(date_ms, self._services.steady_of(date_ms))
            for name, date_ms in dates.items()
        }

    async def _time_out(self, shard: Shard) -> None:
        records, services = shard.log.state.transactions, self._services
        started = {name: each.started_ms for name, each in records.items() if each.ongoing}
        shard.open_since = self._since(shard.open_since, started)
        steady_ms = services.steady_ms()
        late = [
            name
            for name, known in shard.open_since.items()
            if steady_ms - known.steady_ms >= records[name].timeout_ms
        ]
        for name in late:
            try:
                async with self._locks.held(name):
                    found, known = records.get(name), shard.open_since.get(name)
                    if found is None or known is None or found.started_ms != known.date_ms:
                        continue  # it has ended meanwhile, and another may have begun
                    open_ms = services.steady_ms() - known.steady_ms
                    aborted = transaction.time_out(found, open_ms, services.now_ms())
                    if aborted:
                        log.info("transaction timed out", transaction=name)
                        await self._store(shard, name, TransactionVerdict(ErrorCode.NONE, aborted))
            except MagnetarError as error:
                log.info("transaction not timed out yet", transaction=name, error=str(error))

    async def _expire(self, shard: Shard) -> None:
        """Ids that nobody has used for long are forgotten."""
        kept_ms = self._services.config.transactional_ids_retention_ms
        if not kept_ms:
            return
        records = shard.log.state.transactions
        changed = {name: each.changed_ms for name, each in records.items()}
        shard.used_since = self._since(shard.used_since, changed)
        steady_ms = self._services.steady_ms()
        for name, record in list(records.items()):
            unused_ms = steady_ms - shard.used_since[name].steady_ms
            if record.ongoing or record.ending or unused_ms <= kept_ms:
                continue
            try:
                async with self._locks.held(name):
                    if records.get(name) is record:
                        await self.coordinator.change(shard, [(TransactionKey(name), None)])
            except MagnetarError as error:
                log.info("transactional id not forgotten", transaction=name, error=str(error))

    # -- for people ---------------------------------------------------------------------------

    async def find(self, name: str) -> TransactionRecord | None:
        """Raises as ``Coordinator.shard``."""
        shard = await self.coordinator.shard(name)
        return shard.log.state.transactions.get(name)

    async def all(self) -> dict[str, TransactionRecord]:
        """Of the logs that are open here."""
        await self.coordinator.open_own()
        found: dict[str, TransactionRecord] = {}
        for shard in self.coordinator.open_shards():
            found |= shard.log.state.transactions
        return found


def _done(error: int) -> bool:
    return error in (ErrorCode.NONE, *SAID_BY_PRODUCERS)
