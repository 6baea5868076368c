"""Protocols that objects are asked for."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from magnetar.env.capabilities import class_check


@runtime_checkable
class Swims(Protocol):
    def swim(self) -> str: ...


class Animal:
    pass


class Fish(Animal):
    def swim(self) -> str:
        return "swims"


def test_each_class_is_asked_for_itself() -> None:
    swims = class_check(Swims)
    for _ in range(2):  # the second answer is a kept one
        assert [swims(each) for each in (Animal, Fish, Animal)] == [False, True, False]
