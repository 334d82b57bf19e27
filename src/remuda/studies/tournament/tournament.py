"""A tournament: plays the matches and says who returned what against whom."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.code_names import refuse_while_importing
from remuda.core.errors import ConfigError
from remuda.core.plan import Plan
from remuda.runs.callbacks.base import Row
from remuda.runs.display import text_table
from remuda.runs.settings import complete, make_plan, spec_of
from remuda.studies import statistics
from remuda.studies.statistics import Estimate
from remuda.studies.tournament.entrants import Entrant, check_players, read_entrants
from remuda.studies.tournament.matches import Match, MatchPlayer, choose_pairs
from remuda.studies.tournament.rating import connected, pair_counts, rate
from remuda.transport.processes import refuse_inside_workers


def tournament(
    *entrants: str | Path,
    episodes: int = 100,
    focal: int | None = None,
    matches: int | None = None,
    seed: int = 0,
    on_match: Callable[[int, int], None] = lambda done, all_: None,
    **settings: Any,
) -> Tournament:
    """Let agents of runs, checkpoints and scripted players meet in one game, every one with every other.

    `entrants` are run directories, `RUN/2` for one agent, `RUN@best` for a checkpoint, or names of scripted players.
    `episodes` are played per pair, `focal` is the number of places of the first one in a match, `matches` limits the
    number of pairs. `settings` are the game and its options; the default is the game of the first run.
    """
    refuse_while_importing()
    refuse_inside_workers()
    if episodes < 1 or (matches is not None and matches < 1):
        raise ConfigError("episodes and matches should be at least 1")
    known = read_entrants([str(own) for own in entrants])
    plan = _plan(known, settings, seed)
    spec = spec_of(plan)
    check_players(known, plan, spec.agents)
    arena = MatchPlayer(known, plan, spec, focal)
    pairs = choose_pairs(known, matches, seed, self_play=arena.spec.agents > 1)
    played = arena.play_all(pairs, episodes, lambda done: on_match(done, len(pairs)))
    return Tournament(plan, known, played, len(arena.arrangements[0]), arena.spec.agents)


def _plan(entrants: Sequence[Entrant], settings: Mapping[str, Any], seed: int) -> Plan:
    """The game of the first run with other options, or the game that the settings name."""
    run = next((own.run for own in entrants if own.run is not None), None)
    if "game" in settings or run is None:
        return make_plan({**settings, "learner": "random", "seed": seed})
    own = {name: value for name, value in settings.items() if name != "n_workers"}
    plan = run.changed({"options": {**run.plan.options, **own}, "seed": seed, "learner": "random", "learners": {}})
    return complete(plan.model_copy(update={"n_workers": settings.get("n_workers"), "learner_options": {}}))


@dataclass(frozen=True, repr=False)
class Tournament:
    """Who met whom, and what came out."""

    plan: Plan
    entrants: Sequence[Entrant]
    matches: Sequence[Match]
    focal: int  # places of the first entrant in a match
    places: int

    @property
    def names(self) -> list[str]:
        """The entrants, in alphabetical order."""
        return [own.name for own in self.entrants]

    @property
    def sampled(self) -> bool:
        """Whether only a part of the pairs met."""
        count = len(self.entrants)
        return sum(own.first != own.second for own in self.matches) < count * (count - 1) // 2

    @cached_property
    def returns(self) -> dict[tuple[int, int], Estimate]:
        """Mean return of i against j, with its 95 % interval over episodes; (i, i): among its own."""
        found = {}
        for own in self.matches:
            found[own.first, own.second] = _mean(own.first_returns)
            if own.first != own.second:
                found[own.second, own.first] = _mean(own.second_returns)
            else:
                found[own.first, own.first] = _mean((own.first_returns + own.second_returns) / 2)
        return found

    @cached_property
    def ratings(self) -> list[Estimate]:
        """Elo ratings of the entrants (Bradley and Terry); nan if some cannot be compared."""
        results = [(own.first, own.second, own.wins, own.games) for own in self.matches]
        wins, games = pair_counts(len(self.entrants), results)
        return rate(wins, games) if connected(games) else [Estimate(math.nan)] * len(self.entrants)

    @property
    def focal_scores(self) -> list[float]:
        """Focal per-capita return, as Melting Pot has it: of each entrant's places, mean over its opponents."""
        return [
            _average([own.value for (i, j), own in self.returns.items() if i == focal and j != focal])
            for focal in range(len(self.entrants))
        ]

    def rows(self) -> list[Row]:
        """One row per entrant, the best rating first."""
        rows = [
            {
                "entrant": name, "rating": rating.value, "rating_low": rating.low, "rating_high": rating.high,
                "focal_return": focal,
                "self_play_return": self.returns[i, i].value if (i, i) in self.returns else math.nan,
            }
            for i, (name, rating, focal) in enumerate(zip(self.names, self.ratings, self.focal_scores, strict=True))
        ]  # fmt: skip
        return sorted(rows, key=lambda row: (-row["rating"], row["entrant"]))

    def match_rows(self) -> list[Row]:
        """One row per pair that met, in both directions."""
        rows = []
        for (i, j), estimate in sorted(self.returns.items()):
            own = next(m for m in self.matches if {m.first, m.second} == {i, j})
            share = own.wins / own.games
            rows.append(
                {
                    "entrant": self.names[i], "opponent": self.names[j], "episodes": own.games,
                    "return": estimate.value, "return_low": estimate.low, "return_high": estimate.high,
                    "win_share": share if own.first == i else 1 - share,
                }
            )  # fmt: skip
        return rows

    def result(self) -> Row:
        """Everything, for programs."""
        return {
            "game": self.plan.game,
            "options": self.plan.options,
            "places": self.places,
            "focal_places": self.focal,
            "sampled": self.sampled,
            "entrants": self.rows(),
            "matches": self.match_rows(),
        }

    def __repr__(self) -> str:
        head = ["entrant", "Elo", "95 %", "focal return", "among its own"]
        rows = [
            [
                row["entrant"], f"{row['rating']:.0f}", f"{row['rating_low']:.0f} … {row['rating_high']:.0f}",
                f"{row['focal_return']:.2f}",
                "" if math.isnan(row["self_play_return"]) else f"{row['self_play_return']:.2f}",
            ]
            for row in self.rows()
        ]  # fmt: skip
        return f"{self.headline()}\n{text_table([head, *rows])}"

    def headline(self) -> str:
        """What was played, in one line."""
        met = sum(own.first != own.second for own in self.matches)
        part = " (a random part of them)" if self.sampled else ""
        how = f"{self.focal} of {self.places} places" if self.places > 1 else "alone, on the same episodes"
        count = len(self.entrants)
        return f"{self.plan.game}: {count} entrants, {met} of {count * (count - 1) // 2} pairs{part}; {how}"


def _mean(values: NDArray[np.float64]) -> Estimate:
    return statistics.mean([values])


def _average(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan
