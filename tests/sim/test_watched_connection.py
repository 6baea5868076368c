"""What the simulator's watch of a broker's connections takes for broken, and what not."""

from __future__ import annotations

from magnetar.model.ids import Position
from magnetar.wire.pulsar.commands import encode_command, encode_payload_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, MessageIdData
from magnetar_sim.brokers.broker_watch import BrokerWatch
from magnetar_sim.brokers.pulsar_client import encode_payload
from magnetar_sim.brokers.topic_history import Subscription, content_of
from magnetar_sim.brokers.watched_connection import WatchedConnection

TOPIC, READER, CONSUMER_ID, PROCESS = "persistent://public/default/t", "reader", 2, 0
ENTRY = encode_payload("p", 0, 1_700_000_000_000, [b"p/0"])


class Watched:
    """A topic with one entry, and the connections of its reader."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.watch = BrokerWatch(
            lambda: 0.0, self.broken.append, lambda _what: None, lambda _name: True
        )
        self.watch.topic(TOPIC).sent(content_of(memoryview(ENTRY)))

    read_only = False

    def connect(self) -> WatchedConnection:
        return WatchedConnection(self.watch, PROCESS, self.read_only)

    def read_from(self, entry_id: int) -> WatchedConnection:
        """The reader subscribes, and may be sent a message."""
        connection = self.connect()
        self.ask_from(connection, entry_id)
        seat(connection)
        return connection

    def ask_from(self, connection: WatchedConnection, entry_id: int) -> None:
        """The reader subscribes, and is not answered."""
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        request = command.subscribe
        request.topic, request.subscription, request.durable = TOPIC, READER, False
        request.subType = request.Exclusive
        request.consumer_id, request.request_id = CONSUMER_ID, 1
        request.start_message_id.CopyFrom(MessageIdData(ledgerId=0, entryId=entry_id))
        connection.received(encode_command(command))

    def message(self, connection: WatchedConnection, entry_id: int, redelivered: int = 0) -> None:
        command = BaseCommand(type=BaseCommand.MESSAGE)
        command.message.consumer_id = CONSUMER_ID
        command.message.message_id.CopyFrom(MessageIdData(ledgerId=0, entryId=entry_id))
        command.message.redelivery_count = redelivered
        connection.sent(encode_payload_command(command, ENTRY))


def ask_to_share(connection: WatchedConnection) -> None:
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    request = command.subscribe
    request.topic, request.subscription, request.subType = TOPIC, "s", request.Shared
    request.consumer_id, request.request_id = CONSUMER_ID, 1
    request.initialPosition = request.Earliest
    connection.received(encode_command(command))


def seat(connection: WatchedConnection) -> None:
    """What it asked for is so, and it may be sent a message."""
    answer = BaseCommand(type=BaseCommand.SUCCESS)
    answer.success.request_id = 1
    connection.sent(encode_command(answer))
    flow = BaseCommand(type=BaseCommand.FLOW)
    flow.flow.consumer_id, flow.flow.messagePermits = CONSUMER_ID, 1
    connection.received(encode_command(flow))


def seek(connection: WatchedConnection, entry_id: int) -> None:
    command = BaseCommand(type=BaseCommand.SEEK)
    command.seek.consumer_id, command.seek.request_id = CONSUMER_ID, 2
    command.seek.message_id.CopyFrom(MessageIdData(ledgerId=0, entryId=entry_id))
    connection.received(encode_command(command))


def sought(connection: WatchedConnection, entry_id: int) -> None:
    """A seek that is answered."""
    seek(connection, entry_id)
    answer = BaseCommand(type=BaseCommand.SUCCESS)
    answer.success.request_id = 2
    connection.sent(encode_command(answer))


def test_a_reader_begins_where_it_asks() -> None:
    watched = Watched()
    watched.message(watched.read_from(179), 78)
    assert len(watched.broken) == 1
    assert "0:78, and was to begin at 0:179" in watched.broken[0]


def test_nobody_knows_where_a_reader_stands_after_a_seek_without_an_answer() -> None:
    """The broker seeks, also if the connection ends meanwhile."""
    watched = Watched()
    connection = watched.read_from(170)
    seek(connection, 78)
    connection.ended()
    watched.message(watched.read_from(179), 78)
    assert watched.broken == []


def test_who_comes_back_after_a_seek_without_an_answer_is_held_to_the_next_seek() -> None:
    watched = Watched()
    connection = watched.read_from(170)
    seek(connection, 78)
    connection.ended()
    again = watched.read_from(179)
    sought(again, 90)
    watched.message(again, 78)
    assert len(watched.broken) == 1


def test_who_loses_its_connection_as_it_comes_back_after_a_seek_may_begin_anew() -> None:
    """Its broker seated it, and ended that with the connection; nobody had heard of it."""
    for asks, broken in ((True, 0), (False, 1)):
        watched = Watched()
        connection = watched.read_from(170)
        sought(connection, 90)
        connection.ended()
        returning = watched.connect()
        if asks:
            watched.ask_from(returning, 78)
        returning.ended()
        watched.message(watched.read_from(78), 78)
        assert len(watched.broken) == broken


def test_after_a_seek_at_a_read_only_broker_another_connection_begins_where_it_asks() -> None:
    """There a place after a seek is that of the connection: a reader that comes by another one may
    have sought at the topic's owner meanwhile."""
    for read_only, broken in ((False, 1), (True, 0)):
        watched = Watched()
        watched.read_only = read_only
        connection = watched.read_from(70)
        sought(connection, 90)
        connection.ended()
        watched.message(watched.read_from(70), 78)
        assert len(watched.broken) == broken


def test_a_seek_by_time_past_what_is_gone_may_leave_out_what_was_published_before_it() -> None:
    """Times are not in order: an older message lies behind the only one that is late enough. Where
    that one is trimmed the broker finds none, and begins behind everything."""
    for is_gone, broken in ((True, 0), (False, 2)):
        watched = Watched()
        topic = watched.watch.topic(TOPIC)
        topic.trims = True
        times_ms = (1_700_000_002_000, 1_700_000_001_000, 1_700_000_000_000)
        payloads = [
            encode_payload("q", number, time_ms, [f"q/{number}".encode()])
            for number, time_ms in enumerate(times_ms)
        ]
        for number, payload in enumerate(payloads[:2]):
            content = content_of(memoryview(payload))
            topic.sent(content)
            topic.stands_at(Position(0, number), content, "q")
        wanted = Subscription("s", acked_to=Position(0, 0) if is_gone else Position(-1, -1))
        topic.subscriptions["s"] = wanted
        connection = watched.read_from(0)
        command = BaseCommand(type=BaseCommand.SEEK)
        command.seek.consumer_id, command.seek.request_id = CONSUMER_ID, 2
        command.seek.message_publish_time = 1_700_000_001_500
        connection.received(encode_command(command))
        answer = BaseCommand(type=BaseCommand.SUCCESS)
        answer.success.request_id = 2
        connection.sent(encode_command(answer))
        topic.sent(content_of(memoryview(payloads[2])))
        again = watched.read_from(0)
        command = BaseCommand(type=BaseCommand.MESSAGE)
        command.message.consumer_id = CONSUMER_ID
        command.message.message_id.CopyFrom(MessageIdData(ledgerId=0, entryId=2))
        again.sent(encode_payload_command(command, payloads[2]))
        assert len(watched.broken) == broken, watched.broken


def test_what_was_decided_before_a_redelivery_may_come_behind_it() -> None:
    """Within one instant; then it begins anew, and who goes on without that is found."""
    for then, broken in ((0, 0), (4, 1)):
        watched = Watched()
        now_s = 1.0
        watched.watch.now_s = lambda: now_s  # noqa: B023 (called in this turn of the loop only)
        topic = watched.watch.topic(TOPIC)
        payloads = [
            encode_payload("q", n, 1_700_000_000_000, [f"q/{n}".encode()]) for n in range(5)
        ]
        for payload in payloads:
            topic.sent(content_of(memoryview(payload)))
        connection = watched.read_from(0)
        flow = BaseCommand(type=BaseCommand.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = CONSUMER_ID, 10
        connection.received(encode_command(flow))

        def message(entry_id: int) -> None:
            command = BaseCommand(type=BaseCommand.MESSAGE)
            command.message.consumer_id = CONSUMER_ID
            command.message.message_id.CopyFrom(MessageIdData(ledgerId=0, entryId=entry_id))
            payload = payloads[entry_id]  # noqa: B023
            connection.sent(encode_payload_command(command, payload))  # noqa: B023

        message(0)
        message(1)
        again = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        again.redeliverUnacknowledgedMessages.consumer_id = CONSUMER_ID
        connection.received(encode_command(again))
        message(2)
        message(3)
        now_s = 2.0
        message(then)
        assert bool(watched.broken) == broken, watched.broken


def test_refusals_may_be_known_to_who_was_seated_before_the_others_went() -> None:
    """Its broker had a consumer at each moment, and has forgotten none; else all are forgotten."""
    for seated_before, count, broken in ((True, 1, 0), (True, 0, 0), (True, 2, 1), (False, 1, 1)):
        watched = Watched()
        first, second = watched.connect(), watched.connect()
        ask_to_share(first)
        seat(first)
        watched.message(first, 0)
        refusal = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        request = refusal.redeliverUnacknowledgedMessages
        request.consumer_id = CONSUMER_ID
        request.message_ids.add(ledgerId=0, entryId=0)
        first.received(encode_command(refusal))
        if seated_before:
            ask_to_share(second)
        first.ended()
        if not seated_before:
            ask_to_share(second)
        seat(second)
        watched.message(second, 0, count)
        assert len(watched.broken) == broken, watched.broken
