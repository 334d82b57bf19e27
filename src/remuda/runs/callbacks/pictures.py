"""The learning curve and a film of the herd, drawn when training is finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from remuda.core.errors import ConfigError
from remuda.runs.callbacks.base import Callback, Training
from remuda.runs.curve import draw_curve
from remuda.runs.film import make_film, play, trained_bindings


class Pictures(Callback):
    """Draws curve.png and herd.gif."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def end(self, training: Training, result: Mapping[str, Any] | None) -> None:
        """Draw, if the run is finished."""
        if result is None or not result["finished"]:
            return
        run = training.run
        self._say(f"curve: {draw_curve(run)}")
        try:
            film = run.path / "herd.gif"
            make_film(film, play(run, trained_bindings(run), 0))
            self._say(f"film:  {film}")
        except ConfigError as error:
            self._say(f"no film: {error}")
