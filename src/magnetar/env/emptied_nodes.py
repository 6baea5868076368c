"""Nodes of the metadata store that held others, and hold none any more.

``MetadataStore.create`` makes what is missing above a node; nobody takes it away. Who deletes what
was named by users (tenants, namespaces, topics) takes away what stood above it too, or the store
keeps a node for each name that there ever was.
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import NoNodeError, NotEmptyError


async def delete_emptied(metadata: MetadataStore, path: str, root: str) -> None:
    """Delete the node, and those above it below ``root``, up to the first that holds another.
    Whoever makes something below them meanwhile makes them again. Raises ``MetadataError``."""
    while path.startswith(f"{root}/"):
        try:
            await metadata.delete(path)
        except NotEmptyError:
            return
        except NoNodeError:  # it may have been taken away without those above it
            pass
        path = path.rpartition("/")[0]


async def delete_below(
    metadata: MetadataStore,
    path: str,
    root: str,
    gone: Callable[[str], None] = lambda path: None,
) -> None:
    """Delete what is in the node, and then as ``delete_emptied``; fine if there is none. ``gone``
    is called with each that was in it. Raises ``MetadataError``."""
    try:
        names = await metadata.children(path)
    except NoNodeError:
        names = []
    for each in (f"{path}/{name}" for name in names):
        try:
            await metadata.delete(each)
        except (NoNodeError, NotEmptyError):  # another was faster, or it has news
            pass
        finally:
            gone(each)
    await delete_emptied(metadata, path, root)
