"""What the tests of engines share."""

from __future__ import annotations

import pytest

from remuda.engines import choose


@pytest.fixture
def processes_always_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run counts as long."""
    monkeypatch.setattr(choose, "PROCESSES_PAY_S", 0.0)
