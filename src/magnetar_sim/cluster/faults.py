"""What goes wrong in a run, by the seed: of processes, disks, the network, the metadata store.

Every fault but a lost disk ends by itself or when the run heals. Disks are lost for good on fewer
bookies than Qa, so that what the quorums promise still holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from magnetar_sim.cluster.cluster import DATA, JOURNALS, LEDGERS, BookieMachine, Client, Cluster
from magnetar_sim.world.disk import SimDisk
from magnetar_sim.world.loop import SimProcess, call_from_outside

SHORT_S, LONG_S = 0.3, 8.0


class Host(Protocol):
    """A machine that is no bookie's: a client's or a broker's."""

    @property
    def name(self) -> str: ...

    @property
    def process(self) -> SimProcess | None: ...


class Faults:
    """Plans ``count`` faults between ``begin_s`` and ``end_s`` of the run."""

    def __init__(
        self,
        cluster: Cluster,
        rng: random.Random,
        clients: Sequence[Host],
        lose_disks: int,
    ) -> None:
        self._cluster = cluster
        self._random = rng
        self._clients = clients
        self._lose_disks = lose_disks
        self.over = False
        self.spoils = False
        """Some of the disks that are lost lose single sectors only."""
        self._when_closed: list[Callable[[], None]] = []

    def plan(self, count: int, begin_s: float, end_s: float) -> None:
        rng = self._random
        kinds: list[Callable[[], None]] = [
            self._kill_bookie, self._kill_bookie, self._cut_power, self._cut_power,
            self._pause_bookie, self._slow_disk, self._full_disk, self._broken_disk,
            self._break_connections, self._block, self._block_one_way, self._isolate_bookie,
            self._slow_link, self._refuse, self._metadata_down, self._metadata_cut_off,
            self._lost_answers, self._expire_session, self._touch_ledger, self._pause_client,
            self._lagging_metadata,
        ]  # fmt: skip
        favourites = rng.sample(kinds, rng.choice((2, 4, len(kinds))))
        for _ in range(count):
            self._at(rng.uniform(begin_s, end_s), rng.choice(favourites))
        for _ in range(self._lose_disks):
            self._at(rng.uniform(begin_s, end_s), self._lose_disk)
        if rng.random() < 0.1:
            self._at(rng.uniform(begin_s, end_s), self._cut_power_everywhere)

    def spread_out(self) -> None:
        """Some hosts are far from each other for the whole of the run: much is always under way,
        and what is sent first need not arrive first elsewhere."""
        rng, network = self._random, self._cluster.network
        for client in self._clients:
            for bookie in self._cluster.bookies:
                if rng.random() < 0.5:
                    delay_s = rng.choice((0.02, 0.1, 0.4))
                    network.slow(client.name, bookie.name, delay_s)
                    network.slow(bookie.name, client.name, delay_s)

    def plan_takeover(self, when_s: float, clients: Sequence[Client]) -> None:
        """What makes it a bad moment: ``clients`` are the writer and who takes its ledger."""
        rng = self._random
        for link_s in (0.02, 0.5):
            if rng.random() < 0.4:
                self._at(when_s - rng.random() * link_s, partial(self._bad_links, clients))
        if rng.random() < 0.3:
            self._at(when_s - rng.random(), self._kill_bookie)
        if rng.random() < 0.2:
            self._at(when_s - rng.random(), partial(self._fail_disk, "fails_reads"))
        if rng.random() < 0.2:
            lagging = rng.choice(clients).name
            self._at(when_s - rng.random(), partial(self._lag, lagging, 1.0, 2.0))
        if rng.random() < 0.4:
            act = rng.choice((self._cut_power, self._cut_power_everywhere, self._kill_bookie))
            self._at(when_s + rng.choice((0.03, 0.3, 3.0)) * rng.random(), act)

    def plan_half_fenced(
        self,
        when_s: float,
        writer: Client,
        recovery: Client,
        ensemble: Callable[[], Sequence[str]],
    ) -> None:
        """``recovery`` opens ``writer``'s ledger at ``when_s``. One bookie of the ensemble is out
        of its reach when it fences, and quicker than all others when it reads; what the writer
        has sent to that bookie comes there later still."""
        rng, network = self._random, self._cluster.network
        away_s = when_s - 0.05 - 0.2 * rng.random()

        def begin() -> None:
            bookies = ensemble()
            if not bookies:
                return
            late = rng.choice(bookies)
            others = [name for name in bookies if name != late]
            network.slow(writer.name, late, 1.0)
            self._note(f"what {writer.name} sends to {late} takes long")
            self._at(away_s, partial(away, others))
            self._at(when_s - 0.001, partial(takeover, late, others))

        def away(others: Sequence[str]) -> None:
            if rng.random() < 0.3:
                self._pause(writer.process, rng.choice((0.7, 2.0)))
            else:
                self._block_links([(writer.name, other) for other in others], 2.0)

        def takeover(late: str, others: Sequence[str]) -> None:
            self._refuse_connections(recovery.name, late, 0.05)
            for pair in ((late, recovery.name), (recovery.name, late)):
                network.slow(*pair, 0)
            for other in others:
                network.slow(recovery.name, other, 0)
                network.slow(other, recovery.name, rng.choice((0.1, 0.3)))
            self._note(f"{recovery.name} gets answers slowly, but for those of {late}")

        self._at(away_s - 0.2, begin)

    def plan_damaged_copy(
        self,
        when_s: float,
        writer: Client,
        recovery: Client,
        ensemble: Callable[[], Sequence[str]],
        rng: random.Random,
    ) -> None:
        """``recovery`` opens ``writer``'s ledger at ``when_s``. Shortly before, one bookie of the
        ensemble gets nothing more, and another one's journal is damaged where the last entries
        are. The others, who have them, are slow to say so."""
        network, machines = self._cluster.network, self._cluster.bookies

        def begin() -> None:
            bookies = ensemble()
            sound = [each for each in machines if each.name in bookies and each.lost is None]
            if len(sound) > 1:
                late, damaged = rng.sample(sound, 2)
                self._block_links([(writer.name, late.name)], 2.0)
                others = [name for name in bookies if name not in (late.name, damaged.name)]
                self._at(when_s - 0.1, partial(damage, damaged, others))

        def damage(machine: BookieMachine, others: Sequence[str]) -> None:
            self._pause(writer.process, 3.0)
            machine.stop_and_rot(JOURNALS, latest=True)
            self._at(self._cluster.loop.time() + 0.01, machine.start)
            for other in others:
                network.slow(other, recovery.name, 0.3)
            self._note(f"{recovery.name} gets the answers of {', '.join(others)} slowly")

        self._at(when_s - 0.3 - 0.4 * rng.random(), begin)

    def plan_crash_of_all(self, when_s: float, then: Callable[[], None]) -> None:
        """Every bookie is killed or loses power soon after ``when_s``, or when a ledger has just
        been closed after that; perhaps on slow disks. Soon all are back, and ``then`` is called."""
        rng = self._random
        slowness = rng.choice((1.0, 10.0, 100.0))
        self._at(when_s - 0.05, partial(self._set_slowness, slowness))
        if rng.random() < 0.5:
            self._at(when_s, lambda: self._when_closed.append(partial(self._crash_all, then)))
        else:
            crash_s = when_s + rng.choice((0.03, 0.3, 3.0)) * rng.random()
            self._at(crash_s, partial(self._crash_all, then))

    def crash_after_answers(self, begin_s: float, rng: random.Random) -> Callable[[], None]:
        """Disks are slow from ``begin_s`` on. What is returned is to be called with each answer
        that makes something durable: soon after one of the first, every bookie is killed or loses
        power."""
        answers = [None] * rng.randint(1, 3)
        self._at(begin_s, partial(self._set_slowness, 300.0))

        def answered() -> None:
            if answers:
                answers.pop()
                if not answers:
                    soon_s = rng.choice((0.0, 0.005, 0.02)) * rng.random()
                    crash = partial(self._crash_all, lambda: None)
                    self._at(self._cluster.loop.time() + soon_s, crash)

        return answered

    def ledger_closed(self) -> None:
        """The store has just taken a ledger's close: whatever waits for that happens, soon."""
        waiting, self._when_closed = self._when_closed, []
        for act in waiting:
            soon_s = self._random.choice((0.0, 0.005, 0.1)) * self._random.random()
            self._at(self._cluster.loop.time() + soon_s, act)

    def _crash_all(self, then: Callable[[], None]) -> None:
        rng, loop = self._random, self._cluster.loop
        power = rng.random() < 0.7
        back_s = loop.time() + rng.uniform(0.1, 0.5)
        for bookie in self._cluster.bookies:
            (bookie.cut_power if power else bookie.kill)()
            self._at(back_s, bookie.start)
        self._at(back_s, partial(self._set_slowness, 1.0))
        self._at(back_s + rng.uniform(0.3, 1.5), then)

    def _set_slowness(self, slowness: float) -> None:
        self._note(f"all disks are {slowness:.0f} times slower than they could be")
        for bookie in self._cluster.bookies:
            bookie.disk.slowness = slowness

    def _bad_links(self, clients: Sequence[Client]) -> None:
        """Some links between these clients and the bookies are blocked or slow for a while."""
        rng, network = self._random, self._cluster.network
        pairs = [
            (client.name, bookie.name) for client in clients for bookie in self._cluster.bookies
        ]
        chosen = [pair for pair in pairs if rng.random() < 0.3]
        if rng.random() < 0.5:
            self._block_links([link for pair in chosen for link in (pair, pair[::-1])])
            return
        self._note(f"slow links: {', '.join(f'{one} - {other}' for one, other in chosen)}")
        for one, other in chosen:
            delay_s = rng.choice((0.02, 0.2, 1.0))
            network.slow(one, other, delay_s)
            network.slow(other, one, delay_s)

    def _at(self, when_s: float, act: Callable[[], None]) -> None:
        call_from_outside(self._cluster.loop, when_s, act, lambda: self.over)

    def _after(self, act: Callable[[], None]) -> float:
        """``act`` ends a fault, after a time that is returned."""
        lasts_s = self._lasts_s()
        self._at(self._cluster.loop.time() + lasts_s, act)
        return lasts_s

    def _lasts_s(self) -> float:
        return self._random.choice((SHORT_S, 2.0, LONG_S)) * self._random.uniform(0.5, 1.5)

    def _note(self, what: str) -> None:
        self._cluster.trace.note("fault", what)

    # -- processes ----------------------------------------------------------------------------

    def _bookie(self) -> BookieMachine:
        return self._random.choice(self._cluster.bookies)

    def _client(self) -> Host:
        return self._random.choice(self._clients)

    def _host(self) -> str:
        bookies = [bookie.name for bookie in self._cluster.bookies]
        return self._random.choice(bookies + [client.name for client in self._clients])

    def _kill_bookie(self) -> None:
        bookie = self._bookie()
        bookie.kill()
        self._after(bookie.start)

    def _cut_power(self) -> None:
        bookie = self._bookie()
        bookie.cut_power()
        self._after(bookie.start)

    def _cut_power_everywhere(self) -> None:
        self._note("power cut of every bookie")
        for bookie in self._cluster.bookies:
            bookie.cut_power()
            self._after(bookie.start)

    def _pause_bookie(self) -> None:
        process = self._bookie().process
        if process is not None:
            self._pause(process, self._lasts_s())

    def _pause_client(self) -> None:
        process = self._client().process
        if process is not None:
            self._pause(process, self._lasts_s())

    def _pause(self, process: SimProcess, lasts_s: float) -> None:
        if process.alive:
            process.pause()
            self._at(self._cluster.loop.time() + lasts_s, process.resume)
            self._note(f"{process.name} is paused for {lasts_s:.1f} s")

    # -- disks --------------------------------------------------------------------------------

    def _slow_disk(self) -> None:
        bookie, slowness = self._bookie(), self._random.choice((30.0, 300.0))
        bookie.disk.slowness = slowness
        self._note(f"the disk of {bookie.name} is {slowness:.0f} times slower")
        self._after(lambda: setattr(bookie.disk, "slowness", 1.0))

    def _full_disk(self) -> None:
        disk, name = self._bookie_disk()
        room = self._random.choice((0, 5000, 100_000))
        disk.capacity_bytes = disk.used_bytes + room
        self._note(f"the disk of {name} has {room} bytes left")
        self._after(lambda: setattr(disk, "capacity_bytes", 1 << 30))

    def _bookie_disk(self) -> tuple[SimDisk, str]:
        bookie = self._bookie()
        bookie.suffered = True
        return bookie.disk, bookie.name

    def _broken_disk(self) -> None:
        self._fail_disk(self._random.choice(("fails_writes", "fails_writes", "fails_reads")))

    def _fail_disk(self, attribute: str) -> None:
        disk, name = self._bookie_disk()
        setattr(disk, attribute, True)
        self._note(f"the disk of {name}: {attribute}")
        self._after(lambda: setattr(disk, attribute, False))

    def _lose_disk(self) -> None:
        """Wiped, in part or whole, or a byte of it changed; the bookie is started on it."""
        sound = [bookie for bookie in self._cluster.bookies if bookie.lost is None]
        bookie = self._random.choice(sound)
        if self.spoils and self._random.random() < 0.7:
            bookie.stop_and_spoil(self._random.choice((JOURNALS, LEDGERS)))
        elif self._random.random() < 0.4:
            bookie.stop_and_wipe(self._random.choice((DATA, JOURNALS, LEDGERS)))
        else:
            bookie.stop_and_rot(self._random.choice((JOURNALS, JOURNALS, LEDGERS)))
        self._at(self._cluster.loop.time() + SHORT_S, bookie.start)

    # -- network ------------------------------------------------------------------------------

    def _break_connections(self) -> None:
        one, other = self._client().name, self._bookie().name
        if self._cluster.network.break_between(one, other):
            self._note(f"the connections between {one} and {other} break")

    def _block(self) -> None:
        one, other = self._client().name, self._bookie().name
        self._block_links([(one, other), (other, one)])

    def _block_one_way(self) -> None:
        pair = (self._client().name, self._bookie().name)
        self._block_links([pair if self._random.random() < 0.5 else pair[::-1]])

    def _isolate_bookie(self) -> None:
        name = self._bookie().name
        others = [client.name for client in self._clients]
        self._block_links([p for other in others for p in ((name, other), (other, name))])

    def _block_links(self, links: Sequence[tuple[str, str]], lasts_s: float | None = None) -> None:
        network = self._cluster.network
        lasts_s = self._lasts_s() if lasts_s is None else lasts_s
        for link in links:
            network.block(*link)

        def unblock() -> None:
            for link in links:
                network.unblock(*link)

        self._at(self._cluster.loop.time() + lasts_s, unblock)
        told = ", ".join(f"{source} -> {target}" for source, target in links)
        self._note(f"blocked for {lasts_s:.1f} s: {told}")

    def _refuse(self) -> None:
        self._refuse_connections(self._client().name, self._bookie().name, self._lasts_s())

    def _refuse_connections(self, client: str, bookie: str, lasts_s: float) -> None:
        """Those that exist break; new ones are refused for a while."""
        network = self._cluster.network
        network.weather.refused[client, bookie] = None
        network.break_between(client, bookie)
        accept = partial(network.weather.refused.pop, (client, bookie), None)
        self._at(self._cluster.loop.time() + lasts_s, accept)
        self._note(f"{bookie} refuses connections of {client} for {lasts_s:.1f} s")

    def _slow_link(self) -> None:
        network, one, other = self._cluster.network, self._client().name, self._bookie().name
        delay_s = self._random.choice((0.05, 0.5, 3.0))
        network.slow(one, other, delay_s)
        network.slow(other, one, delay_s)
        self._note(f"{one} and {other} are up to {delay_s} s apart")

        def quick() -> None:
            network.slow(one, other, 0)
            network.slow(other, one, 0)

        self._after(quick)

    # -- metadata -----------------------------------------------------------------------------

    def _metadata_down(self) -> None:
        metadata = self._cluster.metadata
        metadata.up = False
        lasts_s = self._after(lambda: setattr(metadata, "up", True))
        self._note(f"the metadata store is down for {lasts_s:.1f} s")

    def _metadata_cut_off(self) -> None:
        host, cut_off = self._host(), self._cluster.metadata.cut_off
        cut_off[host] = None

        def connect() -> None:
            cut_off.pop(host, None)

        lasts_s = self._after(connect)
        self._note(f"{host} is cut off from the metadata store for {lasts_s:.1f} s")

    def _lagging_metadata(self) -> None:
        self._lag(self._host(), self._random.choice((0.05, 0.5, 3.0)), self._lasts_s())

    def _lag(self, host: str, behind_s: float, lasts_s: float) -> None:
        """The metadata server of ``host`` is up to ``behind_s`` behind, time and again."""
        loop, metadata = self._cluster.loop, self._cluster.metadata
        end_s = loop.time() + lasts_s

        def fall_behind() -> None:
            if loop.time() >= end_s:
                metadata.catch_up(host)
                return
            metadata.lag(host)
            self._at(loop.time() + behind_s * self._random.uniform(0.5, 1.0), fall_behind)

        fall_behind()
        self._note(f"{host} reads metadata that is up to {behind_s} s old, for {lasts_s:.1f} s")

    def _lost_answers(self) -> None:
        metadata = self._cluster.metadata
        metadata.lost_answers = 0.3
        self._after(lambda: setattr(metadata, "lost_answers", 0.0))
        self._note("answers of the metadata store get lost")

    def _expire_session(self) -> None:
        host = self._host()
        self._note(f"the metadata session of {host} expires")
        self._cluster.metadata.expire(host)

    def _touch_ledger(self) -> None:
        metadata = self._cluster.metadata
        paths = [path for path in metadata.paths() if "/L0" in path]
        if paths:
            path = self._random.choice(paths)
            self._note(f"somebody else writes {path} as it is")
            metadata.touch(path)
