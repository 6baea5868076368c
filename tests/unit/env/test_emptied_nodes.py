"""What stands above deleted nodes goes with the last of them, and nothing else does."""

from __future__ import annotations

import asyncio

from magnetar.env.emptied_nodes import delete_emptied
from magnetar.env.metadata import MetadataStore
from tests.unit.log.doubles import Process, World


async def paths(metadata: MetadataStore, root: str) -> set[str]:
    found = {root}
    for name in await metadata.children(root):
        found |= await paths(metadata, f"{root}/{name}")
    return found


def test_up_to_the_first_that_holds_another() -> None:
    async def scenario() -> None:
        metadata = Process(World()).metadata
        for path in ("/all/root/a/b/c", "/all/root/a/d", "/all/rooted"):
            await metadata.create(path, b"")
        before = await paths(metadata, "/all")
        root = "/all/root"
        for path in ("/all/root/a", "/all/root/a/b", root, "/all/rooted", "/all"):
            await delete_emptied(metadata, path, root)
            assert await paths(metadata, "/all") == before, path
        await delete_emptied(metadata, f"{root}/a/b/c", root)
        gone = {f"{root}/a/b/c", f"{root}/a/b"}
        assert await paths(metadata, "/all") == before - gone
        await metadata.delete(f"{root}/a/d")
        await delete_emptied(metadata, f"{root}/a/d", root)  # it has gone before
        gone |= {f"{root}/a/d", f"{root}/a"}
        assert await paths(metadata, "/all") == before - gone

    asyncio.run(scenario())
