"""The options of CAGE 2, and what follows from them for every world."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from remuda.core.errors import ConfigError
from remuda.core.options import Options
from remuda.games.cage2.red import AGENTS
from remuda.games.cage2.workflow import HOST_TYPES, ORDERS, distinct_orders, read_order

ORIGINAL_NAMES = {"B_lineAgent": "b_line", "RedMeanderAgent": "meander", "SleepAgent": "sleep"}
ALL, DISTINCT = "all", "distinct"


def _our_name(name: Any) -> Any:
    """A red agent's name here, also if it is given by its name in the original."""
    return ORIGINAL_NAMES.get(name, name) if isinstance(name, str) else name


def _order_name(order: Any) -> Any:
    """An order as its name; it may be given as a list of types."""
    if isinstance(order, list) and order and all(word in HOST_TYPES for word in order):
        order = ",".join(order)
    if isinstance(order, str) and order not in (ALL, DISTINCT):
        return ",".join(HOST_TYPES[host_type] for host_type in read_order(order))
    return order


RedName = Annotated[Literal["b_line", "meander", "sleep", "mixed", "learned"], BeforeValidator(_our_name)]
Wrapper = Literal["challenge", "challenge2"]
RuleSet = Literal["head", "leaderboard"]
Order = Annotated[str, BeforeValidator(_order_name)]


class Cage2Options(Options):
    """The options of CAGE 2. One marked "per world" may be a list: world w takes entry w, modulo its length."""

    aliases: ClassVar[dict[str, str]] = {"red_agent": "red"}

    red: RedName | list[RedName] = Field(
        "b_line",
        description="b_line, meander, sleep, mixed: each world has one of the three, or learned: a player; per world",
    )
    players: Literal["blue", "both"] = Field(
        "blue", description="both: there is a second group `red`, which plays in the worlds with red=learned"
    )
    reds: int = Field(
        1, ge=1, le=64, description="players=both: agents in the group `red`; each episode draws the one that plays"
    )
    green: bool | list[bool] = Field(False, description="whether green users scan hosts now and then; per world")
    steps: int = Field(100, ge=1, description="steps in an episode; the challenge plays 30, 50 and 100")
    wrapper: Wrapper | list[Wrapper] = Field(
        "challenge", description="how blue sees a scan of a host that got a decoy in the same step; per world"
    )
    rules: RuleSet | list[RuleSet] = Field(
        "head", description="head: the last version; leaderboard: before two late fixes; per world"
    )
    observation: Literal["bits", "memory", "belief", "hypotheses", "truth"] = Field(
        "bits",
        description="bits: blue's table now; memory: what it saw and did so far; belief: how likely which true state "
        "is after that; hypotheses: these states themselves as bytes, for planners and of no use to networks; truth: "
        "the true state, for study only",
    )
    actions: Literal["full", "compact", "useful"] = Field(
        "full",
        description="full: the 145 of the challenge; compact: 40, of which one per host is its next decoy; useful: of "
        "these, those that can make a difference by blue's belief, or by the truth with observation=truth",
    )
    horizon: Literal["truncated", "terminal"] = Field(
        "truncated", description="what the last step is to a critic: a cut, or the end, after which nothing is worth"
    )
    workflow: Annotated[Order | list[Order] | None, BeforeValidator(_order_name)] = Field(
        None,
        description="an order of repair such as defender,enterprise,op_server,op_host,user, shown to blue, who is "
        "paid for following it; all, or distinct: each world another one; per world",
    )
    foothold_counts: bool = Field(
        True, description="workflow: whether red's session on User0, which blue cannot end, counts as one"
    )
    alignment: float = Field(30.0, ge=0, description="workflow: pay for raising the share of fixes that comply by 1")
    compliant_bonus: float = Field(0.0, ge=0, description="workflow: pay for each fix that complies")
    violation_penalty: float = Field(0.0, ge=0, description="workflow: cost of each fix that does not")
    simulator: Literal["own", "cyborg"] = Field(
        "own", description="cyborg: the original, where it is installed; `rules` must be those of that version"
    )
    true_state: Literal["never", "episode", "step"] = Field(
        "never", description="cyborg: when to read the true state, which is slow but gives more metrics"
    )

    def check(self) -> None:
        """Refuse options that contradict each other."""
        for name in ("red", "green", "wrapper", "rules", "workflow"):
            if getattr(self, name) == []:
                raise ConfigError(f"{name}=[] is empty: give one value, or one per world")
        if isinstance(self.red, list) and "mixed" in self.red:
            raise ConfigError("red: 'mixed' is already a list of all three; name the red agents one by one")
        if "learned" in self.red and self.players != "both":
            raise ConfigError("red=learned needs a red player: say players=both")
        if self.simulator == "cyborg" and self.players == "both":
            raise ConfigError("players=both is for simulator=own: red is scripted in the original")
        if self.simulator == "cyborg" and self.observation == "truth":
            raise ConfigError("observation=truth is for simulator=own: the original does not tell what red remembers")
        if self.believes and self.green is not False:
            raise ConfigError(
                f"observation={self.observation} goes with green=false: it does not consider what green users do"
            )
        if self.actions == "useful" and not (self.believes or self.observation == "truth"):
            raise ConfigError(
                f"actions=useful goes with observation=belief, not {self.observation}: say that, or actions=compact"
            )
        if isinstance(self.workflow, list) and {ALL, DISTINCT} & {*self.workflow}:
            raise ConfigError(f"workflow: {ALL!r} and {DISTINCT!r} are lists already; name the orders one by one")
        if self.simulator == "cyborg" and self.workflow is not None:
            raise ConfigError("workflow is for simulator=own: reading the true state of the original is too slow")
        if self.simulator == "own" and self.true_state != "never":
            raise ConfigError(
                f"true_state={self.true_state} is for simulator=cyborg: simulator=own always has the true state"
            )

    @property
    def believes(self) -> bool:
        """Whether blue's belief must be kept."""
        return self.observation in ("belief", "hypotheses")

    @property
    def needs_memory(self) -> bool:
        """Whether blue's memory must be kept: to be seen, to name the next decoy, or to show the time."""
        return self.observation != "bits" or self.actions != "full"


def red_agents(options: Cage2Options) -> str | list[str]:
    """The red agent of every world, or a list of which world w takes entry w."""
    return list(AGENTS) if options.red == "mixed" else options.red  # type: ignore[return-value]


def workflow_orders(options: Cage2Options) -> list[str]:
    """The orders of which world w takes entry w; empty without a workflow."""
    if options.workflow is None:
        return []
    if options.workflow == ALL:
        return list(ORDERS)
    if options.workflow == DISTINCT:
        return distinct_orders(options.foothold_counts)
    return options.workflow if isinstance(options.workflow, list) else [options.workflow]
