"""remuda: train herds of independent agents as fast as the machine allows."""

from contextlib import suppress

from remuda.core.errors import RemudaError
from remuda.runs.run import Run
from remuda.runs.training import resume, train
from remuda.testing.game_conformance import Finding, check

with suppress(ImportError):  # Gymnasium is an extra: where it is, it shall know our games
    import remuda_envs  # noqa: F401

__version__ = "0.1.0"
__all__ = ["Finding", "RemudaError", "Run", "__version__", "check", "resume", "train"]
