"""What Weights & Biases and MLflow have written, read from their files."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import proc
import remuda


@dataclass
class Offline:
    """What one offline file of wandb says."""

    run_id: str = ""
    project: str = ""
    name: str = ""
    exit_code: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    alerts: list[str] = field(default_factory=list)
    step_metrics: dict[str, str] = field(default_factory=dict)  # by the metric, or the pattern of metrics


def read_offline(path: Path) -> Offline:
    """Read a .wandb file with wandb's own reader."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    store, result = DataStore(), Offline()
    store.open_for_scan(str(path))
    while data := store.scan_data():
        record = Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            result.run_id, result.project, result.name = (
                record.run.run_id, record.run.project, record.run.display_name
            )  # fmt: skip
            result.config.update(_items(record.run.config.update))
        elif kind == "config":
            result.config.update(_items(record.config.update))
        elif kind == "history":
            result.history.append(_items(record.history.item))
        elif kind == "summary":
            result.summary.update(_items(record.summary.update))
        elif kind == "alert":
            result.alerts.append(record.alert.text)
        elif kind == "metric":
            result.step_metrics[record.metric.glob_name or record.metric.name] = record.metric.step_metric
        elif kind == "exit":
            result.exit_code = record.exit.exit_code
    store.close()
    return result


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def offline_runs(folder: Path) -> list[Offline]:
    """Every run that wandb wrote into the folder, oldest first."""
    return [read_offline(path) for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"))]


def table(run: remuda.Run, name: str, column: str, agent: int) -> dict[int, float]:
    """A column of a CSV file of the run, for one agent, by episodes."""
    with (run.path / name).open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if int(row.get("agent", agent)) == agent]
    return {int(row["episodes"]): float(row[column]) for row in rows if row[column]}


def of_wandb(history: list[dict[str, Any]], key: str) -> dict[int, float]:
    return {row["episodes"]: row[key] for row in history if key in row}


def wandb_processes() -> list[str]:
    return [own.command for own in proc.descendants(os.getpid()) if own.alive and "wandb" in own.command]


def client() -> Any:
    """A reader of what MLflow wrote."""
    import mlflow

    return mlflow.MlflowClient()


def mlflow_run(run: remuda.Run) -> Any:
    return client().get_run(json.loads((run.path / "mlflow.json").read_text())["id"])


def of_mlflow(run: remuda.Run, key: str) -> list[tuple[int, float]]:
    """The history of a metric, as (episodes, value)."""
    history = client().get_metric_history(mlflow_run(run).info.run_id, key)
    return sorted((point.step, point.value) for point in history)
