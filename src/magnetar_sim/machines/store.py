"""The ledger's metadata in a modelled store: compare-and-set, with delays and lost answers.

Invariants held with every write: versions count up; a closed ledger never changes; the state
only goes forward; fragments start at 0 and are in strictly increasing order, each with
``ensemble_size`` different bookies.
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.model.ledger import LedgerMetadata, LedgerState
from magnetar_sim.machines.bookies import Weather
from magnetar_sim.world.scheduler import Scheduler, SimulationError

ORDER = (LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED)


class SimStore:
    """One ledger's node."""

    def __init__(self, scheduler: Scheduler, metadata: LedgerMetadata, weather: Weather) -> None:
        self._scheduler = scheduler
        self._weather = weather
        self.metadata = metadata
        self.version = 0

    def read(self, done: Callable[[LedgerMetadata, int], None]) -> None:
        self._soon(lambda: self._soon(lambda: done(self.metadata, self.version)))

    def write(
        self, wanted: LedgerMetadata, version: int, done: Callable[[bool | None], None]
    ) -> None:
        """Compare-and-set: ``done(True)`` written, ``done(False)`` lost, ``done(None)`` the
        answer did not come."""

        def land() -> None:
            written = version == self.version
            if written:
                self._check(wanted)
                self.metadata, self.version = wanted, version + 1
                self._scheduler.note("store", f"v{self.version} {describe(wanted)}")
            lost = self._weather.loses(self._weather.lost_store_answers)
            self._soon(lambda: done(None if lost else written))

        self._soon(land)

    def _soon(self, action: Callable[[], None]) -> None:
        self._scheduler.after(
            self._scheduler.random.randint(1, self._weather.store_delay_max), action
        )

    def _check(self, wanted: LedgerMetadata) -> None:
        before = self.metadata
        if before.closed:
            raise SimulationError(f"a closed ledger changes: {before} -> {wanted}")
        if ORDER.index(wanted.state) < ORDER.index(before.state):
            raise SimulationError(f"the state goes back: {before.state} -> {wanted.state}")
        firsts = [fragment.first_entry_id for fragment in wanted.fragments]
        if firsts[0] != 0 or firsts != sorted(set(firsts)):
            raise SimulationError(f"invalid fragment order {firsts}")
        for fragment in wanted.fragments:
            if len(set(fragment.bookies)) != wanted.ensemble_size:
                raise SimulationError(f"not an ensemble: {fragment}")


def describe(metadata: LedgerMetadata) -> str:
    """``OPEN 0:b1,b2,b3 7:b1,b4,b3``"""
    fragments = " ".join(f"{f.first_entry_id}:{','.join(f.bookies)}" for f in metadata.fragments)
    end = f" last={metadata.last_entry_id}" if metadata.closed else ""
    return f"{metadata.state.name}{end} {fragments}"
