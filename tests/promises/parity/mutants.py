"""Imports a package with one piece of its source replaced, to see whether recorded games notice."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Protocol


class Replacement(Protocol):
    """A piece of source that occurs once in a module of the package, and what it becomes."""

    @property
    def rule(self) -> str: ...
    @property
    def module(self) -> str: ...
    @property
    def old(self) -> str: ...
    @property
    def new(self) -> str: ...


class MutantLoader(SourceFileLoader):
    """Reads a module with one piece of its source replaced."""

    def __init__(self, name: str, path: str, mutation: Replacement) -> None:
        super().__init__(name, path)
        self.mutation = mutation

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text(encoding="utf-8")
        found = source.count(self.mutation.old)
        assert found == 1, f"{self.mutation.rule}: its source occurs {found} times"
        return compile(source.replace(self.mutation.old, self.mutation.new), self.path, "exec")


class MutantFinder(MetaPathFinder):
    """Finds the mutated module; other modules are found as usual."""

    def __init__(self, package: str, mutation: Replacement) -> None:
        self.name, self.mutation = f"{package}.{mutation.module}", mutation

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path)
        if name != self.name or spec is None or spec.origin is None:
            return None
        spec.loader = MutantLoader(name, spec.origin, self.mutation)
        return spec


def load(package: str, module: str, mutation: Replacement) -> Any:
    """A module of the package, imported anew with mutated rules."""
    for name in [name for name in sys.modules if name.startswith(f"{package}.") or name == package]:
        del sys.modules[name]
    finder = MutantFinder(package, mutation)
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module(f"{package}.{module}")
    finally:
        sys.meta_path.remove(finder)
