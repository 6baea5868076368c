"""Requests of a connection by themselves: subjects, bounds, faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from magnetar.env.tasks import TaskScope, awaited
from magnetar.protocols.pulsar.requests import (
    LARGE,
    REQUEST_BYTES_MAX,
    REQUESTS_MAX,
    SIDE_BY_SIDE,
    Requests,
    Subject,
)
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, Schema

FIRST = ("producer", 1)
OTHER = ("producer", 2)


class Client:
    """Begins every request at once, and ends it when it is told to."""

    def __init__(self) -> None:
        self.peer = "client"
        self.closed = False
        self.begun: list[int] = []
        self.crowded: list[bool] = []
        self.cancelled: list[int] = []
        self._ends: dict[int, asyncio.Future[None]] = {}

    async def answer(self, command: BaseCommand) -> None:
        number = command.success.request_id
        self.begun.append(number)
        self._ends[number] = asyncio.get_running_loop().create_future()
        try:
            await self._ends[number]
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise

    async def end(self, number: int, error: Exception | None = None) -> None:
        future = self._ends.pop(number)
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        await settled()

    def requests_crowded(self, crowded: bool) -> None:
        self.crowded.append(crowded)

    def close(self) -> None:
        self.closed = True


def request(number: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SUCCESS)
    command.success.request_id = number
    return command


SIZE = 10
"""Of a request, as it came."""


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(scenario: Callable[[Client, Requests], Awaitable[None]]) -> None:
    async def main() -> None:
        client, scope = Client(), TaskScope("test", awaited(by="the test"))
        await scenario(client, Requests(scope))
        await scope.close()

    asyncio.run(main())


def test_one_subject_runs_in_order_and_beside_others() -> None:
    async def scenario(client: Client, requests: Requests) -> None:
        for number, subject in enumerate((FIRST, FIRST, OTHER, FIRST)):
            requests.begin(client, subject, request(number), SIZE)
        await settled()
        assert client.begun == [0, 2]
        await client.end(0)
        assert client.begun == [0, 2, 1]
        await client.end(1)
        assert client.begun == [0, 2, 1, 3]

    run(scenario)


def test_a_lane_is_free_again_after_its_last_request() -> None:
    async def scenario(client: Client, requests: Requests) -> None:
        requests.begin(client, FIRST, request(0), SIZE)
        await settled()
        await client.end(0)
        requests.begin(client, FIRST, request(1), SIZE)
        await settled()
        assert client.begun == [0, 1]

    run(scenario)


def test_requests_about_nothing_run_side_by_side() -> None:
    async def scenario(client: Client, requests: Requests) -> None:
        for number in range(3):
            requests.begin(client, SIDE_BY_SIDE, request(number), SIZE)
        await settled()
        assert client.begun == [0, 1, 2]

    run(scenario)


def test_too_many_are_told_once_and_so_is_the_end_of_it() -> None:
    async def scenario(client: Client, requests: Requests) -> None:
        for number in range(REQUESTS_MAX):
            requests.begin(client, FIRST if number % 2 else SIDE_BY_SIDE, request(number), SIZE)
        assert client.crowded == []
        requests.begin(client, FIRST, request(REQUESTS_MAX), SIZE)
        requests.begin(client, FIRST, request(REQUESTS_MAX + 1), SIZE)
        assert client.crowded == [True]
        await settled()
        for number in range(0, REQUESTS_MAX, 2):
            await client.end(number)
        assert client.crowded == [True]
        await client.end(1)
        await client.end(3)
        assert client.crowded == [True, False]

    run(scenario)


def test_a_fault_ends_the_connection_and_what_waits_behind_it() -> None:
    async def scenario(client: Client, requests: Requests) -> None:
        for number in range(3):
            requests.begin(client, FIRST, request(number), SIZE)
        await settled()
        await client.end(0, ValueError("a fault of the program"))
        assert client.closed
        assert client.begun == [0]

    run(scenario)


def test_nothing_more_is_begun_for_a_client_that_left() -> None:
    async def scenario(client: Client, requests: Requests) -> None:
        for number in range(2):
            requests.begin(client, FIRST, request(number), SIZE)
        await settled()
        client.closed = True
        await client.end(0)
        assert client.begun == [0]

    run(scenario)


def test_a_large_answer_is_not_worked_on_for_a_client_that_left() -> None:
    """The list of a namespace was made to its end, for each connection that had asked for one."""

    async def scenario(client: Client, requests: Requests) -> None:
        for number, subject in enumerate((FIRST, LARGE, LARGE, SIDE_BY_SIDE)):
            requests.begin(client, subject, request(number), SIZE)
        await settled()
        client.closed = True
        requests.hang_up()
        await settled()
        assert client.cancelled == [1]
        assert sorted(client.begun) == [0, 1, 3]
        for number in (0, 3):  # what may change something goes on
            await client.end(number)
        requests.hang_up()
        assert client.cancelled == [1]

    run(scenario)


@pytest.mark.parametrize("subjects", [[FIRST] * 3, [SIDE_BY_SIDE] * 3, [FIRST, OTHER, FIRST]])
def test_large_ones_are_too_many_sooner(subjects: list[Subject]) -> None:
    async def scenario(client: Client, requests: Requests) -> None:
        for turn in range(3):
            for number, subject in enumerate(subjects):
                command = request(number)
                command.success.schema.name, command.success.schema.type = "", Schema.String
                command.success.schema.schema_data = bytes(REQUEST_BYTES_MAX * 2 // 5)
                requests.begin(client, subject, command, command.ByteSize())
                await settled()
                assert client.crowded == [True, False] * turn + [True] * (number == 2)
            for number in sorted(range(3), key=lambda each: (subjects[each], each)):
                await client.end(number)
            assert client.crowded == [True, False] * (turn + 1), "what is answered is forgotten"

    run(scenario)
