"""Kernels for the steps of a turn: draw, move, compose what views show, count down, pay."""

from __future__ import annotations

from typing import Any

from remuda.core.kernels import kernel
from remuda.core.rng import below, fold
from remuda.games.grid.arena_state import RETURN, REWARD_TIMES, REWARD_TURNS, TURNS_AWAY
from remuda.games.grid.facing import STAY, move_at_once, move_in_order, shuffle
from remuda.games.grid.placing import lift_agents, put_agents


@kernel(inline=True, allocates=False)
def open_turn(state: Any, w: int, scratch: Any) -> None:
    """Begin a turn: nobody has gained anything or was hit yet, and agents that cannot act stay where they are."""
    for i in range(len(scratch.absent)):
        state.gain[w, i] = 0.0
        scratch.hit[i] = False
        scratch.absent[i] = state.away[w, i] > 0
        if state.away[w, i] > 0 or state.frozen[w, i] > 0:
            state.actions[w, i] = STAY


@kernel
def load_draws(draws: Any, w: int, scratch: Any) -> None:
    """Use recorded draws in this turn."""
    scratch.priority[:] = draws.priority[w]
    scratch.order[:] = draws.order[w]
    scratch.facing[:] = draws.facing[w]
    scratch.grow[:] = draws.grow[w]
    scratch.picked[:] = draws.picked[w]
    scratch.luck[0] = draws.luck[w]


@kernel(inline=True, allocates=False)
def draw_moves(key: Any, scratch: Any) -> None:
    """Draw who wins contests for a cell. The spawn cells are drawn when they are needed."""
    shuffle(fold(key, 1), scratch.priority)
    scratch.order[0] = -1


@kernel(allocates=False)
def draw_spawns(key: Any, facings: int, scratch: Any) -> None:
    """Draw in which order spawn cells are taken, and where agents face that come back, if that is not known yet."""
    if scratch.order[0] >= 0:
        return
    shuffle(fold(key, 2), scratch.order)
    facing_key = fold(key, 3)
    for i in range(len(scratch.facing)):
        scratch.facing[i] = below(facing_key, i, facings)


@kernel(inline=True, allocates=False)
def move_agents(state: Any, w: int, in_order: bool, scratch: Any) -> None:
    """Move the agents to the cells that they want, all at once or in a random order."""
    lift_agents(state, w)
    if in_order:
        move_in_order(state.places[w], scratch.wanted, scratch.absent, scratch.priority)
    else:
        move_at_once(state.places[w], scratch.wanted, scratch.absent, scratch.priority, scratch.moving)
    put_agents(state, w)


@kernel(inline=True, allocates=False)
def compose(state: Any, w: int, first_agent: int, margin: int) -> None:
    """Write the code of every cell: the agent, else the ground, else the mark.

    One loop over the map with its margin: the compiler does many cells at once.
    """
    ground, marks = state.padded_ground[w].reshape(-1), state.padded_marks[w].reshape(-1)
    codes = state.codes[w]
    cells = codes.reshape(-1)
    for k in range(cells.size):
        cells[k] = ground[k] if ground[k] else marks[k]
    for i in range(state.places.shape[1]):
        if state.away[w, i] == 0:
            r, c = state.places[w, i, 0], state.places[w, i, 1]
            codes[r + margin, c + margin] = first_agent + i


@kernel(inline=True, allocates=False)
def clear_marks(state: Any, w: int) -> None:
    """Remove the marks of the last turn."""
    marks = state.padded_marks[w].reshape(-1)
    for k in range(marks.size):
        marks[k] = 0


@kernel(inline=True, allocates=False)
def count_down(state: Any, w: int) -> None:
    """One turn less to wait for beams, and for frozen agents."""
    for i in range(state.places.shape[1]):
        for beam in range(state.cooldown.shape[2]):
            state.cooldown[w, i, beam] = max(0, state.cooldown[w, i, beam] - 1)
        if state.frozen[w, i] > 0:
            state.frozen[w, i] -= 1
            state.alive[w, i] = state.frozen[w, i] == 0 and state.away[w, i] == 0


@kernel(inline=True, allocates=False)
def finish_turn(state: Any, w: int, timing: Any) -> None:
    """Pay the rewards of the turn, count it, and truncate every agent that is not away after the last one."""
    last = state.turn[w] + 1 == timing.turns
    for i in range(state.places.shape[1]):
        gain = state.gain[w, i]
        if timing.pays_last or not last:
            state.rewards[w, i] += gain * timing.scale
        state.tally[w, i, RETURN] += gain
        if gain > 0:
            state.tally[w, i, REWARD_TIMES] += state.turn[w]
            state.tally[w, i, REWARD_TURNS] += 1
        if state.away[w, i] > 0 or state.frozen[w, i] > 0:
            state.tally[w, i, TURNS_AWAY] += 1
    state.turn[w] += 1
    if last:
        state.over[w] = True
        for i in range(state.places.shape[1]):
            state.truncated[w, i] = state.alive[w, i]
        report_social_metrics(state.tally[w], state.turn[w], state.metrics[w])


@kernel(allocates=False)
def report_social_metrics(tally: Any, turns: int, metrics: Any) -> None:
    """Write SOCIAL_METRICS into the last columns."""
    agents, columns = metrics.shape
    total, differences, times, rewarded, away = 0.0, 0.0, 0.0, 0, 0.0
    for i in range(agents):
        total += tally[i, RETURN]
        away += tally[i, TURNS_AWAY]
        if tally[i, REWARD_TURNS] > 0:
            times += tally[i, REWARD_TIMES] / tally[i, REWARD_TURNS]
            rewarded += 1
        for j in range(agents):
            differences += abs(tally[i, RETURN] - tally[j, RETURN])
    equality = 1.0 if differences == 0 else 0.0
    if total > 0:
        equality = 1.0 - differences / (2 * agents * total)
    metrics[:, columns - 4] = total
    metrics[:, columns - 3] = equality
    metrics[:, columns - 2] = times / max(rewarded, 1)
    metrics[:, columns - 1] = agents - away / turns
