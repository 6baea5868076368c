"""A run: scenario by scenario, each on a stage of its own, and the page about it."""

from __future__ import annotations

import datetime
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from magnetar.model.errors import ConfigError, MagnetarError
from magnetar.proving import faults, ledger_faults, pages, pictures, power_faults
from magnetar.proving.counting import judge
from magnetar.proving.faults import Making, OpenStage, Outcome
from magnetar.proving.magnetar_stage import MagnetarStage
from magnetar.proving.peers import Peer, side_by_side
from magnetar.proving.power_cut.shim import NoCompilerError
from magnetar.proving.results import LaneResult, PeerResult, RunResult, ScenarioResult, as_json
from magnetar.proving.scenarios import SCENARIOS, Scenario

MAKERS: Final[Mapping[str, Callable[[Making], Outcome]]] = {
    "leader-dies": faults.leader_dies,
    "isr-shrinks": faults.isr_shrinks,
    "cut-from-metadata": faults.cut_from_metadata,
    "isolated": faults.isolated,
    "paused": faults.paused,
    "power-cut-synced": power_faults.power_cut_synced,
    "power-cut-unsynced": power_faults.power_cut_unsynced,
    "ledger-loses-bookies": ledger_faults.ledger_loses_bookies,
}
assert set(MAKERS) == {each.name for each in SCENARIOS}

Say = Callable[[str], None]


class _Played(NamedTuple):
    """A scenario on one cluster. ``not_run``, ``failed``: see ``ScenarioResult``."""

    lanes: Sequence[LaneResult] = ()
    not_run: str = ""
    failed: str = ""


def run(
    scenarios: Sequence[Scenario], seed: int, say: Say, peers: Sequence[Peer] = ()
) -> RunResult:
    """Ours, and then each of the ``peers``, scenario by scenario. Raises ``ConfigError`` for what
    every scenario needs and is not there (Java)."""
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    begun_s = time.monotonic()
    found = [_run_one(each, seed, say, peers) for each in scenarios]
    return RunResult(found, seed, when, time.monotonic() - begun_s)


def _run_one(scenario: Scenario, seed: int, say: Say, peers: Sequence[Peer]) -> ScenarioResult:
    say(f"{scenario.name}: {scenario.title}")
    begun_s = time.monotonic()

    def told(what: str) -> None:
        say(f"  {time.monotonic() - begun_s:5.1f} s  {what}")

    own = _play(scenario, seed, told, MagnetarStage)
    lanes, of_peers = own.lanes, []
    for peer in peers:
        theirs = peer.beside(scenario)
        if not theirs.lanes:
            continue
        told(f"{peer.name}:")
        not_run = peer.not_run.get(scenario.name, "")
        if not_run:
            played = _not_played(_Played(not_run=not_run), told)
        else:
            played = _play(theirs, seed, told, peer.open_stage)
        lanes = side_by_side(lanes, played.lanes)
        notes = peer.notes.get(scenario.name, ())
        of_peers.append(PeerResult(peer.name, notes, played.not_run, played.failed))
    seconds = time.monotonic() - begun_s
    return ScenarioResult(scenario, lanes, seconds, own.not_run, own.failed, of_peers)


def _play(scenario: Scenario, seed: int, told: Say, open_stage: OpenStage) -> _Played:
    with tempfile.TemporaryDirectory(prefix="prove-", ignore_cleanup_errors=True) as folder:
        making = Making(scenario, Path(folder) / scenario.name, seed, told, open_stage)
        try:
            outcome = MAKERS[scenario.name](making)
        except NoCompilerError as error:
            return _not_played(_Played(not_run=f"needs a C compiler ({error})"), told)
        except ConfigError:
            raise
        except (MagnetarError, OSError, subprocess.SubprocessError) as error:
            return _not_played(_Played(failed=f"{type(error).__name__}: {error}"), told)
    lanes = [
        LaneResult(spec, outcome[spec.name], judge(spec.expected, outcome[spec.name]))
        for spec in scenario.lanes
    ]
    for lane in lanes:
        verdict, seen = "; ".join(lane.wrong) or "as expected", lane.observed
        told(f"{lane.spec.name}: {seen.lost} lost of {seen.acknowledged}: {verdict}")
    return _Played(lanes)


def _not_played(played: _Played, told: Say) -> _Played:
    """Said at once: the page comes with the end of the run, if that comes."""
    told(f"not run: {played.not_run}" if played.not_run else f"failed: {played.failed}")
    return played


def write(result: RunResult, folder: Path) -> Path:
    """The pages; returns the one to open."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "index.html"
    page.write_text(pages.html(result))
    (folder / "prove.md").write_text(pages.markdown(result))
    (folder / "lost.svg").write_text(pictures.losses(result))
    (folder / "unavailable.svg").write_text(pictures.outages(result))
    (folder / "prove.json").write_text(json.dumps(as_json(result), indent=1) + "\n")
    return page
