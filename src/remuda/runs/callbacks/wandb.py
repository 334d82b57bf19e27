"""Metrics for Weights & Biases: `callbacks=[wandb]`, or `WeightsAndBiases(project=…)` from Python."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

from remuda.core.errors import first_line
from remuda.runs.callbacks.base import Training
from remuda.runs.callbacks.tracker import Tracker, flat

SETTINGS = {
    "silent": True,  # its lines would tear the progress panel
    "console": "off",  # it would wrap stdout and stderr, which the panel owns; console.log has the lines
    "init_timeout": 30.0,
    "finish_timeout": 20.0,  # less than END_LIMIT_S, so that its service process is closed in time too
}

_lock = threading.Lock()
_open_runs = 0  # of all callbacks in this process: they share one service process, which the last one ends


class WeightsAndBiases(Tracker):
    """Logs a run to Weights & Biases. `options` are those of `wandb.init`; its environment variables count too.

    Where the server cannot be reached, or nobody is logged in, the run is logged offline, for `wandb sync`.
    """

    package, title, id_pattern = "wandb", "Weights & Biases", r"[A-Za-z0-9_-]{1,128}"

    def __init__(self, project: str | None = None, **options: Any) -> None:
        super().__init__()
        self._project, self._options = project, options
        self._wandb: Any = None
        self._run: Any = None

    def open(self, module: Any, training: Training, run_id: str | None) -> str:
        """Start the service process and the run, or continue the run."""
        global _open_runs
        with _lock:
            _open_runs += 1
            self._wandb = module
            # Before anything else, and for the process: unless wandb is silent, it asks for an API key on the terminal.
            module.setup(settings=module.Settings(silent=True))
        self._run = self._init(self._init_options(training, run_id))
        self._run.config.update(training.config.model_dump(mode="json"), allow_val_change=True)
        # wandb's own step must never decrease, but an evaluation may come after a later round. So episodes are a metric
        # of their own, and the x-axis of all others.
        self._run.define_metric("episodes", hidden=True)
        self._run.define_metric("*", step_metric="episodes")
        return str(self._run.id)

    def _init_options(self, training: Training, run_id: str | None) -> dict[str, Any]:
        # No `dir`: wandb makes symbolic links there, and a run directory with links in it is refused.
        own = {
            "project": self._project or os.environ.get("WANDB_PROJECT") or "remuda",
            "name": os.environ.get("WANDB_NAME") or training.path.name,
            "settings": SETTINGS,
            "reinit": "create_new",  # leaves other runs of this process alone
        }
        return {**own, **self._options, **({"id": run_id, "resume": "allow"} if run_id else {})}

    def _init(self, options: dict[str, Any]) -> Any:
        """Start the run; without network or login, offline."""
        try:
            return self._wandb.init(**options)
        except self._wandb.Error as error:
            run = self._wandb.init(**{**options, "mode": "offline"})
            self.report(f"{first_line(error)} Logged offline; for the upload: wandb sync {run.settings.sync_dir}")
            return run

    def log(self, values: Mapping[str, float], episodes: int) -> None:
        """Log one row of the history."""
        self._run.log({"episodes": episodes, **values})

    def alert(self, message: str) -> None:
        """Send an alert, at most one a minute, and keep the last message in the summary."""
        self._run.alert(title="remuda: a failure", text=message, level="WARN")
        self._run.summary["last_failure"] = message

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Write the result to the summary, end the run, and end the service process if nobody else uses it."""
        global _open_runs
        if self._wandb is None:
            return
        try:
            if self._run is not None:
                self._run.summary.update({f"result/{name}": value for name, value in flat(result or {}, "/")})
                self._run.finish(exit_code=1 if result is None else 0)
        finally:
            with _lock:
                _open_runs -= 1
                module, self._wandb, self._run = self._wandb, None, None
                if _open_runs == 0 and module.run is None:  # `wandb.run` is a run of the caller's own
                    module.teardown()
