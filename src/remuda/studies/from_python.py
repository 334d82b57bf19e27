"""Sweeps and searches as a program starts and continues them: settings are keyword arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from remuda.core.errors import RunError
from remuda.studies import study as studies
from remuda.studies.study import Study, is_study
from remuda.studies.sweeps import sweep as sweeps
from remuda.studies.sweeps.page import write_sweep
from remuda.studies.sweeps.sweep import Sweep, is_sweep
from remuda.studies.workflows import search as searches
from remuda.studies.workflows.ranking import Search
from remuda.studies.workflows.state import is_search


def sweep(game: str, out: Path | str = "sweep", *, quiet: bool = False, **settings: Any) -> Sweep:
    """Search good values of settings with Optuna, trials side by side, and write a page about them.

    A setting that is a range is searched: `lr="log(1e-4, 1e-2)"`, `layer="int(32, 256)"`, `double="choice(true,
    false)"`. Options of the sweep are `trials`, `budget_episodes`, `minutes`, `method`, `prune` and `seed`; other
    settings are those of every trial. `out` is a directory that must not exist; `resume_study` continues it.
    """
    found = sweeps.sweep({"game": game, **settings}, out, quiet)
    write_sweep(found)
    return found


def search(game: str = "cage2", out: Path | str = "search", **settings: Any) -> Search:
    """Find the order of repair under which a trained defender does best.

    `settings` are the options of the search (`method`, `total_episodes`, `compliance_threshold`, `side_by_side`,
    `seed`) and those of its trials. `out` is a directory that must not exist; `resume_study` continues it.
    """
    return searches.search(game, settings, out)


def resume_study(
    folder: Path | str, *, quiet: bool = False, trust: bool = False, on: str | None = None
) -> Study | Sweep | Search:
    """Continue the study, sweep or search in a directory as if it had never stopped.

    `trust` follows names of code in one that somebody else began; `on` has its trials elsewhere from now on.
    """
    path = Path(folder)
    if is_study(path):
        return studies.resume_study(path, quiet, trust, on)
    if is_search(path):
        return searches.resume_search(path, trust=trust, on=on)
    if not is_sweep(path):
        raise RunError(f"{path} is neither a study nor a sweep nor a search; `remuda.resume` continues a run")
    found = sweeps.resume_sweep(path, quiet, trust, on)
    write_sweep(found)
    return found
