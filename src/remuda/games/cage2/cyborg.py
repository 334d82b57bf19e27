"""CAGE 2 in the original simulator, CybORG 2.1, if it is installed: `cage2 simulator=cyborg`.

Observations, actions and options are the same as in our simulator, so a policy trained in ours can be evaluated there.
Blue's memory, belief and compact actions are the same code. CybORG draws from Python's global `random`; each world
keeps its own state of it, seeded from its key. Which rules the installed version plays is found out, and must be what
is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.adapters.inbound.global_random_state import GlobalRandomState
from remuda.adapters.inbound.worlds import SimulatorGame, World
from remuda.core.errors import ConfigError, first_line
from remuda.core.game import Game, GameSpec, option_per_world
from remuda.games.cage2.belief import Belief, conclude, suppose, write_belief, write_hypotheses
from remuda.games.cage2.compact import N_COMPACT
from remuda.games.cage2.game import LARGEST_BYTE, METRICS, OBSERVATIONS, WRAPPERS, blue_group
from remuda.games.cage2.memory import MEMORY, forget, full_action, remember, write_features, write_mask
from remuda.games.cage2.network import FOOTHOLD, N_ACTIONS, NAMES
from remuda.games.cage2.observation import BITS
from remuda.games.cage2.options import ORIGINAL_NAMES, Cage2Options, red_agents
from remuda.games.cage2.useful import mask_useless

SOURCE = (
    "git clone https://github.com/cage-challenge/cage-challenge-2, for rules=leaderboard also "
    "git -C cage-challenge-2 checkout 606813b, then pip install -e cage-challenge-2/CybORG "
    "(the package of that name in the registry is something else)"
)
TRUE_STATE_METRICS = {"never": (), "episode": ("hosts_held",), "step": ("hosts_held", "hosts_entered")}
"""Metrics that need the true state, by the option `true_state`. hosts_held: hosts except User0 on which red has a
session when the episode ends. hosts_entered: hosts except User0 on which it had one at the end of any step."""
LEADERBOARD_COMMIT = "606813b"
"""Of cage-challenge-2: the version with which the published leaderboard was made."""
BLUE, RED, GREEN = "Blue", "Red", "Green"


class CyborgVariant(NamedTuple):
    """The options of one world."""

    red: str
    green: bool
    wrapper: str
    steps: int
    true_state: str
    observation: str  # what blue sees
    believes: bool  # and has a belief, which that shows or is computed from
    leaderboard: bool  # the rules, which a belief needs to know
    compact: bool  # and has the compact actions
    useful: bool  # of which those without effect are masked
    terminal: bool  # the last step is the end


def build(options: Cage2Options, worlds: Sequence[int]) -> Game:
    """Worlds with these numbers, each with its own CybORG."""
    _library()
    _check_rules(options)
    variants = zip(
        option_per_world(red_agents(options), worlds),
        option_per_world(options.green, worlds),
        option_per_world(options.wrapper, worlds),
        strict=True,
    )
    blue = blue_group(options, (*METRICS, *TRUE_STATE_METRICS[options.true_state]))
    spec = GameSpec("cage2", (blue,), options.steps, options.model_dump())
    compact, useful = options.actions != "full", options.actions == "useful"
    terminal = options.horizon == "terminal"
    leaderboard = installed_rules() == "leaderboard"
    return SimulatorGame(
        spec,
        [
            CyborgWorld(
                CyborgVariant(
                    *each,
                    options.steps,
                    options.true_state,
                    options.observation,
                    options.believes,
                    leaderboard,
                    compact,
                    useful,
                    terminal,
                )
            )
            for each in variants
        ],
    )


def installed_rules() -> str:
    """The rules that the installed CybORG plays, "head" or "leaderboard", by the two fixes that separate them."""
    try:
        session, enums = (import_module(f"CybORG.{name}") for name in ("Simulator.Session", "Shared.Enums"))
        fixes = {
            any(hasattr(kind, "clearports") for kind in vars(session).values()),
            str(enums.ProcessVersion.parse_string("another version")) == "another version",
        }
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"simulator=cyborg needs CybORG 2.1 ({first_line(error)}): {SOURCE}") from error
    if len(fixes) > 1:
        raise ConfigError(
            "simulator=cyborg: the CybORG that is installed has one of two late fixes, which is neither rules=head nor "
            f"rules=leaderboard; take the last version, or commit {LEADERBOARD_COMMIT}"
        )
    return "head" if fixes == {True} else "leaderboard"


def _check_rules(options: Cage2Options) -> None:
    installed = installed_rules()
    asked = {*options.rules} if isinstance(options.rules, list) else {options.rules}
    if asked != {installed}:
        other = f"commit {LEADERBOARD_COMMIT}" if installed == "head" else "the last version"
        raise ConfigError(
            f"rules={' and '.join(sorted(asked))}: the CybORG that is installed plays rules={installed}; say so, or "
            f"check out {other} of it"
        )


class CyborgWorld(World):
    """One CybORG, created when it is first played and then reset. `true_state` is the true state that was read last."""

    def __init__(self, variant: CyborgVariant) -> None:
        super().__init__(agents=1)
        self.true_state: dict[str, Any] = {}
        self._variant = variant
        self._random_state = GlobalRandomState()
        self._cyborg: Any = None
        self._blue: Any = None  # the same simulator, wrapped for blue
        self._obs: Any = None
        self._turn = 0
        self._entered: set[str] = set()
        self._memory = np.zeros(1, MEMORY)
        self._belief = Belief.of(1) if variant.believes else None
        dtype = np.uint8 if variant.observation in LARGEST_BYTE else np.float32
        self._features = np.zeros(OBSERVATIONS[variant.observation], dtype)
        self._mask = np.ones(N_COMPACT, np.bool_)

    def reset(self, seed: int) -> None:
        """Begin an episode of the same simulator with a new seed."""
        if self._blue is None:
            with self._random_state.installed():
                self._cyborg, self._blue = _make(self._variant)
        self._random_state.seed(seed)
        with self._random_state.installed():
            self._obs = self._blue.reset(BLUE).observation
        self._check_shape()
        forget(self._memory[0])
        if self._belief is not None:
            self._belief.counts[0] = suppose(self._belief.hypotheses[0])
        self._turn = 0
        self._entered = set()
        self.true_state = {}
        self.metrics = dict.fromkeys((*METRICS, *TRUE_STATE_METRICS[self._variant.true_state]), 0.0)
        self.alive[:] = True
        self.over = False

    def observe(self, agent: int) -> NDArray[Any]:
        """Blue's table as bits, as the wrapper returned it last, or what blue makes of all of them."""
        bits: NDArray[Any] = self._obs
        belief, rules = self._belief, self._variant.leaderboard
        if belief is not None and self._variant.observation == "hypotheses":
            write_hypotheses(belief.words[0], belief.counts[0], self._turn, rules, self._features)
        elif belief is not None:
            write_belief(belief.hypotheses[0], belief.counts[0], self._turn, belief.written, self._features)
        elif self._variant.observation == "memory":
            write_features(self._memory[0], self._features)
        else:
            return bits
        return self._features

    def mask(self, agent: int) -> NDArray[np.bool_]:
        """Forbid decoys where none is left, or all that has no effect."""
        write_mask(self._memory[0], self._mask)
        if self._variant.useful and self._belief is not None:
            mask_useless(self._belief.hypotheses[0], self._belief.counts[0], self._variant.leaderboard, self._mask)
        return self._mask

    def act(self, agent: int, action: int) -> None:
        """Play a step of blue, green and red."""
        if self._variant.compact:
            action = int(full_action(self._memory[0], action))
        with self._random_state.installed():
            result = self._blue.step(BLUE, action)
        self._obs = result.observation
        remember(self._memory[0], self._obs, action)
        if self._belief is not None:
            wrapper = WRAPPERS.index(self._variant.wrapper)
            conclude(self._belief, 0, self._obs, action, wrapper, self._variant.leaderboard)
        self.rewards[0] += result.reward
        self._turn += 1
        if self._variant.terminal and self._turn == self._variant.steps:
            self.terminated[:] = True
            self.over = True
        self._count()
        asked = self._variant.true_state
        if asked == "step" or (asked == "episode" and self._turn == self._variant.steps):
            self._read_true_state()

    def _count(self) -> None:
        """Count metrics from what the simulator computes in every step anyway; its reward shows where red is root."""
        lost = sum(score.confidentiality < 0 for score in self._cyborg.get_reward_breakdown(BLUE).values())
        self.metrics["hosts_lost"] += lost
        blue, red = (type(self._cyborg.get_last_action(who)).__name__ for who in (BLUE, RED))
        self.metrics["impacts"] += red == "Impact" and self._succeeded(RED)
        self.metrics["restores"] += blue == "Restore"
        self.metrics["removes"] += blue == "Remove"
        self.metrics["decoys"] += blue.startswith("Decoy") and self._succeeded(BLUE)

    def _succeeded(self, who: str) -> bool:
        return str(self._cyborg.get_observation(who)["success"]) == "TRUE"

    def _read_true_state(self) -> None:
        """Read the true state, and count the hosts on which red has a session."""
        self.true_state = self._cyborg.get_agent_state("True")
        held = {
            host
            for host, info in self.true_state.items()
            if host not in ("success", NAMES[FOOTHOLD])
            and any(session["Agent"] == RED for session in info.get("Sessions", ()))
        }
        self._entered |= held
        self.metrics["hosts_held"] = len(held)
        self.metrics["hosts_entered"] = len(self._entered)

    def _check_shape(self) -> None:
        bits, actions = len(self._obs), len(self._blue.possible_actions)
        if (bits, actions) != (BITS, N_ACTIONS):
            raise ConfigError(
                f"simulator=cyborg: the CybORG that is installed shows blue {bits} bits and {actions} actions instead "
                f"of {BITS} and {N_ACTIONS}; install the original: {SOURCE}"
            )


class CyborgLibrary(NamedTuple):
    """The parts of CybORG that we use."""

    cyborg: Any
    agents: Any  # a module
    table: Any
    actions: Any
    scenario: Path


def _library() -> CyborgLibrary:
    """CybORG as it is installed; raises ConfigError that says where to get it."""
    try:
        package, agents, wrappers = (import_module(f"CybORG{part}") for part in ("", ".Agents", ".Agents.Wrappers"))
        scenario = Path(str(package.__file__)).parent / "Shared" / "Scenarios" / "Scenario2.yaml"
        if not scenario.is_file():
            raise ImportError("it has no Scenario2")
        return CyborgLibrary(package.CybORG, agents, wrappers.BlueTableWrapper, wrappers.EnumActionWrapper, scenario)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"simulator=cyborg needs CybORG 2.1 ({first_line(error)}): {SOURCE}") from error


def _make(variant: CyborgVariant) -> tuple[Any, Any]:
    """A CybORG, and the same wrapped for blue."""
    library = _library()
    theirs = {ours: name for name, ours in ORIGINAL_NAMES.items()}
    agents = {RED: getattr(library.agents, theirs[variant.red])}
    if variant.green:
        agents[GREEN] = library.agents.GreenAgent
    cyborg = library.cyborg(str(library.scenario), "sim", agents=agents)
    table = library.table(cyborg, output_mode="vector")
    if variant.wrapper == "challenge2":
        _show_all_scans(table)
    return cyborg, library.actions(table)


def _show_all_scans(table: Any) -> None:
    """Make the table that of the other wrapper, which shows a scan also on a host with a decoy of the same step."""
    original = table._interpret_connections

    def interpret(activity: Sequence[dict[str, Any]]) -> str:
        seen: str = original(activity)
        return "Scan" if seen == "None" and "Service Name" not in activity[-1] else seen

    table._interpret_connections = interpret
