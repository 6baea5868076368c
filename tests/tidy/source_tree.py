"""Reads the package's syntax trees: which module imports which, and what stands in a module."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
GENERATED_SUFFIX = "_pb2.py"


@dataclass(frozen=True)
class Import:
    """An import of ``module`` at ``line``; ``lazy`` when inside a function, ``typing`` when only
    a type checker sees it."""

    module: str
    line: int
    lazy: bool
    typing: bool


class Module:
    """One source file of the package."""

    def __init__(self, path: Path) -> None:
        self.path = path
        parts = list(path.relative_to(SOURCE).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        self.name = ".".join(parts)
        self.tree = ast.parse(path.read_text(encoding="utf-8"), str(path))

    @property
    def package(self) -> str:
        """The first folder below the package, or the file's own name for single modules."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else ""

    @cached_property
    def imports(self) -> list[Import]:
        found: list[Import] = []
        self._collect(self.tree, found, lazy=False, typing=False)
        return found

    def _collect(self, node: ast.AST, found: list[Import], *, lazy: bool, typing: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found += [Import(a.name, child.lineno, lazy, typing) for a in child.names]
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{self.path}:{child.lineno}: relative import"
                base = child.module or ""
                found.append(Import(base, child.lineno, lazy, typing))
                found += [
                    Import(f"{base}.{a.name}", child.lineno, lazy, typing) for a in child.names
                ]
            else:
                inner_lazy = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                inner_typing = typing or _is_type_checking(child)
                self._collect(child, found, lazy=inner_lazy, typing=inner_typing)

    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return [node for node in ast.walk(self.tree) if isinstance(node, kinds)]


def _is_type_checking(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def modules() -> list[Module]:
    """Every module written by hand, in a stable order."""
    paths = sorted(SOURCE.rglob("*.py"))
    return [Module(path) for path in paths if not path.name.endswith(GENERATED_SUFFIX)]
