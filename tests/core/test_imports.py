"""Importing `remuda.core` is cheap: no torch, and numba only where kernels are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import remuda.core

FOLDER = Path(remuda.core.__file__).parent
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
WITH_KERNELS = {"kernels", "learner", "policy", "reward_kernel", "rng"}
"""They have kernels, or import a module that has."""
SCRIPT = """
import sys, types
package = types.ModuleType("remuda")  # in place of the real one, which imports everything
package.__path__ = [{source!r}]
sys.modules["remuda"] = package
for name in {names!r}:
    __import__(f"remuda.core.{{name}}")
print(*sorted({{"torch", "numba"}} & set(sys.modules)))
"""


def imported(names: list[str]) -> list[str]:
    """Which of torch and numba are loaded after importing these modules."""
    script = SCRIPT.format(source=str(FOLDER.parent), names=names)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split()


def test_core_does_not_import_torch() -> None:
    assert imported(MODULES) == ["numba"]


def test_modules_without_kernels_do_not_import_numba() -> None:
    assert imported([name for name in MODULES if name not in WITH_KERNELS]) == []


@pytest.mark.promise
@pytest.mark.parametrize("name", sorted(WITH_KERNELS))
def test_the_list_of_modules_with_kernels_has_no_others(name: str) -> None:
    assert imported([name]) == ["numba"]
