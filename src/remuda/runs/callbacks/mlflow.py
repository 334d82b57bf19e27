"""Metrics for MLflow: `callbacks=[mlflow]`, or `MLflow(experiment=…, tracking_uri=…)` from Python."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from remuda.runs.callbacks.base import Training
from remuda.runs.callbacks.tracker import Tracker, flat

MAX_TEXT = 5000
"""Longest text of a tag or a parameter that every kind of MLflow server takes."""
MAX_METRICS, MAX_PARAMETERS = 1000, 100
"""Most that MLflow takes in one call."""


class MLflow(Tracker):
    """Logs a run to MLflow. What is not given comes from MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME.

    The config becomes parameters. MLflow never changes a parameter. So a setting that was changed for a resumed run
    becomes a tag `config.<name>`, and the result, which changes too, becomes metrics (numbers) and tags (the rest).
    """

    package, title, id_pattern = "mlflow", "MLflow", r"[0-9a-f]{32}"

    def __init__(self, experiment: str | None = None, tracking_uri: str | None = None) -> None:
        super().__init__()
        self._experiment, self._tracking_uri = experiment, tracking_uri
        self._mlflow: Any = None
        self._client: Any = None
        self._run_id: str | None = None

    def open(self, module: Any, training: Training, run_id: str | None) -> str:
        """Start the run, or continue it, and log the config."""
        self._mlflow, self._run_id = module, None
        # The client, not mlflow.start_run: that would make this run the current one of the caller's program too.
        self._client = module.MlflowClient(tracking_uri=self._tracking_uri)
        known = self._continue(run_id) if run_id else None
        if run_id is None or known is None:
            name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "remuda"
            run = self._client.create_run(self._experiment_id(name), run_name=training.path.name)
            run_id, known = str(run.info.run_id), {}
        self._run_id = run_id
        self._log_config(training.config.model_dump(mode="json"), known)
        return run_id

    def _continue(self, run_id: str) -> dict[str, str] | None:
        """Mark the run as running again and return its parameters; None where the server does not have it."""
        try:
            run = self._client.get_run(run_id)
            self._client.update_run(run_id, status="RUNNING")
        except self._mlflow.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return dict(run.data.params)

    def _experiment_id(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except self._mlflow.MlflowException:  # another run may have created it meanwhile
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _log_config(self, config: Mapping[str, Any], known: Mapping[str, str]) -> None:
        settings = {_key(name): _text(value) for name, value in flat(config, ".")}
        entities = self._mlflow.entities
        new = [entities.Param(name, text) for name, text in settings.items() if name not in known]
        for first in range(0, len(new), MAX_PARAMETERS):
            self._client.log_batch(self._run_id, params=new[first : first + MAX_PARAMETERS])
        self._set_tags({f"config.{name}": text for name, text in settings.items() if known.get(name, text) != text})

    def log(self, values: Mapping[str, float], episodes: int) -> None:
        """Log metrics; the step is the number of episodes."""
        now = int(time.time() * 1000)
        metrics = [self._mlflow.entities.Metric(_key(name), value, now, episodes) for name, value in values.items()]
        for first in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[first : first + MAX_METRICS])

    def alert(self, message: str) -> None:
        """Keep the last message in a tag: MLflow has no alerts."""
        self._set_tags({"last_failure": _text(message)})

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Log the result and end the run."""
        if self._run_id is None:
            return
        entries = {f"result/{name}": value for name, value in flat(result or {}, "/") if value is not None}
        numbers = {name: float(value) for name, value in entries.items() if _is_number(value)}
        try:
            if result is not None:
                self.log(numbers, int(result["episodes"]))
                self._set_tags({name: _text(value) for name, value in entries.items() if name not in numbers})
        finally:
            status = "FAILED" if result is None else "FINISHED" if result["finished"] else "KILLED"
            run_id, self._run_id = self._run_id, None
            self._client.set_terminated(run_id, status)

    def _set_tags(self, tags: Mapping[str, str]) -> None:
        if tags:
            made = [self._mlflow.entities.RunTag(_key(name), text) for name, text in tags.items()]
            self._client.log_batch(self._run_id, tags=made)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _key(name: str) -> str:
    """The name with only the characters that MLflow takes."""
    return re.sub(r"[^\w./ -]", "_", name)


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:MAX_TEXT]
