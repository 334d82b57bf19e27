"""`remuda sweep`: searches good values of settings with Optuna; each trial is a run."""
