"""A bookie that is away is told of in a bounded number of lines, whatever the ledgers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from magnetar.ledger.failure_notes import CALM_S, NOTE_S, FailureNote, FailureNotes
from magnetar.model.ids import BookieId
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.ledger.doubles import Cluster, Outcomes, opened, payloads

A, B = BookieId("a:1"), BookieId("b:1")


def test_a_thousand_ledgers_that_try_each_second_make_a_line_in_ten_seconds() -> None:
    notes = FailureNotes()
    told = []
    for second in range(60):
        for ledger_id in range(1000):
            note = notes.failed(A, ledger_id, 100.0 + second)
            if note is not None:
                told.append((second, note))
    assert told[0] == (0, FailureNote(1, 1, 0.0))
    assert told[1] == (10, FailureNote(1000, 9999 + 1, 10.0))
    assert [second for second, _ in told] == [0, 10, 20, 30, 40, 50]
    assert [note.ledgers for _, note in told[1:]] == [1000] * 5
    assert [note.away_s for _, note in told] == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]


def test_each_bookie_is_told_of_at_once_and_again_when_it_was_well_between() -> None:
    notes = FailureNotes()
    assert notes.failed(A, 1, 5.0) == FailureNote(1, 1, 0.0)
    assert notes.failed(B, 1, 5.0) == FailureNote(1, 1, 0.0)
    assert notes.failed(A, 2, 5.0 + NOTE_S / 2) is None
    assert notes.failed(A, 1, 5.0 + NOTE_S) == FailureNote(2, 2, NOTE_S)
    later = 5.0 + NOTE_S + CALM_S
    assert notes.failed(A, 7, later) == FailureNote(1, 1, 0.0)
    assert notes.failed(A, 7, later + CALM_S - 1) == FailureNote(1, 1, CALM_S - 1)


def test_bookies_that_are_well_again_are_forgotten() -> None:
    notes = FailureNotes()
    for i in range(1000):
        notes.failed(BookieId(f"b:{i}"), 1, i * CALM_S)
    assert len(notes._away) == 1


def test_writers_of_one_client_share_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    ledgers, away_s = 20, 45.0

    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=500)
        async with AsyncExitStack() as stack:
            writers = [await stack.enter_async_context(opened(cluster)) for _ in range(ledgers)]
            cluster.ensemble(writers[0].ledger_id)[0].down = True
            outcomes = Outcomes()
            for second in range(int(away_s)):
                for writer in writers:
                    writer.append(payloads(second, 1), outcomes)
                await asyncio.sleep(1)

    run_virtual(run())
    lines = [line for line in capsys.readouterr().out.splitlines() if "bookie failed adds" in line]
    assert 1 < len(lines) <= away_s / NOTE_S + 1
    assert f"ledgers={ledgers}" in lines[-1]
