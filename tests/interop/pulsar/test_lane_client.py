"""The client of lanes beside ours (``bench.peers.pulsar_client``) against a broker."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from bench.peers import pulsar_client
from bench.peers.pulsar_client import PulsarProtocol
from magnetar.proving.speaking import ALL
from tests.interop.pulsar.services import Service


@pytest.mark.parametrize("acks", [1, ALL])
def test_what_is_acknowledged_is_read_by_the_official_client(
    service: Service, topic: str, acks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulsar_client, "NAMESPACE", "public/default")
    place = urlsplit(service.url)
    address = place.hostname or "", place.port or 0
    protocol, name = PulsarProtocol([address]), f"{topic.rpartition('/')[2]}-{acks}"
    view = protocol.look(address, name)
    assert view.leader == 1
    speaker = protocol.speaker(name, acks)
    places: list[int] = []
    for first in (0, 10):  # the second is a line that comes after the first
        line = speaker.connect(view.nodes[1])
        line.begin()
        sent = [line.send(number, 10.0) for number in range(first, first + 10)]
        places += [line.answer(each, 30.0) for each in sent]
        line.close()
    assert places == sorted(set(places))
    found, end = speaker.read(address)
    assert [each.number for each in found] == list(range(20))
    assert [each.offset for each in found] == places
    assert end == places[-1] + 1
    tail, _ = speaker.read(address, places[15])
    assert [each.number for each in tail] == list(range(15, 20))
