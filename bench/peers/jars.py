"""What peers are made of: jars that Maven fetches into a directory that is kept."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from magnetar.env.metadata_stores.zookeeper_server import find_java
from magnetar.model.errors import ConfigError


class NotFetchedError(SystemExit):
    """Something is not there, and cannot be fetched; says what. Ends a program that does not
    catch it."""


def fetched_jars(pom: Path, folder: Path) -> Path:
    """``folder`` with the jars that ``pom`` names; whole or not there. Raises
    ``NotFetchedError``."""
    try:
        find_java()
    except ConfigError as error:
        raise NotFetchedError(str(error)) from error
    if folder.exists():
        return folder
    if shutil.which("mvn") is None:
        raise NotFetchedError(f"{pom.name} is fetched by Maven, and there is no mvn: install it")
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={part}"]
    done = subprocess.run(["mvn", "-q", "-B", "-f", str(pom), *goal], check=False)
    if done.returncode:
        raise NotFetchedError(
            f"Maven has not fetched what {pom.name} names (status {done.returncode}, its reasons "
            "above)"
        )
    part.rename(folder)
    return folder
