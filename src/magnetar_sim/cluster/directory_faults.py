"""Carries out what ``shapes`` has drawn: trouble of single devices, and bookies that end in it;
watches meanwhile that every bookie keeps its promises (``witness``), and in the end that it gives
all that it can.

What must hold beyond the promises:

* A bookie that is closed in order ends, whatever is wrong with its disks, leaves nothing open, and
  has nothing to replay when nothing was wrong (``cluster``).
* It logs no error while nothing is wrong (``cluster``; in every run).
* When all has healed every bookie serves, those too that cannot read some sectors, and gives every
  entry that it acknowledged: of one with unreadable sectors, all that its index names and that
  does not lie under them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.storage.entry_log_format import RECORD_HEADER_BYTES, log_path, record_length
from magnetar.model.errors import MagnetarError
from magnetar_sim.cluster.cluster import BookieMachine, Cluster
from magnetar_sim.cluster.shapes import End, Fill, Moment, Shape, Trouble
from magnetar_sim.cluster.upkeep_checkers import UpkeepChecker
from magnetar_sim.world.devices import Device
from magnetar_sim.world.loop import call_from_outside, run_in, until
from magnetar_sim.world.scheduler import SimulationError

PROBE_S = (0.05, 0.4)
FILL_CHANCE = 0.5
BURST_CHANCE = 0.3
BURST_BYTES = 4096


class DirectoryFaults:
    """Of one run whose bookies have ``shape``. ``checker``: of its upkeep, or one of its own."""

    def __init__(
        self, cluster: Cluster, shape: Shape, rng: random.Random, checker: UpkeepChecker | None
    ) -> None:
        self.over = False
        self.checker = checker or UpkeepChecker(cluster)
        self._checks_starts = checker is None
        self._cluster = cluster
        self._random = rng
        self._fills = list(shape.fills)
        self._bursts = list(shape.bursts)
        self._full: dict[str, Fill] = {}
        for moment in shape.moments:
            self._at(moment.at_s, partial(self._begin, moment))
        for machine in cluster.bookies:
            assert machine.bookie is not None
            self._watch(machine, machine.bookie)
            machine.promises.add_comes = partial(self._add_comes, machine)
            machine.promises.forced = partial(self._forced, machine)
        self._before, cluster.beside = cluster.beside, self._started
        cluster.count(f"runs with {shape.ledger_directories} ledger directories")
        cluster.count(f"runs with {shape.journals} journals")

    # -- trouble ------------------------------------------------------------------------------

    def _at(self, when_s: float, act: partial[None]) -> None:
        call_from_outside(self._cluster.loop, when_s, act, lambda: self.over)

    def _begin(self, moment: Moment) -> None:
        machine = self._cluster.bookies[moment.bookie]
        device = machine.disk.devices[moment.device]
        now_s = self._cluster.loop.time()
        if not device.sound or not machine.serving:
            return
        if moment.trouble is not Trouble.NONE:
            self._break(machine, device, moment)
            self._at(now_s + moment.lasts_s, partial(device.heal))
            self._cluster.trace.note(
                "fault",
                f"{device.root} of {machine.name} {moment.trouble.value}, {moment.lasts_s:.2f} s",
            )
        if moment.end is not End.STAYS:
            self._at(now_s + moment.ends_s, partial(self._end, machine, moment))

    def _break(self, machine: BookieMachine, device: Device, moment: Moment) -> None:
        trouble = moment.trouble
        device.fails_writes = trouble is Trouble.FAILS_WRITES
        device.fails_reads = trouble is Trouble.FAILS_READS
        if trouble is Trouble.SLOW:
            device.slowness = moment.slowness
        if trouble is Trouble.FULL:
            device.capacity_bytes = machine.disk.used_bytes_of(device) + moment.room_bytes
        if device.fails_writes and moment.device < len(self._journals):
            machine.suffered = True  # a journal that could not write is broken until a restart
        self._cluster.count(f"a directory {trouble.value}")

    @property
    def _journals(self) -> tuple[object, ...]:
        return self._cluster.plan.bookie.journal.directories

    def _end(self, machine: BookieMachine, moment: Moment) -> None:
        if not machine.up or machine.closing:
            return
        if moment.end is End.CLOSES:
            machine.close_in_order(moment.down_s)
            return
        (machine.kill if moment.end is End.DIES else machine.cut_power)()
        self._at(self._cluster.loop.time() + moment.down_s, partial(machine.start))

    def _add_comes(
        self, machine: BookieMachine, ledger_id: int, entries: Sequence[bytes], deferred: bool
    ) -> None:
        """Its journal may be full from now on, or its directory fail."""
        if self.over:
            return
        if deferred and self._fills:
            self._fill_journal(machine, machine.devices_of(ledger_id)[0])
        elif self._bursts and sum(map(len, entries)) > BURST_BYTES:
            device = machine.devices_of(ledger_id)[1]
            if device.sound and self._random.random() < BURST_CHANCE:
                device.fails_writes = True
                lasts_s = self._bursts.pop()
                self._at(self._cluster.loop.time() + lasts_s, partial(device.heal))
                self._cluster.count("directories that failed in a burst of adds")
                what = f"{device.root} of {machine.name} fails writes, {lasts_s:.2f} s"
                self._cluster.trace.note("fault", what)

    def _fill_journal(self, machine: BookieMachine, device: Device) -> None:
        if not device.sound or self._random.random() > FILL_CHANCE:
            return
        fill = self._full[machine.name] = self._fills.pop()
        device.capacity_bytes = machine.disk.used_bytes_of(device) + fill.room_bytes
        self._at(self._cluster.loop.time() + fill.lasts_s, partial(device.heal))
        self._cluster.count("journals full under an add with deferred sync")
        self._cluster.trace.note(
            "fault", f"{device.root} of {machine.name} has {fill.room_bytes} bytes left"
        )

    def _forced(self, machine: BookieMachine, ledger_id: int) -> None:
        fill = self._full.pop(machine.name, None)
        if self.over or fill is None or machine.devices_of(ledger_id)[0].sound:
            return
        self._cluster.count("forces that were granted with a full journal")
        dies_s = self._cluster.loop.time() + fill.dies_after_s
        self._at(dies_s, partial(machine.cut_power if fill.power else machine.kill))
        self._at(dies_s + fill.down_s, partial(machine.start))

    # -- watching -----------------------------------------------------------------------------

    def _started(self, machine: BookieMachine, bookie: Bookie) -> None:
        self._before(machine, bookie)
        if self._checks_starts:
            self.checker.started(machine, bookie)
        self._watch(machine, bookie)

    def _watch(self, machine: BookieMachine, bookie: Bookie) -> None:
        machine.process_now.spawn(self._probe(machine, bookie), "probe")

    async def _probe(self, machine: BookieMachine, bookie: Bookie) -> None:
        """Ask for entries that it acknowledged, now and then."""
        rng, cluster = self._random, self._cluster
        while not self.over:
            await asyncio.sleep(rng.uniform(*PROBE_S))
            if not machine.durable or not machine.serving or machine.lost is not None:
                continue
            key = rng.choice([*machine.durable])
            if cluster.has_ledger(key[0]):
                await self.checker.probe(machine, bookie, key)

    def told_error(self, machine: BookieMachine, what: str) -> None:
        """The bookie has logged an error."""
        if what.startswith("flush failed"):
            ledgers = machine.disk.devices[len(self._journals) : -1]
            if 0 < sum(device.sound for device in ledgers) < len(ledgers):
                self._cluster.count("flushes of one directory that failed")

    def check(self) -> None:
        self.checker.check()

    # -- after healing ------------------------------------------------------------------------

    async def last_look(self) -> None:
        """See the module's text."""
        for machine in self._cluster.bookies:
            if machine.lost is None or machine.spoiled:
                await until(lambda machine=machine: machine.serving, 0.1)  # type: ignore[misc]
                assert machine.bookie is not None
                look = self._look_at(machine, machine.bookie)
                await run_in(machine.process_now, look, "last look")
        self.check()

    async def _look_at(self, machine: BookieMachine, bookie: Bookie) -> None:
        lives: dict[int, bool] = {}
        for key in list(machine.durable):
            if key[0] not in lives:
                lives[key[0]] = self._cluster.has_ledger(key[0])
            if not lives[key[0]] or (machine.spoiled and not self._can_be_read(machine, key)):
                continue
            try:
                await bookie.read_entry(*key)
            except MagnetarError as error:
                if self._cluster.has_ledger(key[0]):
                    what = f"{machine.name} acknowledged entry {key[0]}:{key[1]}: {error}"
                    raise SimulationError(what) from error

    def _can_be_read(self, machine: BookieMachine, key: tuple[int, int]) -> bool:
        """Its index names it, and none of its bytes lie under a sector that cannot be read."""
        for path, index in machine.disk.indexes.items():
            place = index.rows.get(key)
            if place is not None:
                log = log_path(path.parent, place[0])
                data = machine.disk.content(log)
                head = b"" if data is None else data[place[1] : place[1] + RECORD_HEADER_BYTES]
                if len(head) < RECORD_HEADER_BYTES:
                    return False
                size = RECORD_HEADER_BYTES + record_length(head)
                self._cluster.count("entries beside unreadable sectors, looked at")
                return not machine.disk.unreadable(log, place[1], size)
        return False
