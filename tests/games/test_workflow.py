"""Workflows on CAGE 2: who complies, what it pays, and that nothing else changes."""

from __future__ import annotations

from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remuda.core import rng
from remuda.core.errors import ConfigError
from remuda.core.game import make_game
from remuda.core.policy import PolicyInput
from remuda.core.rng import Stream
from remuda.games.cage2.defenders import DEFENDERS
from remuda.games.cage2.game import METRICS, WORKFLOW_METRICS, Cage2
from remuda.games.cage2.network import N_ACTIONS, NAMES, REMOVE, RESTORE, action_of
from remuda.games.cage2.observation import BITS
from remuda.games.cage2.traces import Trace, read_trace
from remuda.games.cage2.verify import replay_steps
from remuda.games.cage2.workflow import (
    FIX_COUNTS,
    HOST_TYPES,
    ORDERS,
    WorkflowRules,
    canonical_order,
    count_fix,
    distinct_orders,
    first_held_type,
    kendall_distance,
    pair_features,
    read_order,
)
from remuda.games.registry import find_game
from remuda.games.trace_files import find_traces
from remuda.runs.evaluation import EvaluationSetup, evaluate_policies

TRACES = Path(__file__).parents[1] / "data" / "cage2"
HOSTS_OF = {
    "defender": ["Defender"],
    "enterprise": ["Enterprise0", "Enterprise1", "Enterprise2"],
    "op_server": ["Op_Server0"],
    "op_host": ["Op_Host0", "Op_Host1", "Op_Host2"],
    "user": ["User0", "User1", "User2", "User3", "User4"],
}
TYPE_OF = {host: host_type for host_type, hosts in HOSTS_OF.items() for host in hosts}
FIRST = "defender,enterprise,op_server,op_host,user"
LAST = "user,op_host,op_server,enterprise,defender"


class PlainWorkflow:
    """The same definition in plain Python: sets of host names, and none of the compiled code."""

    def __init__(self, order: str, foothold_counts: bool, scale: float, bonus: float, penalty: float) -> None:
        self.order, self.foothold_counts = order.split(","), foothold_counts
        self.scale, self.bonus, self.penalty = scale, bonus, penalty
        self.fixes = self.compliant = 0

    def pay(self, held: set[str], action: int) -> float:
        if 15 <= action <= 27:
            host = NAMES[action - 15]
        elif 132 <= action <= 144:
            host = NAMES[action - 132]
        else:
            return 0.0
        types = {TYPE_OF[name] for name in held if self.foothold_counts or name != "User0"}
        wanted = next((host_type for host_type in self.order if host_type in types), None)
        before = self.compliant / self.fixes if self.fixes else 0.0
        complies = wanted is None or TYPE_OF[host] == wanted
        self.fixes += 1
        self.compliant += complies
        pay = self.scale * (self.compliant / self.fixes - before)
        return pay + self.bonus if complies else pay - self.penalty

    @property
    def compliance(self) -> float:
        return self.compliant / self.fixes if self.fixes else 0.5


def held_before(trace: Trace, episode: int, step: int) -> set[str]:
    """Hosts on which red was recorded to have a session when a step began."""
    if step == 0:
        return {"User0"}
    counts = sum(trace.arrays[name][episode, step - 1] for name in ("n_root", "n_user_rm", "n_user_norm"))
    return {name for name, count in zip(NAMES, counts, strict=True) if count}


@pytest.mark.promise
@pytest.mark.parametrize("path", find_traces(TRACES), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recorded_games_are_paid_as_in_plain_python(path: Path) -> None:
    trace = read_trace(path)
    rules = WorkflowRules(True, 30.0, 0.25, 0.5)
    chosen = [ORDERS[i] for i in range(0, len(ORDERS), 17)]
    cases = [(order, rules._replace(foothold_counts=counts)) for order in chosen for counts in (True, False)]
    counts_here = np.zeros((len(cases), trace.episodes), FIX_COUNTS).view(np.recarray)
    plain = [[PlainWorkflow(order, *own) for _ in range(trace.episodes)] for order, own in cases]
    fixes = 0
    for t, (state, _, _) in enumerate(replay_steps(trace)):
        if t == trace.steps:
            break
        for e in range(trace.episodes):
            action, held = int(trace.arrays["blue_action"][e, t]), held_before(trace, e, t)
            for c, (order, own) in enumerate(cases):
                first = first_held_type(state[e], np.array(read_order(order)), own)
                paid = count_fix(counts_here[c, e], action, first, own)
                assert paid == plain[c][e].pay(held, action), (order, e, t)
        fixes += sum(own.fixes for own in plain[0])
    for c in range(len(cases)):
        assert counts_here["fixes"][c].tolist() == [own.fixes for own in plain[c]]
        assert counts_here["compliant"][c].tolist() == [own.compliant for own in plain[c]]
    assert fixes or "sleep" in path.stem or "heavy" in path.stem


def start(orders: str | list[str], **options: Any) -> Cage2:
    worlds = len(orders) if isinstance(orders, list) else 1
    game = make_game(find_game("cage2"), {"workflow": orders, **options}, list(range(worlds)))
    assert isinstance(game, Cage2)
    game.reset(np.arange(worlds), rng.keys(rng.key(0, Stream.CHECK), np.arange(worlds)))
    return game


def metrics(game: Cage2, world: int = 0) -> dict[str, float]:
    values = game.signals[0].metrics[world, 0].tolist()
    return dict(zip((*METRICS, *WORKFLOW_METRICS), values, strict=True))


@pytest.mark.parametrize("foothold_counts", [True, False])
def test_the_game_pays_and_counts_as_in_plain_python(foothold_counts: bool) -> None:
    orders = [*ORDERS[::7]]
    rules = {"alignment": 30.0, "compliant_bonus": 0.3, "violation_penalty": 0.7}
    game = start(orders, foothold_counts=foothold_counts, red="meander", **rules)
    plain = [PlainWorkflow(order, foothold_counts, *rules.values()) for order in orders]
    random = np.random.default_rng(0)
    env = np.zeros(len(orders))
    for _ in range(100):
        actions = np.where(random.random(len(orders)) < 0.5, random.integers(132, 145, len(orders)), 0)
        actions = np.where(random.random(len(orders)) < 0.3, random.integers(15, 28, len(orders)), actions)
        held = [
            {name for i, name in enumerate(NAMES) if any(s[field][i] for field in ("root", "removable", "pinned"))}
            for s in game.state
        ]
        game.signals[0].rewards[:] = 0
        game.step([actions[:, None]])
        for w, own in enumerate(plain):
            expected = -int(game.state["cost"][w]) / 10.0 + own.pay(held[w], int(actions[w]))
            assert game.signals[0].rewards[w, 0] == np.float32(expected)
            env[w] += -int(game.state["cost"][w])
    for w, own in enumerate(plain):
        values = metrics(game, w)
        assert values["fixes"] == own.fixes == sum(values[f"fixes_{host_type}"] for host_type in HOST_TYPES)
        assert values["compliance"] == np.float32(own.compliance)
        assert values["env_return"] == np.float32(env[w] / 10.0)
        paid = 30.0 * own.compliance + (0.3 * own.compliant - 0.7 * (own.fixes - own.compliant))
        assert values["alignment"] == np.float32(paid)
    assert len({own.compliance for own in plain}) > 5


def hold(game: Cage2, *hosts: str) -> None:
    """Put red on these hosts."""
    for host in hosts:
        game.state["pinned"][0, NAMES.index(host)] = 1


def fix(game: Cage2, host: str, verb: int = REMOVE) -> float:
    """One step that repairs a host; what following the order paid."""
    before = metrics(game)["alignment"]
    game.step([np.array([[action_of(verb, NAMES.index(host))]])])
    return metrics(game)["alignment"] - before


def test_an_episode_without_a_fix_is_half_compliant_and_pays_nothing() -> None:
    game = start(FIRST, steps=5)
    for action in (0, 1, 2, 28, 131):
        game.step([np.array([[action]])])
    assert metrics(game)["compliance"] == 0.5
    assert metrics(game)["alignment"] == 0 == metrics(game)["fixes"]


def test_only_the_first_type_red_is_on_may_be_fixed() -> None:
    game = start("enterprise,op_server,op_host,defender,user", red="sleep")
    hold(game, "Op_Host1", "Enterprise2")
    assert fix(game, "Enterprise0") == 30  # any host of the type complies
    assert fix(game, "Op_Host1") == -15  # the wrong order
    assert fix(game, "User1", RESTORE) == -5
    assert metrics(game)["compliance"] == np.float32(1 / 3)
    game.state["pinned"][0, NAMES.index("Enterprise2")] = 0
    assert fix(game, "Op_Host0", RESTORE) == pytest.approx(5)


def test_red_is_always_on_user0_so_types_after_user_never_comply() -> None:
    game = start("user,enterprise,op_server,op_host,defender", red="sleep")
    hold(game, "Enterprise1")
    assert fix(game, "Enterprise1") == 0
    assert fix(game, "User3") == 15


def test_nothing_is_compromised_if_the_foothold_does_not_count() -> None:
    game = start(FIRST, red="sleep", foothold_counts=False)
    assert fix(game, "Op_Server0") == 30
    assert fix(game, "User0") == 0
    assert metrics(game)["compliance"] == 1
    hold(game, "User2")
    assert fix(game, "Op_Host2") == -10


def test_an_attack_in_the_same_step_counts_only_for_the_next() -> None:
    game = start("op_server,enterprise,op_host,defender,user", red="b_line")
    for _ in range(60):
        wanted = first_held_type(game.state[0], game.rules.orders[0], game.rules.workflow)
        fixes, compliance = metrics(game)["fixes"], metrics(game)["compliance"]
        assert fix(game, "User0") in (0, 30) or fixes
        if not fixes:
            assert metrics(game)["compliance"] == (wanted == HOST_TYPES.index("user"))
        elif wanted != HOST_TYPES.index("user"):
            assert metrics(game)["compliance"] < compliance
    assert 0 < metrics(game)["compliance"] < 1


def test_blue_observes_its_order_after_the_table() -> None:
    game = start([FIRST, LAST])
    out = np.full((2, 1, BITS + 25), 9, np.uint8)
    game.observe(0, 0, 1, out)
    assert not out[:, :, :BITS].any()
    assert out[0, 0, BITS:].reshape(5, 5).tolist() == np.eye(5).tolist()
    assert out[1, 0, BITS:].reshape(5, 5).argmax(axis=1).tolist() == [
        HOST_TYPES.index(host_type) for host_type in LAST.split(",")
    ]


def test_the_game_itself_does_not_change() -> None:
    plain = make_game(find_game("cage2"), {}, [0])
    with_order = start(LAST, alignment=0)
    keys = rng.keys(rng.key(0, Stream.CHECK), np.arange(1))
    plain.reset(np.arange(1), keys)
    bits, more = np.zeros((1, 1, BITS), np.uint8), np.zeros((1, 1, BITS + 25), np.uint8)
    for action in np.random.default_rng(1).integers(0, N_ACTIONS, 100):
        for game in (plain, with_order):
            game.step([np.array([[action]])])
        plain.observe(0, 0, 1, bits)
        with_order.observe(0, 0, 1, more)
        assert (more[:, :, :BITS] == bits).all()
    assert plain.signals[0].rewards == with_order.signals[0].rewards
    assert with_order.signals[0].rewards == pytest.approx(metrics(with_order)["env_return"], rel=1e-5)
    assert plain.signals[0].metrics.tolist() == with_order.signals[0].metrics[:, :, : len(METRICS)].tolist()


def test_orders_that_are_the_same_game_are_counted_once() -> None:
    assert len(ORDERS) == 120 == len(distinct_orders(False))
    assert tuple(",".join(order) for order in permutations(HOST_TYPES)) == ORDERS
    distinct = distinct_orders(True)
    assert len(distinct) == 1 + 4 + 12 + 24 + 24
    assert {canonical_order(order, True) for order in ORDERS} == {*distinct}
    assert (
        canonical_order("op_host,user,op_server,enterprise,defender", True)
        == "op_host,user,defender,enterprise,op_server"
    )


def wanted_types(order: str, foothold_counts: bool) -> tuple[int, ...]:
    """The type an order wants fixed first, for every set of types on which red has a host besides User0."""
    game, wanted = start(FIRST, foothold_counts=foothold_counts), []
    for taken in product((False, True), repeat=len(HOST_TYPES)):
        held = {"User0", *(HOSTS_OF[host_type][-1] for host_type, its in zip(HOST_TYPES, taken, strict=True) if its)}
        game.state["root"][0] = [name in held for name in NAMES]
        wanted.append(int(first_held_type(game.state[0], np.array(read_order(order)), game.rules.workflow)))
    return tuple(wanted)


def test_orders_that_are_the_same_game_want_the_same_types() -> None:
    verdicts: dict[str, set[tuple[int, ...]]] = {}
    for order in ORDERS:
        verdicts.setdefault(canonical_order(order, True), set()).add(wanted_types(order, True))
    assert all(len(same) == 1 for same in verdicts.values())
    assert len({next(iter(same)) for same in verdicts.values()}) == 65


def test_all_orders_differ_without_the_foothold() -> None:
    assert len({wanted_types(order, False) for order in ORDERS}) == 120


def test_kendalls_distance() -> None:
    def discordant(a: str, b: str) -> int:
        one, other = a.split(","), b.split(",")
        both = [(x, y) for i, x in enumerate(one) for y in one[i + 1 :]]
        return sum(other.index(x) > other.index(y) for x, y in both)

    for order in ORDERS[::11]:
        assert [kendall_distance(order, other, False) for other in ORDERS] == [
            discordant(order, other) for other in ORDERS
        ]
    assert kendall_distance(ORDERS[0], ORDERS[-1], False) == 10
    same = [order for order in ORDERS if canonical_order(order, True) == canonical_order(LAST, True)]
    assert len(same) == 24
    assert {kendall_distance(LAST, order, True) for order in same} == {0}
    assert (pair_features(LAST, True) != 0).sum() == 4  # only pairs with `user` matter


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"workflow": "user,defender"}, "in any order, with commas between"),
        ({"workflow": "a,b,c,d,e"}, "defender, enterprise, op_server, op_host, user in any order"),
        ({"workflow": []}, "is empty"),
        ({"workflow": ["distinct", FIRST]}, "lists already"),
        ({"workflow": FIRST, "simulator": "cyborg"}, "simulator=own"),
        ({"alignment": -1}, "alignment=-1"),
    ],
)
def test_invalid_workflows_are_refused(words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_game(find_game("cage2"), words, [0])


def test_world_w_takes_order_w() -> None:
    entry = find_game("cage2")
    for words, count in (({"workflow": "all"}, 120), ({"workflow": "distinct"}, 65), ({"workflow": FIRST}, 1)):
        assert entry.distinct_worlds(entry.options.read(words, "test")) == count
    game = make_game(entry, {"workflow": list(reversed(HOST_TYPES))}, [0])
    assert isinstance(game, Cage2)
    assert game.rules.orders.tolist() == [[4, 3, 2, 1, 0]]
    game = make_game(entry, {"workflow": "distinct"}, [0, 1, 65])
    assert isinstance(game, Cage2)
    assert game.rules.orders.tolist() == [read_order(distinct_orders(True)[i]) for i in (0, 1, 0)]


def by_order(order: str, **options: Any) -> dict[str, Any]:
    setup = EvaluationSetup.of("cage2", {"learner": "greedy_repair", "workflow": order, "seed": 3, **options})
    return evaluate_policies(setup.plan, setup.spec, setup.bindings, 100).summary()


def test_greedy_repair_follows_the_order_it_observes() -> None:
    game = start([FIRST, LAST])
    table = np.zeros((1, 2, 1, BITS + 25), np.uint8)
    game.observe(0, 0, 1, table[0])
    for host in ("Enterprise1", "Enterprise2", "User3"):
        table[0, :, 0, 4 * NAMES.index(host) + 3] = 1
    player = DEFENDERS["greedy_repair"](game.spec.groups[0], 1)
    inputs = PolicyInput(table, np.zeros((2, 1), np.int64), None, np.zeros((2, 1), np.uint64), 0.0)
    wanted = [action_of(RESTORE, NAMES.index(host)) for host in ("Enterprise1", "User3")]
    assert player.act(inputs, 0, 1).actions[:, 0].tolist() == wanted
    table[0, :, 0, :BITS] = 0
    assert player.act(inputs, 0, 1).actions.tolist() == [[0], [0]]


def test_greedy_repair_needs_an_order() -> None:
    with pytest.raises(ConfigError, match="workflow="):
        EvaluationSetup.of("cage2", {"learner": "greedy_repair"})


def test_greedy_repair_is_scored_by_its_order() -> None:
    good, bad = by_order("op_server,enterprise,op_host,defender,user"), by_order(LAST)
    assert good["metrics"]["compliance"][0] > 0.9 > 0.7 > bad["metrics"]["compliance"][0]
    assert good["metrics"]["fixes"][0] > 5
    assert good["metrics"]["env_return"] == bad["metrics"]["env_return"]  # there is never more than one to repair
