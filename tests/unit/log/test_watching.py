"""Who is told that a log has grown, and when."""

from __future__ import annotations

import asyncio

from magnetar.config import LedgerConfig
from magnetar.log.watching import ReadableWatch
from magnetar.model.errors import LedgerError, MetadataError
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.log.doubles import NAME, Outcomes, Process, World


def test_one_call_per_turn_and_none_after_the_end() -> None:
    async def scenario() -> None:
        watch, told = ReadableWatch(), list[str]()
        watch.grew()  # nobody watches
        end_first = watch.watch(lambda: (told.append("first"), end_second())[0])
        end_second = watch.watch(lambda: told.append("second"))
        watch.watch(lambda: told.append("third"))
        watch.grew()
        watch.grew()
        assert told == [], "never from inside"
        await asyncio.sleep(0)
        assert told == ["first", "third"], "the second was ended meanwhile"
        watch.grew()
        end_first()
        await asyncio.sleep(0)
        assert told == ["first", "third", "third"]

    asyncio.run(scenario())


def test_a_watch_is_not_taken_for_one_that_ended_before_it() -> None:
    async def scenario() -> None:
        watch, told = ReadableWatch(), list[str]()

        def replace() -> None:
            told.append("first")
            end_second()
            watch.watch(lambda: told.append("third"))

        watch.watch(replace)
        end_second = watch.watch(lambda: told.append("second"))
        watch.grew()
        await asyncio.sleep(0)
        assert told == ["first"], "the second has ended, and the third came after this"
        end_second()
        watch.grew()
        await asyncio.sleep(0)
        assert told == ["first", "first", "third"], "ended twice, it ended another's watch"

    asyncio.run(scenario())


def test_a_batch_of_appends_is_one_call_after_their_outcomes() -> None:
    async def scenario() -> None:
        log = await Process(World()).store(LedgerConfig()).open(NAME)
        outcomes = Outcomes()
        told: list[int] = []
        log.append([b"first"], outcomes)
        await outcomes.wait(1)
        log.watch_readable(lambda: told.append(outcomes.count))
        for _ in range(10):
            log.append([b"a", b"b"], outcomes)
        await outcomes.wait(11)
        await asyncio.sleep(0)
        assert told == [11]

    asyncio.run(scenario())


def test_what_the_recovery_of_a_failed_append_finds_is_told() -> None:
    """Entries of an append that failed become readable when its ledger is closed: nobody is
    answered then, so nobody but the log can tell."""

    async def scenario() -> None:
        process = Process(World())
        ledgers = process.ledgers
        log = await process.store().open(NAME)
        outcomes = Outcomes()
        ledgers.silent = True
        log.append([b"stored", b"and not confirmed"], outcomes)
        await asyncio.sleep(0.01)
        recover = ledgers.open

        async def no_answer(ledger_id: int) -> None:
            raise MetadataError("no answer")

        ledgers.open = no_answer  # type: ignore[assignment, method-assign]
        ledgers.close_errors = [MetadataError("no answer")]
        ledgers.writers[-1].fail(LedgerError("too few bookies"))
        await outcomes.wait(1)
        assert len(outcomes.errors) == 1
        told: list[int] = []
        log.watch_readable(lambda: told.append(log.positions.readable.entry_id))

        ledgers.open = recover  # type: ignore[method-assign]
        ledgers.silent, ledgers.hold = False, True
        log.append([b"waits"], outcomes)
        await asyncio.sleep(1)
        assert told == [1]
        assert outcomes.count == 1, "and no append was answered"

    run_virtual(scenario())
