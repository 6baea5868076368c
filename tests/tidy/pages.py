"""Pages that are made from the code: ``python -m tests.tidy.pages`` writes them anew.

ARCHITECTURE.md's tables and docs/layers.md come from the rules that the tests hold and from what
packages and modules say of themselves; docs/machines.md from the machines' transition tables; the
index of decisions from their heads. ``test_pages.py`` fails when a page is not what the code says.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.tidy import rules
from tests.tidy.source_tree import SOURCE, Module, modules

ROOT = SOURCE.parent
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
LAYERS = ROOT / "docs" / "layers.md"
MACHINES = ROOT / "docs" / "machines.md"
DECISIONS = ROOT / "docs" / "adr"
DECISION_INDEX = DECISIONS / "README.md"

MACHINE_TABLES: tuple[tuple[str, str, str], ...] = (
    ("magnetar.ledger.writing.quorum_write", "TRANSITIONS", "Quorum write"),
    (
        "magnetar.topics.dispatch.single_active",
        "TRANSITIONS",
        "Who is active in an exclusive or failover subscription",
    ),
    ("magnetar.log.managed.appender_states", "TRANSITIONS", "The appender of a log"),
    ("magnetar.log.partition.replication.isr_states", "ROLE_TRANSITIONS", "A partition's replica"),
    (
        "magnetar.log.partition.replication.isr_states",
        "ISR_TRANSITIONS",
        "The in-sync set of a leader",
    ),
    (
        "magnetar.protocols.kafka.coordination.group_states",
        "TRANSITIONS",
        "A group of Kafka's consumers",
    ),
    (
        "magnetar.protocols.kafka.security.sasl_states",
        "TRANSITIONS",
        "Who a client of Kafka's is",
    ),
    (
        "magnetar.protocols.kafka.coordination.transaction_states",
        "TRANSITIONS",
        "A transactional id of Kafka's producers",
    ),
    ("magnetar.ledger.recovering.recovery_plan", "VOTE_RULES", "An entry's vote in a recovery"),
)
"""Module, name of its table, title of its section in docs/machines.md."""


def first_sentence(module: Module) -> str:
    """What a module says of itself, up to its first full stop, question mark or blank line."""
    text = ast.get_docstring(module.tree) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    paragraph = paragraph.replace("``", "`")
    return re.split(r"(?<=[a-zA-Z`)0-9])[.](?:\s|$)", paragraph, maxsplit=1)[0].rstrip(".")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


# -- ARCHITECTURE.md ----------------------------------------------------------------------------


def _allowed(package: str) -> str:
    allowed = rules.MAY_IMPORT[package]
    named = sorted(allowed - rules.SETTINGS)
    return ", ".join(named) + (", settings" if allowed >= rules.SETTINGS else "")


def packages(tree: Sequence[Module]) -> str:
    by_name = {module.name: module for module in tree}
    rows = []
    for package in rules.MAY_IMPORT:
        module = by_name.get(f"magnetar.{package}")
        if not package or module is None or package == "__main__":
            continue
        ending = "/" if module.path.name == "__init__.py" else ".py"
        rows.append((f"`{package}{ending}`", first_sentence(module), _allowed(package)))
    return table(("package", "what it is", "may import"), rows)


def inner_packages(tree: Sequence[Module]) -> str:
    """The packages within packages, but those whose modules have a table of layers."""
    inner = [
        module
        for module in tree
        if module.path.name == "__init__.py"
        and module.name.count(".") == 2
        and module.name not in rules.LAYERS
    ]
    rows = [
        (f"`{module.name.removeprefix('magnetar.').replace('.', '/')}/`", first_sentence(module))
        for module in inner
    ]
    return table(("package", "what it is"), rows)


def architecture(tree: Sequence[Module], text: str) -> str:
    """``text`` with its tables made anew, each between two marks."""
    parts = {"packages": packages(tree), "inner packages": inner_packages(tree)}
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        assert text.count(begin) == text.count(end) == 1, f"ARCHITECTURE.md lacks {begin!r}"
        head, rest = text.split(begin)
        text = head + begin + part + "\n" + end + rest.split(end)[1]
    return text


# -- docs/layers.md -----------------------------------------------------------------------------

LAYERS_HEAD = """\
# Layers of crowded packages

Made from the code by `python -m tests.tidy.pages`: what each module says of itself, from the bottom
up. A module knows those of its layer and below, type-checking imports included.
"""


def layers(tree: Sequence[Module]) -> str:
    by_name = {module.name: module for module in tree}
    sections = [LAYERS_HEAD]
    for package in rules.LAYERS:
        path = package.removeprefix("magnetar.").replace(".", "/")
        sections.append(f"## `{path}/`\n\n{_layers_of(by_name, package)}\n")
    return "\n".join(sections)


def _layers_of(by_name: Mapping[str, Module], package: str) -> str:
    rows = [
        (f"{number}", f"`{name}`", first_sentence(by_name[f"{package}.{name}"]))
        for number, names in enumerate(rules.LAYERS[package], 1)
        for name in names
    ]
    return table(("layer", "module", "what it is"), rows)


# -- docs/machines.md ---------------------------------------------------------------------------

MACHINES_HEAD = """\
# The machines' tables

Made from the code by `python -m tests.tidy.pages`: the tables below are the data that the machines
use, or that a test walks them by (`tests/unit/ledger/test_transitions.py` and its like). Stories of
the machines, command by command: `tests/unit/*/transcripts/`.
"""


def machines() -> str:
    sections = [MACHINES_HEAD]
    for module_name, name, title in MACHINE_TABLES:
        module = importlib.import_module(module_name)
        lines = getattr(module, name)
        path = module_name.removeprefix("magnetar.").replace(".", "/")
        sections.append(f"## {title}\n\n`{path}.py`\n\n{_machine_table(lines)}\n")
    return "\n".join(sections)


def _machine_table(lines: Sequence[object]) -> str:
    first = lines[0]
    fields = [name for name in first._fields if name != "holds"]  # type: ignore[attr-defined]
    rows = [[_cell(getattr(line, name)) for name in fields] for line in lines]
    return table([name.replace("_", " ") for name in fields], rows)


def _cell(value: object) -> str:
    return str(getattr(value, "value", value))


# -- docs/adr/README.md -------------------------------------------------------------------------

INDEX_HEAD = """\
# Decisions

Made by `python -m tests.tidy.pages` from the heads of the files. A decision is a file
`NNNN-what-it-is.md` with a title, then `Status:` (accepted, or superseded by another) and `Date:`;
the code that it shaped names it as `ADR NNNN`. A decision that is one module's alone stands in
that module's text instead.
"""

_TITLE = re.compile(r"# (\d{4})[:.] (.+)")


def decision_index() -> str:
    rows = []
    for path in sorted(DECISIONS.glob("[0-9]*.md")):
        number, title, status, date = head_of_decision(path)
        rows.append((f"[{number}]({path.name})", title, status, date, ", ".join(users(number))))
    return INDEX_HEAD + "\n" + table(("number", "decision", "status", "date", "code"), rows) + "\n"


def head_of_decision(path: Path) -> tuple[str, str, str, str]:
    """Number, title, status and date."""
    text = path.read_text(encoding="utf-8")
    title = _TITLE.match(text)
    status = re.search(r"^Status: (.+?)\. Date: (\d{4}-\d{2}-\d{2})\.$", text, re.MULTILINE)
    assert title, f"{path.name} begins with '# NNNN: title'"
    assert status, f"{path.name} has no line 'Status: accepted. Date: YYYY-MM-DD.'"
    return title[1], title[2], status[1], status[2]


def users(number: str) -> list[str]:
    """The files that name a decision."""
    named = re.compile(rf"ADRs? (\d{{4}}(, | and ))*{number}|adr/{number}")
    found = [path for path, text in _naming_decisions() if named.search(text)]
    return [
        f"`{path.relative_to(ROOT).as_posix().removeprefix('src/magnetar/')}`" for path in found
    ]


@cache
def _naming_decisions() -> list[tuple[Path, str]]:
    """The files that name any decision, in order, with their text: read once for all decisions."""
    places = [*SOURCE.rglob("*.py"), ROOT / "Makefile", *(ROOT / "scripts").glob("*.sh")]
    texts = [(path, path.read_text(encoding="utf-8")) for path in sorted(places)]
    return [(path, text) for path, text in texts if "ADR" in text or "adr/" in text]


def main() -> None:
    tree = modules()
    text = ARCHITECTURE.read_text(encoding="utf-8")
    ARCHITECTURE.write_text(architecture(tree, text), encoding="utf-8")
    LAYERS.write_text(layers(tree), encoding="utf-8")
    MACHINES.write_text(machines(), encoding="utf-8")
    DECISION_INDEX.write_text(decision_index(), encoding="utf-8")


if __name__ == "__main__":
    main()
