"""The simulated world itself: processes, TCP's rules, what a power cut leaves, sessions."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from magnetar.env.metadata import CreateMode, SessionState, Versioned
from magnetar.env.network.connections import Connections
from magnetar.env.network.framed import FramedConnection
from magnetar.log.managed.node import RecordNode
from magnetar.model.errors import (
    BadVersionError,
    LogFencedError,
    MetadataUnavailableError,
    NoNodeError,
    SessionExpiredError,
)
from magnetar.repair.marks import Lock, ShortageMarks
from magnetar_sim.world.disk import CAPACITY_BYTES, SimDisk
from magnetar_sim.world.loop import SimLoop, SimProcess, run_in, until
from magnetar_sim.world.metadata import SimMetadataServer, SimMetadataStore
from magnetar_sim.world.network import HIGH_BYTES, SimNetwork
from magnetar_sim.world.scheduler import SimulationError

ROOT = Path("/disk")


def on_loop(main: Callable[[SimLoop], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    loop = SimLoop(random.Random(seed))
    try:
        loop.run_until_complete(main(loop))
    finally:
        loop.finish()


# -- the loop ---------------------------------------------------------------------------------


def test_time_is_virtual_and_a_hang_is_told() -> None:
    async def main(loop: SimLoop) -> None:
        await asyncio.sleep(1000)
        assert loop.time() == 1000
        await loop.create_future()

    with pytest.raises(SimulationError, match="nothing will ever happen"):
        on_loop(main)


def test_what_still_waits_ends_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what an asynchronous generator waits for, of which nothing but a collection tells."""
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append(args.exc_value))

    async def waits() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            asyncio.current_task()

    async def values() -> AsyncIterator[int]:
        await waits()
        yield 1

    async def reads() -> None:
        async for _ in values():
            pass

    async def main(loop: SimLoop) -> None:
        SimProcess(loop, "a").spawn(reads(), "reads")
        await asyncio.sleep(1)

    on_loop(main)
    gc.collect()
    assert told == []


def test_an_error_in_a_callback_fails_the_run() -> None:
    async def main(loop: SimLoop) -> None:
        loop.call_soon(lambda: [][1])
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match="IndexError"):
        on_loop(main)


def test_a_paused_process_goes_on_later_and_a_killed_one_never() -> None:
    beats: dict[str, list[float]] = {"a": [], "b": []}

    async def beat(loop: SimLoop, name: str) -> None:
        try:
            while True:
                beats[name].append(loop.time())
                await asyncio.sleep(1)
        finally:
            beats[name].append(-1)  # nothing of a killed process runs, this neither

    async def main(loop: SimLoop) -> None:
        a, b = loop.new_process("a"), loop.new_process("b")
        a.spawn(beat(loop, "a"), "beat")
        b.spawn(beat(loop, "b"), "beat")
        await asyncio.sleep(2.5)
        a.pause()
        b.kill()
        await asyncio.sleep(4)
        a.resume()
        await asyncio.sleep(1.2)
        assert beats["a"] == [0, 1, 2, 6.5, 7.5]
        assert beats["b"] == [0, 1, 2]

    on_loop(main)


# -- the network ------------------------------------------------------------------------------


class Peer(FramedConnection):
    """Keeps what it receives."""

    def __init__(self) -> None:
        super().__init__(1 << 20, Connections())
        self.frames: list[bytes] = []
        self.ended: list[Exception | None] = []

    def frames_received(self, view: memoryview, bounds: Any) -> None:
        self.frames += [bytes(view[start:end]) for start, end in bounds]

    def disconnected(self, error: Exception | None) -> None:
        self.ended.append(error)


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


async def connected(loop: SimLoop) -> tuple[SimNetwork, Peer, Peer, Any]:
    """Client and server side of a connection from a to b, and the process of b."""
    network = loop.network = SimNetwork(loop, random.Random(1))
    a, b = loop.new_process("a"), loop.new_process("b")
    accepted: list[Peer] = []

    def accept() -> Peer:
        accepted.append(Peer())
        return accepted[0]

    async def listen() -> None:
        await loop.create_server(accept, "b", 1)

    async def connect() -> Peer:
        return (await loop.create_connection(Peer, "b", 1))[1]  # type: ignore[no-any-return]

    b.spawn(listen(), "listen")
    await asyncio.sleep(0)
    task = a.spawn(connect(), "connect")
    await until(lambda: task.done() and accepted, 0.001)
    return network, task.result(), accepted[0], b


def test_bytes_arrive_whole_and_in_order_and_late_through_a_blocked_link() -> None:
    async def main(loop: SimLoop) -> None:
        network, client, server, _ = await connected(loop)
        sent = [frame(b"%d" % i * (i + 1)) for i in range(200)]
        for data in sent:
            client.write(data)
        await asyncio.sleep(1)
        assert b"".join(frame(body) for body in server.frames) == b"".join(sent)
        network.block("a", "b")
        client.write(frame(b"late"))
        server.write(frame(b"other way"))
        await asyncio.sleep(5)
        assert server.frames[-1] != b"late"
        assert client.frames == [b"other way"]
        network.unblock("a", "b")
        await asyncio.sleep(1)
        assert server.frames[-1] == b"late"

    on_loop(main)


def test_refused_connections_leave_those_that_exist() -> None:
    async def main(loop: SimLoop) -> None:
        network, client, server, _ = await connected(loop)
        network.weather.refused["a", "b"] = None
        client.write(frame(b"still here"))

        async def again() -> None:
            await loop.create_connection(Peer, "b", 1)

        refused = loop.new_process("a").spawn(again(), "again")
        await until(refused.done, 0.1)
        assert server.frames == [b"still here"]
        assert isinstance(refused.exception(), ConnectionRefusedError)

    on_loop(main)


def test_a_writer_is_paused_while_nobody_reads() -> None:
    async def main(loop: SimLoop) -> None:
        _, client, server, _ = await connected(loop)
        server.transport.pause_reading()  # type: ignore[union-attr]
        client.write(frame(bytes(HIGH_BYTES + 1)))
        await asyncio.sleep(0)
        assert not client.writable
        server.transport.resume_reading()  # type: ignore[union-attr]
        await asyncio.sleep(1)
        assert client.writable

    on_loop(main)


def test_a_kill_is_heard_of_and_a_power_cut_is_not_until_the_host_is_back() -> None:
    async def killed(loop: SimLoop) -> None:
        network, client, _, process = await connected(loop)
        process.kill()
        network.process_ended(process, silently=False)
        await asyncio.sleep(1)
        assert len(client.ended) == 1

    async def power(loop: SimLoop) -> None:
        network, client, _, process = await connected(loop)
        process.kill()
        network.process_ended(process, silently=True)
        client.write(frame(b"into the void"))
        await asyncio.sleep(60)
        assert client.ended == []
        network.host_back("b")
        await asyncio.sleep(1)
        assert len(client.ended) == 1

    on_loop(killed)
    on_loop(power)


def test_a_good_end_comes_after_the_bytes() -> None:
    async def main(loop: SimLoop) -> None:
        _, client, server, _ = await connected(loop)
        client.write(frame(b"last"))
        client.close()
        await asyncio.sleep(1)
        assert server.frames == [b"last"]
        assert server.ended == [None]
        assert client.ended == [None]

    on_loop(main)


# -- disks ------------------------------------------------------------------------------------


def test_synced_bytes_survive_a_power_cut_and_others_may_not() -> None:
    async def main(loop: SimLoop) -> None:
        lost = torn = 0
        for seed in range(40):
            disk = SimDisk(loop, random.Random(seed))
            disk.make_dir(ROOT)
            file = disk.open(ROOT / "f", create=True)
            file.pwritev([b"s" * 2048], 0)
            file.datasync()
            disk.sync_dir(ROOT)
            file.pwritev([b"u" * 2048], 2048)
            await asyncio.sleep(1)
            disk.crash(power=True)
            data = disk.open(ROOT / "f").pread(8192, 0)
            assert data[:2048] == b"s" * 2048
            lost += b"u" not in data
            torn += b"u" in data and data[2048:] != b"u" * 2048
        assert lost > 5
        assert torn > 5

    on_loop(main)


def test_a_killed_process_leaves_what_was_written() -> None:
    async def main(loop: SimLoop) -> None:
        disk = SimDisk(loop, random.Random(1))
        disk.make_dir(ROOT)
        disk.open(ROOT / "f", create=True).pwritev([b"x" * 10], 0)
        await asyncio.sleep(1)
        disk.crash(power=False)
        assert disk.open(ROOT / "f").pread(100, 0) == b"x" * 10

    on_loop(main)


def test_a_name_is_durable_with_its_directory_only() -> None:
    async def main(loop: SimLoop) -> None:
        kept = []
        for seed in range(20):
            disk = SimDisk(loop, random.Random(seed))
            disk.make_dir(ROOT)
            file = disk.open(ROOT / "f", create=True)
            file.pwritev([b"x"], 0)
            file.datasync()
            await asyncio.sleep(1)
            disk.crash(power=True)
            kept.append("f" in disk.list(ROOT))
        assert set(kept) == {True, False}

    on_loop(main)


def test_a_crash_in_the_middle_of_a_job_leaves_its_first_half() -> None:
    async def main(loop: SimLoop) -> None:
        lengths = set()
        for seed in range(30):
            disk = SimDisk(loop, random.Random(seed))
            disk.make_dir(ROOT)
            lane = disk.lane("lane")
            file = disk.open(ROOT / "f", create=True)
            disk.sync_dir(ROOT)

            def job(file: Any = file) -> None:
                for i in range(10):
                    file.write_through([b"x"], i)

            done = lane.run(job)
            await asyncio.sleep(0.001 * seed)
            before = done.done()
            disk.crash(power=True)
            length = disk.size(ROOT / "f") if "f" in disk.list(ROOT) else 0
            assert length == 10 or not before  # what was answered is there
            lengths.add(length)
        assert len(lengths) > 3

    on_loop(main)


def test_a_full_disk_and_a_broken_one() -> None:
    async def main(loop: SimLoop) -> None:
        disk = SimDisk(loop, random.Random(1))
        disk.make_dir(ROOT)
        file = disk.open(ROOT / "f", create=True)
        disk.capacity_bytes = 100
        with pytest.raises(OSError, match="No space"):
            file.pwritev([bytes(101)], 0)
        disk.capacity_bytes = CAPACITY_BYTES
        file.pwritev([b"doomed"], 0)
        disk.fails_writes = True
        with pytest.raises(OSError, match="Input/output"):
            file.datasync()
        disk.fails_writes = False
        file.datasync()  # too late for what the first one failed with
        disk.sync_dir(ROOT)
        await asyncio.sleep(1)
        disk.crash(power=True)
        assert disk.open(ROOT / "f").pread(10, 0) == b""

    on_loop(main)


# -- the metadata store -----------------------------------------------------------------------


def test_a_session_out_of_contact_expires_and_the_process_hears_of_it() -> None:
    async def main(loop: SimLoop) -> None:
        server = SimMetadataServer(loop, random.Random(1), session_timeout_s=2.0)
        process = loop.new_process("a")
        states: list[SessionState] = []
        changes: list[str] = []

        async def work() -> SimMetadataStore:
            store = SimMetadataStore(server, process)
            store.watch_session(states.append)
            store.watch("/claim", changes.append)
            await store.create("/claim", b"mine", CreateMode.EPHEMERAL)
            with pytest.raises(BadVersionError):
                await store.put("/claim", b"x", 7)
            return store

        task = process.spawn(work(), "work")
        await until(task.done, 0.1)
        task.result()
        server.cut_off["a"] = None
        await asyncio.sleep(1)
        assert server.get("/claim").value == b"mine"
        await asyncio.sleep(3)
        with pytest.raises(NoNodeError):
            server.get("/claim")
        del server.cut_off["a"]
        await asyncio.sleep(2)
        assert states == [SessionState.SUSPENDED, SessionState.EXPIRED, SessionState.CONNECTED]
        assert "/claim" in changes

    on_loop(main)


def test_a_mark_that_was_made_again_is_not_taken_for_the_one_before() -> None:
    """A worker that was paused goes on in another session, with what it read in the one before."""

    async def main(loop: SimLoop) -> None:
        server = SimMetadataServer(loop, random.Random(1), session_timeout_s=2.0)
        slow, quick = loop.new_process("slow"), loop.new_process("quick")

        async def begin() -> tuple[ShortageMarks, Lock]:
            marks = ShortageMarks(SimMetadataStore(server, slow))
            await marks.initialize()
            await marks.mark(7, ["b1"], 1000)
            lock = await marks.lock(7, "slow")
            assert lock is not None
            return marks, lock

        async def take_over() -> ShortageMarks:
            marks = ShortageMarks(SimMetadataStore(server, quick))
            lock = await marks.lock(7, "quick")
            assert lock is not None
            assert await marks.unmark(lock, 0)
            await marks.mark(7, ["b2"], 2000)
            return marks

        async def go_on() -> None:
            with pytest.raises(SessionExpiredError):
                await late.unmark(lock, 0)
            await late.unlock(lock._replace(holder="quick"))  # as if it had seen its own

        begun = await run_in(slow, begin(), "begin")
        assert begun is not None
        late, lock = begun
        slow.pause()
        await asyncio.sleep(5)
        marks = await run_in(quick, take_over(), "take over")
        assert marks is not None
        slow.resume()
        await asyncio.sleep(3)
        await run_in(slow, go_on(), "go on")
        found = await run_in(quick, marks.read(7), "look")
        assert found is not None
        assert found.bookies == ("b2",)
        assert await run_in(quick, marks.holder(7), "look") == "quick"

    on_loop(main)


def test_a_record_that_was_made_again_is_not_written_by_the_owner_of_the_one_before() -> None:
    """A broker that was paused goes on in another session; the versions of both records agree."""

    async def main(loop: SimLoop) -> None:
        server = SimMetadataServer(loop, random.Random(1), session_timeout_s=2.0)
        former, owner = loop.new_process("former"), loop.new_process("owner")

        async def opened(process: SimProcess, value: bytes) -> RecordNode[bytes]:
            store = SimMetadataStore(server, process)
            node = await RecordNode.load_or_create(store, "/log", bytes, bytes, value)
            await node.update(lambda record: record + b"+")
            return node

        async def go_on() -> None:
            with pytest.raises(LogFencedError):
                await late.update(lambda record: record + b" and on")

        late = await run_in(former, opened(former, b"former"), "open")
        assert late is not None
        former.pause()
        await asyncio.sleep(5)
        again = SimMetadataStore(server, owner)
        await run_in(owner, again.delete("/log"), "delete")
        node = await run_in(owner, opened(owner, b"again"), "open")
        assert node is not None
        assert node.stored is not None
        assert late.stored is not None
        assert node.stored.version == late.stored.version
        former.resume()
        await asyncio.sleep(3)
        await run_in(former, go_on(), "go on")
        assert await run_in(owner, again.get("/log"), "look") == Versioned(b"again+", 1)
        await run_in(owner, node.update(lambda record: record + b"!"), "write")

    on_loop(main)


def test_a_lost_answer_leaves_the_change() -> None:
    async def main(loop: SimLoop) -> None:
        server = SimMetadataServer(loop, random.Random(1), session_timeout_s=2.0)
        process = loop.new_process("a")

        async def work() -> None:
            store = SimMetadataStore(server, process)
            server.lost_answers = 1.0
            with pytest.raises(MetadataUnavailableError):
                await store.create("/a/b", b"v")

        task = process.spawn(work(), "work")
        await until(task.done, 0.1)
        task.result()
        assert server.get("/a/b").value == b"v"

    on_loop(main)


def test_a_server_that_lags_shows_its_clients_the_past_until_they_write() -> None:
    async def main(loop: SimLoop) -> None:
        server = SimMetadataServer(loop, random.Random(1), session_timeout_s=2.0)
        late, prompt = loop.new_process("late"), loop.new_process("prompt")
        heard: list[str] = []

        async def writes(store: SimMetadataStore, value: bytes) -> None:
            version = (await store.get("/node")).version
            await store.put("/node", value, version)

        async def begins() -> None:
            store = SimMetadataStore(server, prompt)
            await store.create("/node", b"old")
            server.lag("late")
            await writes(store, b"new")
            await store.create("/other", b"")
            assert (await store.get("/node")).value == b"new"

        async def reads() -> None:
            store = SimMetadataStore(server, late)
            store.watch("/node", heard.append)
            assert await store.get("/node") == (b"old", 0)
            assert await store.children("/") == ["node"]
            with pytest.raises(NoNodeError):
                await store.get("/other")
            assert not heard
            with pytest.raises(BadVersionError):  # refused by what is true, and then it is known
                await store.put("/node", b"mine", 0)
            assert await store.get("/node") == (b"new", 1)
            server.lag("late")
            await store.sync()
            assert await store.children("/") == ["node", "other"]

        for process, work in ((prompt, begins), (late, reads)):
            task = process.spawn(work(), "work")
            await until(task.done, 0.1)
            task.result()

    on_loop(main)


def test_clients_of_a_server_that_lagged_hear_of_what_they_missed() -> None:
    async def main(loop: SimLoop) -> None:
        server = SimMetadataServer(loop, random.Random(1), session_timeout_s=2.0)
        process, heard = loop.new_process("late"), list[str]()

        async def watches() -> None:
            SimMetadataStore(server, process).watch("/node", heard.append)

        await until(process.spawn(watches(), "work").done, 0.1)
        server.lag("late")
        server.create("/node", b"", CreateMode.PERSISTENT, None)
        await asyncio.sleep(1)
        assert not heard
        server.heal()
        await asyncio.sleep(1)
        assert heard == ["/node"]

    on_loop(main)
