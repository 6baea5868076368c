"""The election of the auditor, as BookKeeper's servers hold it, and among them.

Each candidate makes an ephemeral node in sequence below ``auditorelection``; the lowest one's maker
is the auditor, everybody else watches the node before its own. The auditor's name is also written
into ``auditorelection`` itself, for people.

A vote that cannot be read (of another release, or damaged) is another's, and has its place.

An auditor whose session ends has lost its vote. Two may audit for a moment then: all that an
auditor does is to mark ledgers, and a mark too many costs a look.
"""

from __future__ import annotations

from magnetar.env.metadata import CreateMode, MetadataStore
from magnetar.env.node_changes import NodeChanges
from magnetar.model.errors import MetadataError, MetadataFormatError, NoNodeError
from magnetar.wire.bookie.underreplication import (
    DIRECTORY,
    UNREADABLE,
    VOTE_PREFIX,
    decode_vote,
    encode_vote,
    ordered_votes,
)

LOOK_AGAIN_S = 30.0
"""Also without being told of a change."""


class Election:
    """``voter`` names this process to others, unlike any other. All methods may raise
    ``MetadataError``."""

    def __init__(self, store: MetadataStore, voter: str, root: str = "/ledgers") -> None:
        self._store = store
        self._voter = voter
        self._path = f"{root}/{DIRECTORY}/auditorelection"
        self._vote: str | None = None

    async def wait_elected(self) -> None:
        """Return when this process is the auditor."""
        while True:
            vote = await self._own_vote()
            votes = ordered_votes(await self._store.children(self._path))
            if vote not in votes:
                self._vote = None  # it went with a session
                continue
            place = votes.index(vote)
            if place == 0:
                await self._tell()
                return
            before = f"{self._path}/{votes[place - 1]}"
            with NodeChanges(self._store, before) as changes:
                if await self._exists(before):
                    await changes.wait(LOOK_AGAIN_S)

    async def is_elected(self) -> bool:
        """Whether this process is the auditor still."""
        votes = ordered_votes(await self._store.children(self._path))
        return self._vote is not None and votes[:1] == [self._vote]

    @property
    def vote_path(self) -> str:
        """Our node, or where it would be."""
        return f"{self._path}/{self._vote or VOTE_PREFIX}"

    async def withdraw(self) -> None:
        """Be no candidate any more. Idempotent."""
        vote, self._vote = self._vote, None
        if vote is not None:
            try:
                await self._store.delete(f"{self._path}/{vote}")
            except NoNodeError:
                return

    async def auditor(self) -> str | None:
        """What the auditor calls itself; None: there is none. ``UNREADABLE``: nobody can say."""
        try:
            for vote in ordered_votes(await self._store.children(self._path))[:1]:
                path = f"{self._path}/{vote}"
                return decode_vote((await self._store.get(path)).value, path)
        except NoNodeError:
            pass  # there never was one, or it goes just now
        except MetadataFormatError:
            return UNREADABLE
        return None

    async def voters(self) -> int:
        """How many candidates there are."""
        try:
            return len(ordered_votes(await self._store.children(self._path)))
        except NoNodeError:
            return 0  # there never was one

    async def _own_vote(self) -> str:
        """The name of our node. One from an attempt whose answer was lost is found by its text:
        nobody would remove it while this session lasts, and all behind it would wait."""
        if self._vote is not None:
            return self._vote
        self._vote = await self._find_own()
        if self._vote is None:
            made = await self._store.create(
                f"{self._path}/{VOTE_PREFIX}",
                encode_vote(self._voter),
                CreateMode.EPHEMERAL_SEQUENTIAL,
            )
            self._vote = made.rpartition("/")[2]
        return self._vote

    async def _find_own(self) -> str | None:
        try:
            names = ordered_votes(await self._store.children(self._path))
        except NoNodeError:
            return None
        for name in names:
            path = f"{self._path}/{name}"
            try:
                if decode_vote((await self._store.get(path)).value, path) == self._voter:
                    return name
            except (NoNodeError, MetadataFormatError):
                continue
        return None

    async def _exists(self, path: str) -> bool:
        try:
            await self._store.get(path)
        except NoNodeError:
            return False
        return True

    async def _tell(self) -> None:
        try:
            await self._store.put(self._path, encode_vote(self._voter), -1)
        except MetadataError:
            return  # for people only
