"""The conformance suite for learners: does a learner keep the promises that training relies on?"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.adapters.inbound.global_random_state import GlobalRandomState
from remuda.core import rng
from remuda.core.errors import CheckpointError
from remuda.core.fragment import Fragment, copy_fragment
from remuda.core.learner import State
from remuda.core.policy import PolicyInput
from remuda.core.rng import Stream
from remuda.core.threads import one_thread_each
from remuda.learners.registry import learner_name
from remuda.learners.single_agent.base import SingleAgentLearner
from remuda.runs.training import train
from remuda.testing.bandit import BANDIT, CONTEXTS
from remuda.testing.finding import Check, Finding, findings
from remuda.testing.learner_suite import ROUNDS, UPDATES, WORLDS, Arrays, LearnerSuite
from remuda.transport.temporary import TemporaryFolder

CHANGED = 2
SLICES = ((0, 1, 2, 3, 4), (0, 3, 4))
ENGINES = ("vectorized", "executor")
BANDIT_EPISODES = 640
GOAL = 0.6
"""Share of the bandit's reward to reach; chance is a third."""
NECESSARY = 2
"""Checks that come first, without which the others say nothing: it works, and does the same twice."""


def check_learner(learner: Any, **options: Any) -> list[Finding]:
    """Run every check on a learner, given by name or class, with these options of its own."""
    suite = LearnerSuite(learner_name(learner), options)
    with one_thread_each(), TemporaryFolder("remuda-check-") as folder:
        suite.folder = folder.path
        found = findings(CHECKS, suite, necessary=NECESSARY)
        return [*found, *_stacking(suite)] if all(finding.good for finding in found) else found


def _differing(a: Arrays, b: Arrays, agents: list[int] | None = None) -> str | None:
    """The first array that is not the same bit for bit, for some agents or all."""
    picked: Any = slice(None) if agents is None else agents
    for name, array in a.items():
        if name not in b or array[picked].tobytes() != b[name][picked].tobytes():
            return name
    return None


def _check_made(suite: LearnerSuite) -> str | None:
    own = suite.make()
    policy, rows = suite.policy(own), own.rows()
    if rows.dtype != np.float32 or rows.ndim != 2 or len(rows) != own.context.agents:
        return f"rows() returns {rows.dtype} of shape {rows.shape}; it should be float32, (agents, columns)"
    named = policy.named_arrays(rows)
    if len(named) != len(rows) or not named[0]:
        return "its policy's named_arrays() gives no weights: there is nothing to save or to evaluate"
    policy.load_weights(named)
    _ = suite.rounds
    if not (own.memory_bytes() >= 0 and isinstance(own.max_lag, int) and own.metrics):
        return "memory_bytes(), max_lag or metrics is missing"
    return None


def _check_steps(suite: LearnerSuite) -> str | None:
    own, done = suite.make(), False
    for fragment in suite.rounds:
        for count in (1, 3) if own.incremental else (3,):
            before = own.steps.copy()
            if count == 1 or not own.incremental:
                own.take(own.context.select([copy_fragment(fragment)]))
            planned = own.planned_steps(count)
            own.update(count)
            made = own.steps - before
            if not ((made == 0) | (made == planned)).all():
                return f"update({count}) should make {planned.tolist()} steps; `steps` grew by {made.tolist()}"
            done = done or bool(made.any())
            changed = (own.rows() != suite.make().rows()).any()
            if made.any() and not changed:
                return "`steps` grows, but the weights stay as they were"
    turns = WORLDS * suite.spec.turns
    return None if done else f"no agent made a step in {ROUNDS} rounds of {turns} turns: give e.g. batch_size=16"


def _check_portions(suite: LearnerSuite) -> str | None:
    if not suite.kind.incremental:
        return None
    whole, parts = suite.make(), suite.make()
    for fragment in suite.rounds:
        for own, counts in ((whole, (UPDATES,)), (parts, (1, UPDATES - 1))):
            own.take(own.context.select([copy_fragment(fragment)]))
            for count in counts:
                own.update(count)
    if _differing(dict(whole.state()), dict(parts.state())):
        return "update(3) is not update(1) and then update(2): set incremental = False, or count updates one by one"
    return None


def _check_report(suite: LearnerSuite) -> str | None:
    own = suite.make()
    for fragment in suite.rounds:
        own.take(own.context.select([copy_fragment(fragment)]))
        own.update(UPDATES)
        report = own.report()
        if set(report) != set(own.metrics):
            return f"report() has {sorted(report)}; `metrics` says {sorted(own.metrics)}"
        for name, values in report.items():
            if np.shape(values) != (own.context.agents,):
                return f"{name} in report() has shape {np.shape(values)}; it should be one number per agent"
    return None


def _reverse_time(fragment: Fragment) -> None:
    fragment.obs[:, :, CHANGED] = fragment.obs[::-1, :, CHANGED].copy()


def _raise_rewards(fragment: Fragment) -> None:
    fragment.rewards[:, :, CHANGED] += 100.0 + np.arange(fragment.turns, dtype=np.float32)[:, None]


def _die_early(fragment: Fragment) -> None:
    fragment.terminated[3, :, CHANGED] = True
    fragment.alive[4:, :, CHANGED] = False


def _check_independence(suite: LearnerSuite) -> str | None:
    others = [agent for agent in range(suite.spec.agents) if agent != CHANGED]
    for change in (_reverse_time, _raise_rewards, _die_early):
        rounds = [copy_fragment(fragment) for fragment in suite.rounds]
        for fragment in rounds:
            change(fragment)
        differing = _differing(suite.learned, suite.learn(suite.make(), rounds), others)
        if differing:
            return f"other data of agent {CHANGED} changed {differing} of other agents"
    return None


def _check_slices(suite: LearnerSuite) -> str | None:
    for edges in SLICES:
        parts = [suite.learn(suite.make(first, last)) for first, last in pairwise(edges)]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        differing = _differing(suite.learned, joined)
        if differing:
            return (
                f"learners with {'-'.join(str(b - a) for a, b in pairwise(edges))} agents have another {differing} "
                "than one with all: key random numbers by context.agent_numbers, and let no sum reach over agents"
            )
    return None


def _check_state(suite: LearnerSuite) -> str | None:
    first, second = suite.make(), suite.make()
    suite.learn(first, suite.rounds[:2])
    state: State = {name: array.copy() for name, array in first.state().items()}
    for name, array in state.items():
        if len(array) != first.context.agents:
            return f"{name} in state() has shape {array.shape}; its first axis should be the agents"
    second.restore(state)
    differing = _differing(suite.learn(first, suite.rounds[2:]), suite.learn(second, suite.rounds[2:]))
    if differing:
        return f"after state() and restore() the next round gives another {differing}: something is not in state()"
    return None


def _check_refuses(suite: LearnerSuite) -> str | None:
    state = {name: array.copy() for name, array in suite.make().state().items()}
    floats = [name for name, array in state.items() if array.dtype.kind == "f"]
    damaged = {"without an array": {name: array for name, array in state.items() if name != floats[0]}}
    damaged["of fewer agents"] = {name: array[1:] for name, array in state.items()}
    damaged["with nan"] = {**state, floats[0]: np.full_like(state[floats[0]], np.nan)}
    for what, bad in damaged.items():
        try:
            suite.make().restore(bad)
        except CheckpointError:
            continue
        except Exception as error:  # the learner may raise anything
            return f"restore() of a state {what} raised {type(error).__name__}: call check_state(state) first"
        return f"restore() took a state {what}: call check_state(state) first"
    return None


def _check_skip(suite: LearnerSuite) -> str | None:
    own = suite.make()
    own.take(own.context.select([copy_fragment(suite.rounds[0])]))
    steps = own.steps.copy()
    weights = suite.policy(own).weights()
    own.skip(UPDATES)
    if (own.steps != steps).any():
        return "skip() counts steps that were not made"
    after = suite.policy(own).weights()
    if any(not np.array_equal(a[name], b[name]) for a, b in zip(weights, after, strict=True) for name in a):
        return "skip() changes weights"
    clocks = {name: array for name, array in own.state().items() if name in ("updates", "passes")}
    if clocks and not any(array.any() for array in clocks.values()):
        return f"skip({UPDATES}) does not advance {', '.join(clocks)}: schedules and random streams would lag behind"
    return None


def _check_randomness(suite: LearnerSuite) -> str | None:
    results = []
    for seed in (1, 2):
        with GlobalRandomState(seed).installed(), rng.torch_seeded(np.uint64(seed << 8)):
            results.append(suite.learn(suite.make()))
    differing = _differing(results[0], results[1])
    if differing:
        return (
            f"with other seeds of the global generators the same data gave another {differing}: "
            "use remuda.rng with keys of agent and update, not the generators of Python, NumPy or torch; "
            "the other checks compare one learner with another, so they come when this is mended"
        )
    return None


def _check_fragments(suite: LearnerSuite) -> str | None:
    own = suite.make()
    result: Arrays = {}
    for fragment in suite.rounds:
        lent = copy_fragment(fragment)
        own.take(own.context.select([lent]))
        if not own.keeps_views:
            _scribble(lent)
        own.update(UPDATES)
        if own.keeps_views:
            differing = _changed_arrays(lent, fragment)
            if differing:
                return f"it writes into the fragment ({differing}): copy what you change"
            _scribble(lent)
        result = dict(own.report())
    result = {name: np.array(array) for name, array in {**own.state(), **result, "rows": own.rows()}.items()}
    if _differing(suite.learned, result):
        when = "after update" if own.keeps_views else "after take, without saying so by keeps_views"
        return f"it still reads a fragment {when}: that memory belongs to the next episodes by then"
    return None


def _changed_arrays(lent: Fragment, original: Fragment) -> str | None:
    names = ("obs", "actions", "rewards", "terminated", "truncated", "alive")
    return next((n for n in names if getattr(lent, n).tobytes() != getattr(original, n).tobytes()), None)


def _scribble(fragment: Fragment) -> None:
    """Overwrite a fragment, as the next episodes will."""
    for name in ("obs", "actions", "rewards", "terminated", "alive"):
        array = getattr(fragment, name)
        array[:] = 1 - array if array.dtype != np.bool_ else ~array


def _check_rows(suite: LearnerSuite) -> str | None:
    own = suite.make()
    published = own.rows()
    kept = published.copy()
    suite.learn(own)
    return None if np.array_equal(published, kept) else "rows() returns an array that update() changes: return a copy"


def _check_acting(suite: LearnerSuite) -> str | None:
    policy, agents = suite.policy(suite.make()), suite.spec.agents
    worlds = 5 * WORLDS
    keys = rng.keys(rng.keys(rng.key(0, Stream.CHECK), np.arange(worlds))[:, None], np.arange(agents))
    shape = (policy.frames, worlds, agents, *suite.spec.groups[0].obs_shape)
    obs = rng.uniforms(rng.keys(rng.key(1, Stream.CHECK), np.arange(1)), int(np.prod(shape))).reshape(shape)
    obs = obs.astype(suite.spec.groups[0].obs_dtype)

    def act(first: int, last: int, agent: slice) -> dict[str, NDArray[Any]]:
        part = (slice(first, last), agent)
        ages = np.full(keys[part].shape, policy.frames)
        inputs = PolicyInput(obs[:, part[0], part[1]], ages, None, np.ascontiguousarray(keys[part]), None)
        out = policy.act(inputs, agent.start, agent.stop)
        return {"actions": out.actions, **out.extras}

    whole = act(0, worlds, slice(0, agents))
    everyone = slice(0, agents)
    alone = [(world, world + 1, everyone) for world in range(WORLDS)]
    for first, last, agent in (*alone, (3, 20, everyone), (0, worlds, slice(1, 2))):
        for name, array in act(first, last, agent).items():
            if array.tobytes() != np.ascontiguousarray(whole[name][first:last, agent]).tobytes():
                return f"{name} of some worlds and agents differ from the same ones among {worlds} worlds"
    return None


def _train(suite: LearnerSuite, out: str, **settings: Any) -> Any:
    plan = {
        "worlds": WORLDS, "total_episodes": 4 * WORLDS, "evaluate_episodes": 2, "pictures": False, "device": "cpu",
        "learner": suite.name, "learner_options": {suite.name: suite.given}, **settings,
    }  # fmt: skip
    return train(BANDIT, out=suite.folder / out, quiet=True, **plan)


def _check_engines(suite: LearnerSuite) -> str | None:
    one = _train(suite, "sequential", engine="sequential", deterministic=True)
    skipped = one.result["failures"]["updates_skipped"]
    if skipped:
        return f"{skipped} updates were skipped: {_first_failure(one.path)}"
    for engine in ENGINES:
        run = _train(suite, engine, engine=engine, n_workers=2, deterministic=True)
        if run.result["weights_sha256"] != one.result["weights_sha256"]:
            return f"engine {engine} ends with other weights than engine sequential"
    return None


def _first_failure(folder: Path) -> str:
    files = sorted((folder / "failures").glob("*.json"))
    return files[0].read_text(encoding="utf-8")[:300] if files else "see failures/"


def _check_bandit(suite: LearnerSuite) -> str | None:
    run = _train(suite, "bandit", total_episodes=BANDIT_EPISODES, updates_per_episode=4.0, evaluate_episodes=64)
    share = float(np.mean(run.result["evaluation"]["mean_return"])) / suite.spec.turns
    if share >= GOAL:
        return None
    return (
        f"after {BANDIT_EPISODES} episodes of a bandit with {CONTEXTS} contexts it gets {share:.0%} of the reward; "
        f"chance is {1 / CONTEXTS:.0%}, and {GOAL:.0%} are asked for"
    )


def _stacking(suite: LearnerSuite) -> list[Finding]:
    """How the agents of a learner for one agent are computed; nothing for other learners."""
    own = suite.make()
    if not isinstance(own, SingleAgentLearner):
        return []
    suite.learn(own)
    return [Finding("agents are computed together where the bits are the same", None, "only time", own.stacking)]


CHECKS: tuple[Check, ...] = (
    ("it can be made, and its policy plays", "training cannot start", _check_made),
    ("nothing global is random", "runs cannot be repeated, and agents disturb each other", _check_randomness),
    ("update makes the gradient steps it plans", "the plan's amount of learning is not what is learned", _check_steps),
    ("updates may come in portions", "the result depends on publish_interval and threads", _check_portions),
    ("report has its metrics, one number per agent", "metrics.csv has wrong or missing columns", _check_report),
    (
        "agents learn alone",
        "an agent's weights depend on other agents: the herd is not independent",
        _check_independence,
    ),
    ("slices of the herd learn what the whole learns", "results depend on engine and workers", _check_slices),
    ("state and restore lose nothing", "a resumed run is another run than one that never stopped", _check_state),
    ("restore refuses what does not fit", "a damaged checkpoint becomes a wrong herd", _check_refuses),
    ("skip moves clocks and nothing else", "after a failure schedules and random streams are wrong", _check_skip),
    ("fragments are borrowed, not kept", "it learns from memory that others write to", _check_fragments),
    ("published rows never change", "actors play with weights that are half old and half new", _check_rows),
    ("acting does not depend on the batch", "actions depend on how many worlds are played at once", _check_acting),
    ("every engine gives the same weights", "the engine is no longer a matter of speed alone", _check_engines),
    ("it learns a bandit", "it does not learn, or far too slowly with these options", _check_bandit),
)
