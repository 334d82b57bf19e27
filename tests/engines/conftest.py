"""What the tests of engines share."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from remuda.engines import choose, rates


@pytest.fixture
def processes_always_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run counts as long, and every game as too costly for trials."""
    monkeypatch.setattr(choose, "PROCESSES_PAY_S", 0.0)
    monkeypatch.setattr(choose, "MEASURING_PAYS_S", 0.0)
    monkeypatch.setattr(choose, "COSTLY_S", 0.0)


@pytest.fixture
def always_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Every run counts as long and cheap to try, and rates are kept in a folder of the test, which is returned."""
    monkeypatch.setattr(choose, "PROCESSES_PAY_S", 0.0)
    monkeypatch.setattr(choose, "MEASURING_PAYS_S", 0.0)
    monkeypatch.setattr(choose, "COSTLY_S", math.inf)  # on a busy machine making 64 worlds may seem to take seconds
    monkeypatch.setattr(choose, "FEW_ROUNDS", 0)
    monkeypatch.setattr(rates, "cache_base", lambda: tmp_path)
    return tmp_path / rates.FOLDER
