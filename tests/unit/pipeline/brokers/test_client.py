"""What the pipeline asks brokers about names."""

from __future__ import annotations

from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandGetTopicsOfNamespace


class Asked(BrokerClient):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__("pulsar://127.0.0.1:6650")
        self.commands: list[BaseCommand] = []

    def ask(self, command: BaseCommand) -> BaseCommand:
        self.commands.append(command)
        return BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)


def test_topics_are_asked_for_so_that_a_misspelled_namespace_is_an_error() -> None:
    client = Asked()
    assert client.topics("public/default") == []
    (command,) = client.commands
    assert command.getTopicsOfNamespace.mode == CommandGetTopicsOfNamespace.ALL
