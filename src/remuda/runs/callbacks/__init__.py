"""Listeners of a run: every logger of metrics (CSV tables, TensorBoard, wandb, MLflow), progress and pictures."""
