"""What a task's failure is, and to whom."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import Any

import pytest

from magnetar.env.tasks import TaskScope, awaited, ends_role, fails, ignored, shared_result
from magnetar.model.errors import DefectError, MagnetarError, ServiceNotReadyError
from tests.doubles.garbage import in_cycles


class Loop:
    """Notes what the loop's exception handler is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        asyncio.get_running_loop().set_exception_handler(self._handle)

    def _handle(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.told.append(context["message"])


async def broken() -> None:
    raise KeyError("planted")


async def ended(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task])
    await asyncio.sleep(0)


def test_a_role_ends_with_an_error_that_names_the_task() -> None:
    async def main() -> None:
        loop, errors = Loop(), list[MagnetarError]()
        scope = TaskScope("disks", ends_role(errors.append))
        await ended(scope.spawn(broken(), "watch"))
        (error,) = errors
        assert isinstance(error, DefectError)
        assert "disks/watch" in str(error)
        assert "planted" in str(error)
        assert loop.told == ["disks/watch has failed"]
        assert len(scope) == 0

    asyncio.run(main())


def test_an_owner_is_told_and_a_task_may_have_another() -> None:
    async def main() -> None:
        Loop()
        owner, other = list[str](), list[str]()
        scope = TaskScope("s", fails(lambda task, error: owner.append(task)))
        await ended(scope.spawn(broken(), "one"))
        await ended(scope.spawn(broken(), "two", fails(lambda task, error: other.append(task))))
        part = scope.part("part", fails(lambda task, error: other.append(task)))
        await ended(part.spawn(broken(), "three"))
        assert (owner, other) == (["s/one"], ["s/two", "part/three"])

    asyncio.run(main())


def test_whoever_awaits_a_task_has_its_error_and_nobody_else() -> None:
    async def main() -> None:
        loop = Loop()
        scope = TaskScope("s", awaited(by="this test"))
        task = scope.spawn(broken(), "one")
        with pytest.raises(KeyError):
            await task
        await asyncio.sleep(0)
        assert loop.told == []

    asyncio.run(main())


def test_what_is_passed_over_is_counted_and_said() -> None:
    async def main() -> None:
        loop, counted = Loop(), list[int]()
        scope = TaskScope("s", ignored("it is tried again", lambda: counted.append(1)))
        await ended(scope.spawn(broken(), "one"))
        assert (counted, loop.told) == ([1], ["s/one has failed"])

    asyncio.run(main())


def test_a_scope_ends_its_tasks_and_those_of_its_parts() -> None:
    async def main() -> None:
        failed = list[str]()
        scope = TaskScope("s", fails(lambda task, error: failed.append(task)))
        part = scope.part("part", fails(lambda task, error: failed.append(task)))
        tasks = [scope.spawn(asyncio.sleep(100), "a"), part.spawn(asyncio.sleep(100), "b")]
        await scope.close()
        assert all(task.cancelled() for task in tasks)
        assert failed == []
        late = broken()
        with pytest.raises(AssertionError):
            part.spawn(late, "late")
        late.close()

    asyncio.run(main())


def test_an_inner_scope_ends_by_itself_or_with_the_one_around_it() -> None:
    async def main() -> None:
        failed = list[str]()
        scope = TaskScope("s", fails(lambda task, error: failed.append(task)))
        inner = scope.inner("inner", fails(lambda task, error: failed.append(task)))
        other = scope.inner("other", fails(lambda task, error: failed.append(task)))
        names = ((scope, "a"), (inner, "b"), (other, "c"))
        a, b, c = (of.spawn(asyncio.sleep(100), name) for of, name in names)
        await inner.close()
        assert (a.done(), b.cancelled(), c.done()) == (False, True, False)
        assert (len(scope), len(inner), len(other)) == (2, 0, 1)
        await scope.close()
        assert a.cancelled()
        assert c.cancelled()
        late = broken()
        with pytest.raises(AssertionError):
            other.spawn(late, "late")
        late.close()
        assert failed == []

    asyncio.run(main())


def test_a_callback_that_fails_is_told_as_a_task_and_none_is_called_after_the_end() -> None:
    async def main() -> None:
        loop, failed, called = Loop(), list[str](), list[int]()
        scope = TaskScope("s", fails(lambda task, error: failed.append(task)))

        def call() -> None:
            called.append(1)
            raise KeyError("a defect")

        callback = scope.guarded(call, "one")
        asyncio.get_running_loop().call_soon(callback)
        await asyncio.sleep(0)
        assert (failed, loop.told) == (["s/one"], ["s/one has failed"])
        await scope.close()
        callback()
        assert called == [1]

    asyncio.run(main())


def test_what_cannot_be_started_any_more_is_closed(recwarn: pytest.WarningsRecorder) -> None:
    """Where the loop has ended: it would be told of as never awaited, wherever it is collected."""

    async def never() -> None: ...

    scope = TaskScope("late", ignored("nobody is left", lambda: None))
    with pytest.raises(RuntimeError):
        scope.spawn(never(), "late")
    gc.collect()  # finds what other tests left open, too: only coroutines count here
    assert [str(each.message) for each in recwarn if each.category is RuntimeWarning] == []


def test_who_waits_for_a_shared_task_is_told_when_its_scope_ends() -> None:
    async def scenario() -> None:
        scope = TaskScope("s", awaited(by="the test"))
        answer = scope.spawn(asyncio.sleep(0, "answer"), "ask", awaited(by="the test"))
        assert await shared_result(answer) == await shared_result(answer) == "answer"
        with pytest.raises(KeyError, match="planted"):
            await shared_result(scope.spawn(broken(), "fail", awaited(by="the test")))
        hanging = scope.spawn(asyncio.Event().wait(), "take a", awaited(by="the test"))
        one, other = (asyncio.create_task(shared_result(hanging)) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        assert not hanging.done(), "the other still wants it"
        await scope.close()
        with pytest.raises(ServiceNotReadyError, match="take a: this broker is ending"):
            await other

    asyncio.run(scenario())


def test_a_result_that_is_an_error_leaves_nothing_to_the_collector() -> None:
    """A topic that has no policy is found out so: for each one that is opened."""

    async def scenario() -> None:
        scope = TaskScope("s", awaited(by="the test"))
        with in_cycles() as left:
            for _ in range(3):
                with suppress(KeyError):
                    await shared_result(scope.spawn(broken(), "fail"))
        assert left == []
        await scope.close()

    asyncio.run(scenario())


def test_nothing_is_called_once_the_scope_around_is_closed() -> None:
    async def scenario() -> None:
        outer = TaskScope("outer", fails(lambda _task, _error: None))
        called: list[str] = []
        callback = outer.inner("inner", fails(lambda _task, _error: None)).guarded(
            lambda: called.append("it is called"), "look"
        )
        callback()
        outer.cancel()
        callback()
        assert called == ["it is called"]

    asyncio.run(scenario())


def test_a_closed_scope_keeps_nobody() -> None:
    class Owner:
        def __init__(self) -> None:
            self.scope = TaskScope("s", fails(self.failed))

        def failed(self, task: str, error: BaseException) -> None:
            raise AssertionError(task)

    async def scenario() -> None:
        with in_cycles() as left:
            owner = Owner()
            owner.scope.spawn(asyncio.Event().wait(), "hang")
            await owner.scope.close()
            del owner
        assert [each for each in left if isinstance(each, Owner)] == []

    asyncio.run(scenario())


def test_a_scope_that_its_own_task_closes_tells_of_that_task() -> None:
    async def scenario() -> None:
        loop, told = Loop(), []
        scope = TaskScope("s", fails(lambda task, _error: told.append(task)))

        async def close_and_break() -> None:
            await scope.close()
            await broken()

        await ended(scope.spawn(close_and_break(), "end"))
        assert told == ["s/end"]
        assert loop.told == ["s/end has failed"]

    asyncio.run(scenario())
