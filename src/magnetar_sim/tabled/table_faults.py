"""What goes wrong with the warehouse, by the seed: it is down, slow, refuses files, loses answers,
and some read what was true a while ago. Every fault ends by itself or when the run heals."""

from __future__ import annotations

import random
from collections.abc import Callable

from magnetar_sim.cluster.cluster import Cluster
from magnetar_sim.tabled.warehouse import Warehouse
from magnetar_sim.world.planned_faults import PlannedFaults

LASTS_S = (0.1, 0.6, 2.5)


class WarehouseFaults(PlannedFaults):
    """Of one run. ``hosts``: the names of those that read or write tables now."""

    def __init__(
        self,
        cluster: Cluster,
        rng: random.Random,
        warehouse: Warehouse,
        hosts: Callable[[], list[str]],
    ) -> None:
        super().__init__(cluster.loop, cluster.trace, rng, LASTS_S)
        self._cluster = cluster
        self._warehouse = warehouse
        self._hosts = hosts

    def plan(self, count: int, begin_s: float, end_s: float) -> None:
        kinds: list[Callable[[], None]] = [
            self._down, self._refuse, self._lose_answers, self._lose_answers, self._slow,
            self._fall_behind, self._fall_behind,
        ]  # fmt: skip
        self._plan(kinds, count, begin_s, end_s)

    def _set(self, name: str, value: object, usual: object) -> None:
        setattr(self._warehouse, name, value)
        lasts_s = self._after(lambda: setattr(self._warehouse, name, usual))
        self._note(f"warehouse: {name} is {value} for {lasts_s:.1f} s")
        self._cluster.count("faults of the warehouse")

    def _down(self) -> None:
        self._set("down", True, False)

    def _refuse(self) -> None:
        self._set("refuses_files", True, False)

    def _lose_answers(self) -> None:
        self._set("lost_answers", self._random.choice((0.2, 0.7)), 0.0)

    def _slow(self) -> None:
        self._set("slow_s", self._random.choice((0.05, 0.5)), 0.0)

    def _fall_behind(self) -> None:
        host = self._random.choice(self._hosts())
        self._warehouse.fall_behind(host)
        lasts_s = self._after(lambda: self._warehouse.catch_up(host))
        self._note(f"{host} reads of tables what was true until now for {lasts_s:.1f} s")
        self._cluster.count("readers of the warehouse that fell behind")
