"""CAGE 2 as a game: one defender (blue) per world; green is scripted, and red too unless players=both.

`act` stores blue's action. `end` plays the whole step, in the original's order: blue, green, red. Blue's memory, if an
option needs one, is updated from the bits that blue then sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.game import Game, GameSpec, Group, option_per_world
from remuda.core.kernels import kernel
from remuda.core.rng import Keys, below, fold
from remuda.core.scene import Scene
from remuda.games.cage2.attacker import (
    N_RED_ACTIONS,
    RED_FEATURES,
    RED_MEMORY,
    forget_red,
    remember_red,
    write_red_features,
    write_red_mask,
)
from remuda.games.cage2.belief import HYPOTHESES_BYTES, Belief, conclude, suppose, write_belief, write_hypotheses
from remuda.games.cage2.compact import N_COMPACT
from remuda.games.cage2.memory import FEATURES, MEMORY, forget, full_action, remember, write_features, write_mask
from remuda.games.cage2.network import (
    FIRST_DECOY,
    FOOTHOLD,
    N_ACTIONS,
    N_HOSTS,
    REMOVE,
    RESTORE,
)
from remuda.games.cage2.observation import BITS, write_observation
from remuda.games.cage2.options import Cage2Options, red_agents, workflow_orders
from remuda.games.cage2.picture import draw_picture, draw_text
from remuda.games.cage2.red import (
    AGENTS,
    ENTRIES,
    FIRST_ENTRY,
    LEARNED,
    RED_STATE,
    reset_red,
)
from remuda.games.cage2.scene import draw_scene
from remuda.games.cage2.simulator import transition
from remuda.games.cage2.state import IMPACT, STATE, SUCCEEDED, decode, start
from remuda.games.cage2.truth import TRUTH_FEATURES, write_truth
from remuda.games.cage2.turn import choose_actions
from remuda.games.cage2.useful import mask_useless, mask_useless_truly
from remuda.games.cage2.workflow import (
    COMPLIANCE_WITHOUT_FIX,
    FIX_COUNTS,
    HOST_TYPES,
    N_HOST_TYPES,
    ORDER_BITS,
    WorkflowRules,
    compliance,
    count_fix,
    first_held_type,
    read_order,
    write_order,
)

WRAPPERS = ("challenge", "challenge2")
OBSERVATIONS = {
    "bits": BITS,
    "memory": FEATURES,
    "belief": TRUTH_FEATURES,
    "hypotheses": HYPOTHESES_BYTES,
    "truth": TRUTH_FEATURES,
}  # how many numbers each has
LARGEST_BYTE = {"bits": 1, "hypotheses": 255}  # of the observations whose numbers are bytes
BLUE, RED = 0, 1  # groups
ENTRY_DRAW, PLAYER_DRAW = 0, 1  # draws of an episode's key: B_line's entry, and which red agent plays
SEES_BITS, SEES_MEMORY, SEES_BELIEF, SEES_HYPOTHESES, SEES_TRUTH = range(len(OBSERVATIONS))
ALL_RED = (*AGENTS, "learned")
HOSTS_LOST, IMPACTS, RESTORES, REMOVES, DECOYS_PLACED = 0, 1, 2, 3, 4
METRICS = ("hosts_lost", "impacts", "restores", "removes", "decoys")
ENV_RETURN, ALIGNMENT, FIXES, COMPLIANCE, FIXES_BY_TYPE = range(len(METRICS), len(METRICS) + 5)
WORKFLOW_METRICS = (
    "env_return",
    "alignment",
    "fixes",
    "compliance",
    *(f"fixes_{host_type}" for host_type in HOST_TYPES),
)


class EpisodeState(NamedTuple):
    """The arrays of all worlds that a step updates, apart from the states of the network and of red."""

    keys: Keys  # (worlds,)
    turn: NDArray[np.int64]  # (worlds,)
    over: NDArray[np.bool_]  # (worlds,)
    score: NDArray[np.int64]  # (worlds,): the episode's reward so far, in tenths
    rewards: NDArray[np.float32]  # (worlds, agents)
    ended: NDArray[np.bool_]  # (worlds, agents): terminated or truncated, whichever the last step is
    metrics: NDArray[np.float32]  # (worlds, agents, metrics)
    bits: NDArray[np.uint8]  # (worlds, bits): what blue sees after the step, for its memory


class Cage2Rules(NamedTuple):
    """The options as arrays, per world where they may differ."""

    red: NDArray[np.int64]  # (worlds,): a number in AGENTS, or LEARNED
    green: NDArray[np.bool_]  # (worlds,)
    wrapper: NDArray[np.int64]  # (worlds,): a number in WRAPPERS
    leaderboard: NDArray[np.bool_]  # (worlds,)
    steps: int
    orders: NDArray[np.int64]  # (worlds, types), or (worlds, 0) without a workflow
    workflow: WorkflowRules
    observation: int  # a number in OBSERVATIONS
    compact: bool  # actions are those of compact.py
    useful: bool  # and those without effect are masked
    remembers: bool  # blue has a memory
    believes: bool  # and a belief


class Cage2(Game):
    """Worlds of CAGE 2. `state` has the true state of each world, `red_state` what its red script remembers."""

    def __init__(self, options: Cage2Options, worlds: Sequence[int]) -> None:
        orders = workflow_orders(options)
        blue = blue_group(options, (*METRICS, *WORKFLOW_METRICS) if orders else METRICS, (TRUTH_FEATURES,))
        red = Group(
            "red", options.reds, (RED_FEATURES,), np.float32, N_RED_ACTIONS, low=0, high=1, masked=True,
            state_shape=(TRUTH_FEATURES,),
        )  # fmt: skip
        groups = (blue, red) if options.players == "both" else (blue,)
        super().__init__(GameSpec("cage2", groups, options.steps, options.model_dump()), len(worlds))
        self.rules = Cage2Rules(
            np.array([ALL_RED.index(name) for name in option_per_world(red_agents(options), worlds)]),
            np.array(option_per_world(options.green, worlds), np.bool_),
            np.array([WRAPPERS.index(name) for name in option_per_world(options.wrapper, worlds)]),
            np.array([name == "leaderboard" for name in option_per_world(options.rules, worlds)], np.bool_),
            options.steps,
            np.array(
                [read_order(order) if orders else [] for order in option_per_world(orders or [""], worlds)], np.int64
            ),
            WorkflowRules(
                options.foothold_counts, options.alignment, options.compliant_bonus, options.violation_penalty
            ),
            list(OBSERVATIONS).index(options.observation),
            blue.masked,
            options.actions == "useful",
            options.needs_memory,
            options.believes,
        )
        count, signals = len(worlds), self.signals[0]
        self.state = np.zeros(count, STATE)
        self.red_state = np.zeros(count, RED_STATE)
        self.memory = np.zeros(count, MEMORY)
        self.belief = Belief.of(count if options.believes else 0)
        self.red_memory = np.zeros(count, RED_MEMORY)
        self.red_actions = np.zeros(count, np.int64)  # of the red player, in worlds that have one
        self.fix_counts = np.zeros(count, FIX_COUNTS)
        self._ended = [s.terminated if options.horizon == "terminal" else s.truncated for s in self.signals]
        self.episode = EpisodeState(
            keys=np.zeros(count, np.uint64),
            turn=np.zeros(count, np.int64),
            over=self.over,
            score=np.zeros(count, np.int64),
            rewards=signals.rewards,
            ended=self._ended[BLUE],
            metrics=signals.metrics,
            bits=np.zeros((count, BITS), np.uint8),
        )

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Start with a clean network and red on User0."""
        for signals in self.signals:
            signals.clear(worlds)
        if self.spec.groups[1:]:
            players = self.signals[RED].alive
            players[worlds] = False
            _draw_players(self.red_memory, self.rules, worlds, keys, players)
        self.fix_counts[worlds] = np.zeros(1, FIX_COUNTS)
        _reset(self.state, self.red_state, self.memory, self.belief, self.episode, worlds, keys)

    def begin(self) -> None:
        """Do nothing: all changes happen in `end`."""

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Write blue's table as bits, its memory or the truth, and after it the order of repair if there is one.

        Red sees what it knows.
        """
        if group == RED:
            _observe_red(self.state, self.red_memory, out)
            return
        _observe(self.state, self.red_state, self.memory, self.belief, self.rules, out)

    def observe_state(self, group: int, out: NDArray[np.float32]) -> None:
        """Write the true state, for critics: they are needed in training only."""
        _observe_truth(self.state, self.red_state, self.episode.turn, self.rules, out)

    def mask(self, group: int, first: int, last: int, out: NDArray[np.bool_]) -> None:
        """Forbid blue decoys where none is left, or all that has no effect; and red what it has not learned of."""
        if group == RED:
            _mask_red(self.state, out)
        else:
            _mask(self.state, self.memory, self.belief, self.rules, out)

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Store the actions; `end` carries them out."""
        if group == RED:
            _store_red_action(self.red_actions, self.signals[RED].alive[:, first:last], self.over, actions)
            return
        _store_action(self.state, self.memory, self.over, self.rules, actions)

    def end(self) -> None:
        """Play the step; the last one ends the episode."""
        if self.spec.groups[1:]:
            self._play_red()
        else:
            self._step()

    def _step(self) -> None:
        _step(
            (self.state, self.red_state, self.memory, self.belief, self.fix_counts),
            self.episode,
            self.rules,
            self.red_actions,
        )

    def _play_red(self) -> None:
        """Play the step in which red may be a player: it gains what blue loses."""
        playing, before = ~self.over, self.episode.score.copy()
        self._step()
        red = self.signals[RED]
        gained = ((before - self.episode.score) / 10.0).astype(np.float32)
        red.rewards += np.where(red.alive & playing[:, None], gained[:, None], np.float32(0.0))
        self._ended[RED] |= red.alive & self._ended[BLUE] & playing[:, None]
        _remember_red(self.state, self.red_memory, playing)

    def scene(self, world: int) -> Scene:
        """The network: fill shows the truth, frame what blue believes, marks what happened."""
        return draw_scene(self.state[world], self._caption(world))

    def render(self, world: int) -> NDArray[np.uint8]:
        """The network as a picture: fill shows the truth, frame what blue believes, the mark what blue saw happen."""
        return draw_picture(self.state[world], self._caption(world))

    def text(self, world: int) -> str:
        """The network as text."""
        return draw_text(self.state[world], self._caption(world))

    def _caption(self, world: int) -> str:
        red = ALL_RED[self.rules.red[world]]
        turn, total = self.episode.turn[world], self.episode.score[world] / 10
        return f"red {red}, turn {turn} of {self.rules.steps}, total {total:.1f}"


def blue_group(options: Cage2Options, metrics: tuple[str, ...], state_shape: tuple[int, ...] | None = None) -> Group:
    """What blue sees and may do, in our simulator and in the original, which shows critics no state."""
    size = OBSERVATIONS[options.observation] + (ORDER_BITS if options.workflow else 0)
    high = LARGEST_BYTE.get(options.observation, 1)
    dtype = np.uint8 if options.observation in LARGEST_BYTE else np.float32
    compact = options.actions != "full"
    actions = N_COMPACT if compact else N_ACTIONS
    return Group(
        "blue", 1, (size,), dtype, actions, metrics, low=0, high=high, masked=compact, state_shape=state_shape
    )  # fmt: skip


@kernel
def _reset(state: Any, red_state: Any, memory: Any, belief: Any, episode: Any, worlds: Any, keys: Any) -> None:
    for i in range(len(worlds)):
        w = worlds[i]
        start(state[w])
        forget(memory[w])
        if len(belief.counts):
            belief.counts[w] = suppose(belief.hypotheses[w])
        reset_red(red_state[w], FIRST_ENTRY + below(fold(keys[i], 0), ENTRY_DRAW, ENTRIES))
        episode.keys[w] = keys[i]
        episode.turn[w] = 0
        episode.over[w] = False
        episode.score[w] = 0


@kernel
def _draw_players(red_memory: Any, rules: Any, worlds: Any, keys: Any, players: Any) -> None:
    """Draw which red agent plays the episode in each world that has red players."""
    for i in range(len(worlds)):
        w = worlds[i]
        forget_red(red_memory[w])
        if rules.red[w] == LEARNED:
            players[w, below(fold(keys[i], 0), PLAYER_DRAW, players.shape[1])] = True


@kernel
def _observe_red(state: Any, red_memory: Any, out: Any) -> None:
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            write_red_features(red_memory[w], state[w], out[w, a])


@kernel
def _mask_red(state: Any, out: Any) -> None:
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            write_red_mask(state[w], out[w, a])


@kernel
def _store_red_action(red_actions: Any, alive: Any, over: Any, actions: Any) -> None:
    for w in range(actions.shape[0]):
        for a in range(actions.shape[1]):
            if alive[w, a] and not over[w]:
                red_actions[w] = actions[w, a]


@kernel
def _remember_red(state: Any, red_memory: Any, playing: Any) -> None:
    for w in range(len(state)):
        if playing[w]:
            remember_red(red_memory[w], state[w])


@kernel
def _observe(state: Any, red_state: Any, memory: Any, belief: Any, rules: Any, out: Any) -> None:
    for w in range(out.shape[0]):
        if rules.observation == SEES_BITS:
            write_observation(state[w], rules.wrapper[w], out[w, 0])
        elif rules.observation == SEES_MEMORY:
            write_features(memory[w], out[w, 0])
        elif rules.observation == SEES_BELIEF:
            write_belief(belief.hypotheses[w], belief.counts[w], memory[w].turn, belief.written, out[w, 0])
        elif rules.observation == SEES_HYPOTHESES:
            write_hypotheses(belief.words[w], belief.counts[w], memory[w].turn, rules.leaderboard[w], out[w, 0])
        else:
            write_truth(state[w], red_state[w], rules.red[w], memory[w].turn, out[w, 0])
        if rules.orders.shape[1]:
            write_order(rules.orders[w], out[w, 0, out.shape[2] - ORDER_BITS :])


@kernel
def _observe_truth(state: Any, red_state: Any, turn: Any, rules: Any, out: Any) -> None:
    for w in range(out.shape[0]):
        write_truth(state[w], red_state[w], rules.red[w], turn[w], out[w])


@kernel
def _mask(state: Any, memory: Any, belief: Any, rules: Any, out: Any) -> None:
    for w in range(out.shape[0]):
        write_mask(memory[w], out[w, 0])
        if rules.useful and rules.observation == SEES_TRUTH:
            mask_useless_truly(state[w], rules.leaderboard[w], out[w, 0])
        elif rules.useful:
            mask_useless(belief.hypotheses[w], belief.counts[w], rules.leaderboard[w], out[w, 0])


@kernel
def _store_action(state: Any, memory: Any, over: Any, rules: Any, actions: Any) -> None:
    for w in range(actions.shape[0]):
        if not over[w]:
            state[w].blue = full_action(memory[w], actions[w, 0]) if rules.compact else actions[w, 0]


@kernel
def _step(worlds: Any, episode: Any, rules: Any, red: Any) -> None:
    state, red_state, memory, belief, fix_counts = worlds
    for w in range(episode.turn.shape[0]):
        if episode.over[w]:
            continue
        s = state[w]
        key = fold(episode.keys[w], episode.turn[w] + 1)
        actions, draws = choose_actions(s, red_state[w], rules.red[w], red[w], rules.green[w], key)
        wanted = first_held_type(s, rules.orders[w], rules.workflow) if rules.orders.shape[1] else N_HOST_TYPES
        transition(s, actions, draws, rules.leaderboard[w])
        episode.score[w] -= s.cost
        reward = -s.cost / 10.0
        _count(s, episode.metrics[w, 0])
        if rules.orders.shape[1]:
            reward += count_fix(fix_counts[w], np.int64(s.blue), wanted, rules.workflow)
            _count_compliance(fix_counts[w], episode.score[w], rules.workflow, episode.metrics[w, 0])
        episode.rewards[w, 0] += reward
        episode.turn[w] += 1
        if rules.remembers:
            write_observation(s, rules.wrapper[w], episode.bits[w])
            remember(memory[w], episode.bits[w], np.int64(s.blue))
        if rules.believes:
            conclude(belief, w, episode.bits[w], np.int64(s.blue), rules.wrapper[w], rules.leaderboard[w])
        if episode.turn[w] == rules.steps:
            episode.over[w] = True
            episode.ended[w, 0] = True


@kernel
def _count(s: Any, metrics: Any) -> None:
    """Count hosts on which red is root (without User0), impacts that succeeded, and what blue did."""
    for host in range(N_HOSTS):
        if host != FOOTHOLD and s.root[host]:
            metrics[HOSTS_LOST] += 1
    if s.red == IMPACT and s.red_success == SUCCEEDED:
        metrics[IMPACTS] += 1
    verb, _ = decode(np.int64(s.blue))
    if verb == RESTORE:
        metrics[RESTORES] += 1
    elif verb == REMOVE:
        metrics[REMOVES] += 1
    elif verb >= FIRST_DECOY and s.blue_success == SUCCEEDED:
        metrics[DECOYS_PLACED] += 1


@kernel
def _count_compliance(counts: Any, score: Any, workflow: Any, metrics: Any) -> None:
    """The return without the pay for fixes, that pay, and how many fixes complied."""
    violations = counts.fixes - counts.compliant
    paid = workflow.compliant_bonus * counts.compliant - workflow.violation_penalty * violations
    metrics[ENV_RETURN] = score / 10.0
    metrics[ALIGNMENT] = workflow.alignment * compliance(counts) + paid
    metrics[FIXES] = counts.fixes
    metrics[COMPLIANCE] = compliance(counts) if counts.fixes else COMPLIANCE_WITHOUT_FIX
    for host_type in range(N_HOST_TYPES):
        metrics[FIXES_BY_TYPE + host_type] = counts.by_type[host_type]
