"""CAGE 2 as a game: one defender per world, red and green scripted.

Blue's choice is noted in `act` and the whole step happens in `end`, in the original's order (blue, green,
red). A second group that plays red would note its choice in `act` in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from remuda.core.errors import ConfigError
from remuda.core.game import Game, GameSpec, Group, option_per_world
from remuda.core.kernels import kernel
from remuda.core.options import Options
from remuda.core.rng import Keys, below, fold, uniform
from remuda.games.cage2.network import (
    DETECTED,
    FIRST_DECOY,
    FOOTHOLD,
    GREEN_HOSTS,
    N_ACTIONS,
    N_HOSTS,
    PREFER_TOP,
    REMOVE,
    RESTORE,
)
from remuda.games.cage2.observation import BITS, write_observation
from remuda.games.cage2.picture import draw_picture, draw_text
from remuda.games.cage2.red import (
    AGENTS,
    ENTRIES,
    FIRST_ENTRY,
    MIND,
    clear_mind,
    commit,
    consider,
    pick,
    pick_exploit,
)
from remuda.games.cage2.simulator import (
    EXPLOIT,
    IMPACT,
    NOBODY,
    STATE,
    SUCCEEDED,
    Draws,
    Orders,
    decode,
    start,
    transition,
)
from remuda.games.cage2.workflow import (
    FOLLOWED,
    N_UNITS,
    NO_FIX,
    ORDER_BITS,
    ORDERS,
    UNITS,
    Terms,
    distinct_orders,
    due,
    follow,
    rate,
    read_order,
    write_order,
)

WRAPPERS = ("challenge", "challenge2")
RULES = ("head", "leaderboard")
ORIGINAL_NAMES = {"B_lineAgent": "b_line", "RedMeanderAgent": "meander", "SleepAgent": "sleep"}
HOSTS_LOST, IMPACTS, RESTORES, REMOVES, DECOYS_PLACED = 0, 1, 2, 3, 4
METRICS = ("hosts_lost", "impacts", "restores", "removes", "decoys")
ENV_RETURN, ALIGNMENT, FIXES, COMPLIANCE, FIXES_BY_UNIT = range(len(METRICS), len(METRICS) + 5)
WORKFLOW_METRICS = ("env_return", "alignment", "fixes", "compliance", *(f"fixes_{unit}" for unit in UNITS))
ALL, DISTINCT = "all", "distinct"
# Draws of a turn's key, always the same numbers whatever happens.
TARGET, OTHER_EXPLOIT, TOP_EXPLOIT, NOTICED, SESSION, GREEN_ACTS, GREEN_TARGET = 0, 1, 2, 3, 4, 5, 6


def _our_name(name: Any) -> Any:
    return ORIGINAL_NAMES.get(name, name) if isinstance(name, str) else name


def _order(name: Any) -> Any:
    """An order as its name; a list of types is one, too."""
    if isinstance(name, list) and name and all(word in UNITS for word in name):
        name = ",".join(name)
    if isinstance(name, str) and name not in (ALL, DISTINCT):
        return ",".join(UNITS[unit] for unit in read_order(name))
    return name


RedName = Annotated[Literal["b_line", "meander", "sleep", "mixed"], BeforeValidator(_our_name)]
Wrapper = Literal["challenge", "challenge2"]
RuleSet = Literal["head", "leaderboard"]
Order = Annotated[str, BeforeValidator(_order)]


class Cage2Options(Options):
    """The switches of the game. All but `steps` may be lists, dealt out over the worlds."""

    aliases: ClassVar[dict[str, str]] = {"red_agent": "red"}

    red: RedName | list[RedName] = Field(
        "b_line", description="b_line, meander, sleep, or mixed: each world has one of the three; per world"
    )
    green: bool | list[bool] = Field(False, description="whether green users scan hosts now and then; per world")
    steps: int = Field(100, ge=1, description="steps in an episode; the challenge plays 30, 50 and 100")
    wrapper: Wrapper | list[Wrapper] = Field(
        "challenge", description="how blue sees a scan of a host that got a decoy in the same step; per world"
    )
    rules: RuleSet | list[RuleSet] = Field(
        "head", description="head: the last version; leaderboard: before two late fixes; per world"
    )
    workflow: Annotated[Order | list[Order] | None, BeforeValidator(_order)] = Field(
        None,
        description="an order of repair such as defender,enterprise,op_server,op_host,user, shown to blue, who is "
        "paid for following it; all, or distinct: each world another one; per world",
    )
    foothold_counts: bool = Field(
        True, description="workflow: whether red's session on User0, which nobody can end, counts as one"
    )
    alignment: float = Field(30.0, ge=0, description="workflow: pay for raising the share of fixes that comply by 1")
    compliant_bonus: float = Field(0.0, ge=0, description="workflow: pay for each fix that complies")
    violation_penalty: float = Field(0.0, ge=0, description="workflow: cost of each fix that does not")
    simulator: Literal["own", "cyborg"] = Field(
        "own", description="cyborg: the original, where it is installed; it plays the rules of that version"
    )
    true_state: Literal["never", "episode", "step"] = Field(
        "never", description="cyborg: when to ask for the true state, which is slow; it tells more metrics"
    )

    def check(self) -> None:
        """Options that contradict each other."""
        for name in ("red", "green", "wrapper", "rules", "workflow"):
            if getattr(self, name) == []:
                raise ConfigError(f"{name}=[] is empty: give one value, or one per world")
        if isinstance(self.red, list) and "mixed" in self.red:
            raise ConfigError("red: 'mixed' is already a list of all three; name the red agents one by one")
        if self.simulator == "cyborg" and "leaderboard" in self.rules:
            raise ConfigError(
                "rules=leaderboard is not for simulator=cyborg, which plays the version that is installed: "
                "say rules=head, and install the version you want"
            )
        if isinstance(self.workflow, list) and {ALL, DISTINCT} & {*self.workflow}:
            raise ConfigError(f"workflow: {ALL!r} and {DISTINCT!r} are lists already; name the orders one by one")
        if self.simulator == "cyborg" and self.workflow is not None:
            raise ConfigError("workflow is for simulator=own: asking the original for its true state is too slow")
        if self.simulator == "own" and self.true_state != "never":
            raise ConfigError(f"true_state={self.true_state} is for simulator=cyborg: ours is never asked, it knows")


def red_agents(options: Cage2Options) -> str | list[str]:
    """The red agent of every world, or a list to be dealt out."""
    return list(AGENTS) if options.red == "mixed" else options.red  # type: ignore[return-value]


def workflows(options: Cage2Options) -> list[str]:
    """The orders dealt out over the worlds; none if there is no workflow."""
    if options.workflow is None:
        return []
    if options.workflow == ALL:
        return list(ORDERS)
    if options.workflow == DISTINCT:
        return distinct_orders(options.foothold_counts)
    return options.workflow if isinstance(options.workflow, list) else [options.workflow]


class WorldState(NamedTuple):
    """Where each world stands."""

    keys: Keys  # (worlds,)
    turn: NDArray[np.int64]  # (worlds,)
    over: NDArray[np.bool_]  # (worlds,)
    score: NDArray[np.int64]  # (worlds,): the episode's reward so far, in tenths
    rewards: NDArray[np.float32]  # (worlds, agents)
    truncated: NDArray[np.bool_]  # (worlds, agents)
    metrics: NDArray[np.float32]  # (worlds, agents, metrics)


class Cage2Rules(NamedTuple):
    """The switches, per world."""

    red: NDArray[np.int64]  # (worlds,): a number in AGENTS
    green: NDArray[np.bool_]  # (worlds,)
    wrapper: NDArray[np.int64]  # (worlds,): a number in WRAPPERS
    leaderboard: NDArray[np.bool_]  # (worlds,)
    steps: int
    orders: NDArray[np.int64]  # (worlds, types), or (worlds, 0) without a workflow
    terms: Terms


class Cage2(Game):
    """Worlds of CAGE 2. The true state is in `state`, red's plans are in `mind`."""

    def __init__(self, options: Cage2Options, worlds: Sequence[int]) -> None:
        orders = workflows(options)
        bits, metrics = (BITS + ORDER_BITS, (*METRICS, *WORKFLOW_METRICS)) if orders else (BITS, METRICS)
        blue = Group("blue", 1, (bits,), np.uint8, N_ACTIONS, metrics, low=0, high=1)
        super().__init__(GameSpec("cage2", (blue,), options.steps, options.model_dump()), len(worlds))
        self.rules = Cage2Rules(
            np.array([AGENTS.index(name) for name in option_per_world(red_agents(options), worlds)]),
            np.array(option_per_world(options.green, worlds), np.bool_),
            np.array([WRAPPERS.index(name) for name in option_per_world(options.wrapper, worlds)]),
            np.array([name == "leaderboard" for name in option_per_world(options.rules, worlds)], np.bool_),
            options.steps,
            np.array(
                [read_order(order) if orders else [] for order in option_per_world(orders or [""], worlds)], np.int64
            ),
            Terms(options.foothold_counts, options.alignment, options.compliant_bonus, options.violation_penalty),
        )
        count, signals = len(worlds), self.signals[0]
        self.state = np.zeros(count, STATE)
        self.mind = np.zeros(count, MIND)
        self.followed = np.zeros(count, FOLLOWED)
        self.play = WorldState(
            keys=np.zeros(count, np.uint64),
            turn=np.zeros(count, np.int64),
            over=self.over,
            score=np.zeros(count, np.int64),
            rewards=signals.rewards,
            truncated=signals.truncated,
            metrics=signals.metrics,
        )

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """A clean network with red on User0."""
        self.signals[0].clear(worlds)
        self.followed[worlds] = np.zeros(1, FOLLOWED)
        _reset(self.state, self.mind, self.play, worlds, keys)

    def begin(self) -> None:
        """Nothing changes by itself."""

    def observe(self, group: int, first: int, last: int, out: NDArray[np.uint8]) -> None:
        """Blue's table as bits, then its order of repair."""
        _observe(self.state, self.rules, out)

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Note what blue wants; it happens in `end`, before green and red."""
        _note(self.state, self.over, actions)

    def end(self) -> None:
        """Play the step; the last one truncates."""
        _step(self.state, self.mind, self.followed, self.play, self.rules)

    def render(self, world: int) -> NDArray[np.uint8]:
        """The network: fill is the truth, frame is what blue believes, the mark is what blue saw happen."""
        return draw_picture(self.state[world], self._caption(world))

    def text(self, world: int) -> str:
        """The same as lines of text."""
        return draw_text(self.state[world], self._caption(world))

    def _caption(self, world: int) -> str:
        red = AGENTS[self.rules.red[world]]
        return f"red {red}, turn {self.play.turn[world]} of {self.rules.steps}, total {self.play.score[world] / 10:.1f}"


@kernel
def _reset(state: Any, mind: Any, play: Any, worlds: Any, keys: Any) -> None:
    for i in range(len(worlds)):
        w = worlds[i]
        start(state[w])
        clear_mind(mind[w], FIRST_ENTRY + below(fold(keys[i], 0), 0, ENTRIES))
        play.keys[w] = keys[i]
        play.turn[w] = 0
        play.over[w] = False
        play.score[w] = 0


@kernel
def _observe(state: Any, rules: Any, out: Any) -> None:
    for w in range(out.shape[0]):
        write_observation(state[w], rules.wrapper[w], out[w, 0])
        if rules.orders.shape[1]:
            write_order(rules.orders[w], out[w, 0, BITS:])


@kernel
def _note(state: Any, over: Any, actions: Any) -> None:
    for w in range(actions.shape[0]):
        if not over[w]:
            state[w].blue = actions[w, 0]


@kernel
def _step(state: Any, mind: Any, followed: Any, play: Any, rules: Any) -> None:
    for w in range(play.turn.shape[0]):
        if play.over[w]:
            continue
        s = state[w]
        key = fold(play.keys[w], play.turn[w] + 1)
        orders, chance = _draw(s, mind[w], rules.red[w], rules.green[w], key)
        first = due(s, rules.orders[w], rules.terms) if rules.orders.shape[1] else N_UNITS
        transition(s, orders, chance, rules.leaderboard[w])
        play.score[w] -= s.cost
        reward = -s.cost / 10.0
        _count(s, play.metrics[w, 0])
        if rules.orders.shape[1]:
            reward += follow(followed[w], np.int64(s.blue), first, rules.terms)
            _count_following(followed[w], play.score[w], rules.terms, play.metrics[w, 0])
        play.rewards[w, 0] += reward
        play.turn[w] += 1
        if play.turn[w] == rules.steps:
            play.over[w] = True
            play.truncated[w, 0] = True


@kernel
def _draw(s: Any, m: Any, agent: int, green_acts: bool, key: Any) -> Any:
    """What everybody does this turn, and how the dice fall."""
    green = NOBODY
    if green_acts and uniform(key, GREEN_ACTS) < 0.5:
        green = GREEN_HOSTS[below(key, GREEN_TARGET, len(GREEN_HOSTS))]
    action, candidates = consider(agent, m, s)
    target = pick(candidates, uniform(key, TARGET))
    commit(agent, m, action, target)
    exploit = NOBODY
    if action == EXPLOIT:
        top = uniform(key, TOP_EXPLOIT) < PREFER_TOP
        exploit = pick_exploit(s.known_ports[target], uniform(key, OTHER_EXPLOIT), top)
    orders = Orders(np.int64(s.blue), green, action, target)
    return orders, Draws(exploit, uniform(key, NOTICED) < DETECTED, uniform(key, SESSION))


@kernel
def _count(s: Any, metrics: Any) -> None:
    """Host-turns lost (red is root, User0 apart), impacts that succeeded, and what blue did."""
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
def _count_following(f: Any, score: Any, terms: Any, metrics: Any) -> None:
    """The environment's own return, what following the order paid, and how well it was followed."""
    broken = f.fixes - f.compliant
    paid = terms.compliant_bonus * f.compliant - terms.violation_penalty * broken
    metrics[ENV_RETURN] = score / 10.0
    metrics[ALIGNMENT] = terms.alignment * rate(f) + paid
    metrics[FIXES] = f.fixes
    metrics[COMPLIANCE] = rate(f) if f.fixes else NO_FIX
    for unit in range(N_UNITS):
        metrics[FIXES_BY_UNIT + unit] = f.by_unit[unit]
