"""CAGE 2 in the original simulator, CybORG 2.1, where it is installed: `cage2 simulator=cyborg`.

The same 52 bits, 145 actions and options as ours, so that whoever was trained in ours is tested there. CybORG draws
everything from Python's `random`; each world has a stream of its own, seeded by its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.adapters.inbound.global_generators import GlobalGenerators
from remuda.adapters.inbound.worlds import Simulators, World
from remuda.core.errors import ConfigError, first_line
from remuda.core.game import Game, GameSpec, Group, option_per_world
from remuda.games.cage2.game import METRICS, ORIGINAL_NAMES, Cage2Options, red_agents
from remuda.games.cage2.network import FOOTHOLD, N_ACTIONS, NAMES
from remuda.games.cage2.observation import BITS

SOURCE = (
    "git clone https://github.com/cage-challenge/cage-challenge-2 && pip install -e cage-challenge-2/CybORG "
    "(the package of that name in the registry is something else)"
)
FROM_TRUTH = {"never": (), "episode": ("hosts_held",), "step": ("hosts_held", "hosts_entered")}
"""Metrics that only the true state tells: hosts where red has a session of any kind, User0 apart, when the episode
ends; and hosts where it has had one at the end of any step."""
BLUE, RED, GREEN = "Blue", "Red", "Green"


class CyborgVariant(NamedTuple):
    """What a world plays."""

    red: str
    green: bool
    wrapper: str
    steps: int
    true_state: str


def build(options: Cage2Options, worlds: Sequence[int]) -> Game:
    """Worlds with these numbers, each with a CybORG of its own."""
    _library()
    variants = zip(
        option_per_world(red_agents(options), worlds),
        option_per_world(options.green, worlds),
        option_per_world(options.wrapper, worlds),
        strict=True,
    )
    metrics = (*METRICS, *FROM_TRUTH[options.true_state])
    blue = Group("blue", 1, (BITS,), np.uint8, N_ACTIONS, metrics, low=0, high=1)
    spec = GameSpec("cage2", (blue,), options.steps, options.model_dump())
    return Simulators(spec, [Network(CyborgVariant(*own, options.steps, options.true_state)) for own in variants])


class Network(World):
    """One CybORG, made when it is first played and reset ever after. `truth` is the true state last asked for."""

    def __init__(self, variant: CyborgVariant) -> None:
        super().__init__(agents=1)
        self.truth: dict[str, Any] = {}
        self._variant = variant
        self._chance = GlobalGenerators()
        self._cyborg: Any = None
        self._blue: Any = None  # the same through its wrappers
        self._bits: Any = None
        self._turn = 0
        self._entered: set[str] = set()

    def reset(self, seed: int) -> None:
        """A new episode of the same simulator, its chance seeded."""
        if self._blue is None:
            with self._chance.lent():
                self._cyborg, self._blue = _make(self._variant)
        self._chance.seed(seed)
        with self._chance.lent():
            self._bits = self._blue.reset(BLUE).observation
        self._check_shape()
        self._turn = 0
        self._entered = set()
        self.truth = {}
        self.metrics = dict.fromkeys((*METRICS, *FROM_TRUTH[self._variant.true_state]), 0.0)
        self.alive[:] = True
        self.over = False

    def observe(self, agent: int) -> NDArray[Any]:
        """Blue's table as bits."""
        bits: NDArray[Any] = self._bits
        return bits

    def act(self, agent: int, action: int) -> None:
        """A step: blue, green, red."""
        with self._chance.lent():
            result = self._blue.step(BLUE, action)
        self._bits = result.observation
        self.rewards[0] += result.reward
        self._turn += 1
        self._count()
        asked = self._variant.true_state
        if asked == "step" or (asked == "episode" and self._turn == self._variant.steps):
            self._look()

    def _count(self) -> None:
        """What the simulator knows after every step anyway: its reward says on which hosts red is root."""
        lost = sum(score.confidentiality < 0 for score in self._cyborg.get_reward_breakdown(BLUE).values())
        self.metrics["hosts_lost"] += lost
        blue, red = (type(self._cyborg.get_last_action(who)).__name__ for who in (BLUE, RED))
        self.metrics["impacts"] += red == "Impact" and self._succeeded(RED)
        self.metrics["restores"] += blue == "Restore"
        self.metrics["removes"] += blue == "Remove"
        self.metrics["decoys"] += blue.startswith("Decoy") and self._succeeded(BLUE)

    def _succeeded(self, who: str) -> bool:
        return str(self._cyborg.get_observation(who)["success"]) == "TRUE"

    def _look(self) -> None:
        """Ask for the true state."""
        self.truth = self._cyborg.get_agent_state("True")
        held = {
            host
            for host, info in self.truth.items()
            if host not in ("success", NAMES[FOOTHOLD])
            and any(session["Agent"] == RED for session in info.get("Sessions", ()))
        }
        self._entered |= held
        self.metrics["hosts_held"] = len(held)
        self.metrics["hosts_entered"] = len(self._entered)

    def _check_shape(self) -> None:
        bits, actions = len(self._bits), len(self._blue.possible_actions)
        if (bits, actions) != (BITS, N_ACTIONS):
            raise ConfigError(
                f"simulator=cyborg: the CybORG that is installed shows blue {bits} bits and {actions} actions instead "
                f"of {BITS} and {N_ACTIONS}; install the original: {SOURCE}"
            )


class Library(NamedTuple):
    """What we use of CybORG."""

    cyborg: Any
    agents: Any  # a module
    table: Any
    actions: Any
    scenario: Path


def _library() -> Library:
    """CybORG as it is installed, or a sentence that says where to get it."""
    try:
        package, agents, wrappers = (import_module(f"CybORG{part}") for part in ("", ".Agents", ".Agents.Wrappers"))
        scenario = Path(str(package.__file__)).parent / "Shared" / "Scenarios" / "Scenario2.yaml"
        if not scenario.is_file():
            raise ImportError("it has no Scenario2")
        return Library(package.CybORG, agents, wrappers.BlueTableWrapper, wrappers.EnumActionWrapper, scenario)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"simulator=cyborg needs CybORG 2.1 ({first_line(error)}): {SOURCE}") from error


def _make(variant: CyborgVariant) -> tuple[Any, Any]:
    """A CybORG, and how blue sees it."""
    library = _library()
    theirs = {ours: name for name, ours in ORIGINAL_NAMES.items()}
    agents = {RED: getattr(library.agents, theirs[variant.red])}
    if variant.green:
        agents[GREEN] = library.agents.GreenAgent
    cyborg = library.cyborg(str(library.scenario), "sim", agents=agents)
    table = library.table(cyborg, output_mode="vector")
    if variant.wrapper == "challenge2":
        _see_all_scans(table)
    return cyborg, library.actions(table)


def _see_all_scans(table: Any) -> None:
    """The other wrapper: a scan is seen even where blue has laid a decoy in the same step."""
    stock = table._interpret_connections

    def interpret(activity: Sequence[dict[str, Any]]) -> str:
        seen: str = stock(activity)
        return "Scan" if seen == "None" and "Service Name" not in activity[-1] else seen

    table._interpret_connections = interpret
