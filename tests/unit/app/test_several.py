"""Which ports the brokers of one machine take, and servers that are kept running."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from magnetar.admin.peers import PeerAnswer, PeerError
from magnetar.app import children as children_module
from magnetar.app.checks import other_process_check
from magnetar.app.children import Child, Children, Probe
from magnetar.app.metadata_socket import socket_place
from magnetar.app.several import bookies_port, choose_ports
from magnetar.config import Config
from magnetar.env.tasks import TaskScope, awaited
from magnetar.model.errors import ConfigError, StartError

SERVER = "print('ready', flush=True); import signal; signal.pause()"
"""It ends by the first signal."""


def configured(pulsar: int, http: int) -> Config:
    config = Config()
    return replace(
        config,
        broker=replace(config.broker, port=pulsar),
        http=replace(config.http, port=http),
    )


def test_each_broker_has_the_first_ones_ports_and_its_number() -> None:
    ports = choose_ports(configured(6650, 8080), 3)
    assert [each.pulsar for each in ports] == [6650, 6651, 6652]
    assert [each.http for each in ports] == [8080, 8081, 8082]


def test_each_broker_has_tls_ports_of_its_own() -> None:
    config = configured(6650, 8080)
    config = replace(
        config,
        broker=replace(config.broker, tls_port=6751),
        kafka=replace(config.kafka, port=-1, tls_port=9093),
    )
    ports = choose_ports(config, 2)
    assert [dict(each.tls) for each in ports] == [
        {"broker.tls_port": 6751, "kafka.tls_port": 9093},
        {"broker.tls_port": 6752, "kafka.tls_port": 9094},
    ]
    assert [each.kafka for each in ports] == [-1, -1]
    clashing = replace(config, kafka=replace(config.kafka, port=9092, tls_port=9093))
    with pytest.raises(ConfigError, match="9093"):
        choose_ports(clashing, 2)


def test_free_ports_differ() -> None:
    """However often: those of one setting were given back before the next one's were chosen, and
    the kernel sometimes gave one of them again."""
    config = configured(0, 0)
    config = replace(config, kafka=replace(config.kafka, port=0))
    for _ in range(50):
        ports = choose_ports(config, 8)
        assert len({one for each in ports for one in (each.pulsar, each.http, each.kafka)}) == 24


def test_ports_that_two_would_have_are_refused() -> None:
    choose_ports(configured(6650, 6652), 2)
    with pytest.raises(ConfigError, match=r"6652.* 3 or more apart"):
        choose_ports(configured(6650, 6652), 3)


def test_the_bookies_of_several_brokers_have_a_port_behind_theirs() -> None:
    config = configured(6650, 8080)
    assert bookies_port(config, choose_ports(config, 3)) == 8083
    clashing = configured(8083, 8080)
    with pytest.raises(ConfigError, match=r"8083.* 4 or more apart"):
        bookies_port(clashing, choose_ports(clashing, 3))
    free = configured(0, 0)
    ports = choose_ports(free, 3)
    assert bookies_port(free, ports) not in {each.http for each in ports}


class Answering:
    """``admin.peers.Transport``: whatever it is asked, it answers that."""

    def __init__(self, answer: PeerAnswer | None) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def ask(
        self, method: str, url: str, query: Mapping[str, str], body: object
    ) -> PeerAnswer:
        self.asked.append(url)
        if self.answer is None:
            raise PeerError("nobody listens")
        return self.answer


def test_what_is_wrong_in_the_process_with_the_bookies_is_told_by_a_broker() -> None:
    well = {"part": "metadata", "ok": True, "problem": "", "remedy": ""}
    broken = {"part": "bookie-0", "ok": False, "problem": "the disk failed", "remedy": "a new one"}
    for answer, ok, said in (
        (PeerAnswer(200, {"ok": True, "parts": [well]}), True, ""),
        (PeerAnswer(503, {"ok": False, "parts": [well, broken]}), False, "bookie-0: the disk fai"),
        (PeerAnswer(401, {"reason": "who?"}), False, "refuses to answer"),
        (PeerAnswer(404, {"reason": "no such path"}), False, "answers 404"),
        (None, False, "nobody listens"),
    ):
        transport = Answering(answer)
        found = asyncio.run(cast(Any, other_process_check(transport, "http://b:1")()))
        assert transport.asked == ["http://b:1/health"]
        assert (found.ok, said in found.problem) == (ok, True)
        assert bool(found.remedy) == (not ok)


def run(scenario: Callable[[Children], Awaitable[None]], *programs: str) -> None:
    async def main() -> None:
        scope = TaskScope("test", awaited(by="the test"))
        children = Children(
            [Child(str(n), [sys.executable, "-c", text]) for n, text in enumerate(programs)], scope
        )
        try:
            await scenario(children)
        finally:
            await children.end()
        assert [child.pid for child in children.children] == [None] * len(programs)

    asyncio.run(asyncio.wait_for(main(), 120))


async def eventually(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - what is waited for has no event to set
        await asyncio.sleep(0.01)


async def first_is_started_again(children: Children) -> None:
    """After it was killed; the other stays."""
    first, second = children.children
    pid, other = first.pid, second.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: first.started == 2 and first.pid not in (None, pid))
    assert (second.pid, second.started) == (other, 1)


def test_one_that_dies_is_started_again_and_the_others_stay() -> None:
    async def scenario(children: Children) -> None:
        await children.start()
        await first_is_started_again(children)

    run(scenario, SERVER, SERVER)


def test_one_that_does_not_start_fails_them_all() -> None:
    async def scenario(children: Children) -> None:
        with pytest.raises(StartError, match="1 has ended with 3"):
            await children.start()

    run(scenario, SERVER, "raise SystemExit(3)")


def test_one_that_does_not_answer_is_killed_and_started_again() -> None:
    async def main() -> None:
        answering = True

        async def answers() -> bool:
            if not answering:
                await asyncio.sleep(3600)
            return True

        scope = TaskScope("test", awaited(by="the test"))
        child = Child("one", [sys.executable, "-c", SERVER], Probe(answers, 0.1))
        children = Children([child], scope)
        await children.start()
        pid = child.pid
        await asyncio.sleep(0.3)
        assert (child.pid, child.started) == (pid, 1)
        answering = False
        await eventually(lambda: child.started == 2)
        answering = True
        await children.end()

    asyncio.run(asyncio.wait_for(main(), 120))


def test_one_that_has_ended_but_for_its_process_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its doors are closed, and something keeps it."""
    monkeypatch.setattr(children_module, "END_S", 0.2)

    async def main() -> None:
        listens = True

        async def answers() -> bool:
            return listens

        scope = TaskScope("test", awaited(by="the test"))
        child = Child("one", [sys.executable, "-c", SERVER], Probe(answers, 0.1))
        children = Children([child], scope)
        await children.start()
        await asyncio.sleep(0.3)
        assert child.started == 1
        listens = False
        await eventually(lambda: child.started == 2)
        pid = child.pid
        await asyncio.sleep(1)
        assert (child.pid, child.started) == (pid, 2), "one that begins is waited for"
        monkeypatch.setattr(children_module, "END_S", 45.0)
        await children.end()

    asyncio.run(asyncio.wait_for(main(), 120))


def test_the_end_waits_for_no_pause() -> None:
    """Of one that ends as soon as it is started."""

    async def scenario(children: Children) -> None:
        await children.start()
        await eventually(lambda: children.children[0].started >= 3)

    run(scenario, "print('ready', flush=True)")


def test_what_a_killed_process_has_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each left a directory in that of temporary files."""
    temporary, data_dir = tmp_path / "tmp", tmp_path / "data"
    temporary.mkdir()
    data_dir.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    async def main() -> None:
        killed = AsyncExitStack()
        first = socket_place(killed, data_dir)
        first.touch()
        kept = killed.pop_all()  # what is on it never ends
        async with AsyncExitStack() as stack:
            socket_place(stack, Path(shutil.copytree(data_dir, tmp_path / "copy")))
            assert first.exists(), "of another directory"
        async with AsyncExitStack() as stack:
            second = socket_place(stack, data_dir)
            assert not first.parent.exists()
            assert [*temporary.iterdir()] == [second.parent]
            assert second.parent.stat().st_mode & 0o077 == 0
        assert not [*temporary.iterdir(), *data_dir.iterdir()]
        await kept.aclose()

    asyncio.run(main())


def test_a_path_that_no_socket_can_have_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))

    async def main() -> None:
        async with AsyncExitStack() as stack:
            with pytest.raises(StartError, match="TMPDIR"):
                socket_place(stack, tmp_path)

    asyncio.run(main())
    assert [*tmp_path.iterdir(), *long.iterdir()] == [long]


def slow_starts(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Event]:
    """Each start of a process takes until its event is set, in the order of the starts."""
    made, begun = asyncio.create_subprocess_exec, []

    async def create(*command: str, **more: Any) -> Any:
        begun.append(asyncio.Event())
        await begun[-1].wait()
        return await made(*command, **more)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create)
    return begun


@pytest.mark.parametrize("stubborn", [False, True])
def test_one_that_is_just_being_started_again_is_ended_too(
    monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    """It was never told, and who had started it waited for it for ever."""
    monkeypatch.setattr(children_module, "END_S", 2.0)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" if stubborn else ""

    async def main() -> None:
        scope = TaskScope("test", awaited(by="the test"))
        child = Child("one", [sys.executable, "-c", deaf + SERVER + "; signal.pause()"])
        children = Children([child], scope)
        await children.start()
        begun = slow_starts(monkeypatch)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        await eventually(lambda: len(begun) == 1)
        ending = asyncio.ensure_future(children.end())
        await asyncio.sleep(0.1)
        begun[0].set()
        await ending
        assert (child.pid, child.started) == (None, 2)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_one_that_cannot_be_started_again_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine had no room for a process for a moment: the parent ended, with all others."""

    async def scenario(children: Children) -> None:
        await children.start()
        made, left = asyncio.create_subprocess_exec, 2

        async def create(*command: str, **more: Any) -> Any:
            nonlocal left
            if left:
                left -= 1
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return await made(*command, **more)

        monkeypatch.setattr(asyncio, "create_subprocess_exec", create)
        await first_is_started_again(children)

    run(scenario, SERVER, SERVER)
