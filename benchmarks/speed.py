"""Compiled forms of PPO and IQN beside the readable ones: playing and learning, round by round in turn, in one process.

Both forms train the same plan from the same seed, each with its own weights. The times are processor seconds of one
core; a ratio is the readable form's time over the compiled one's. MFU are the operations of the networks in plain dense
form over what a core could have made (`docs/results.md`).

    python -m benchmarks speed                       # all plans below
    python -m benchmarks.speed IQN                   # those with a word in their titles
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import machine
from remuda.core.game import Game, make_game
from remuda.core.plan import Plan
from remuda.core.policy import PolicyBinding
from remuda.core.task import Task
from remuda.core.threads import keep_freed_memory, one_thread_each
from remuda.games.registry import find_game
from remuda.learners.herd import assign, bind_policy, make_learner
from remuda.learners.iqn.learner import IQN
from remuda.learners.iqn.policy import IQNPolicy
from remuda.learners.ppo.learner import PPO
from remuda.learners.ppo.policy import PPOPolicy
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.runs.settings import make_plan
from remuda.runs.utilisation import herd_flops, peak_flops

CAGE: dict[str, Any] = {"game": "cage2", "learner": "ppo", "worlds": 100, "frames": 8}
PLANS: dict[str, tuple[int, dict[str, Any]]] = {
    "workflow_rl": (300, {"preset": "workflow_rl", "red": "b_line"}),
    "CAGE 2, 8 frames, B_line": (40, {**CAGE, "red": "b_line"}),
    "CAGE 2, 8 frames, Meander": (40, {**CAGE, "red": "meander"}),
    "CAGE 2, memory features (cage2_record, 100 worlds)": (20, {"preset": "cage2_record", "worlds": 100}),
    "IQN, Treasurehunt, 2 agents, 16 worlds": (10, {"game": "treasurehunt", "agents": 2}),
    "IQN, Treasurehunt, 10 agents, 4 worlds": (10, {"game": "treasurehunt", "agents": 10, "worlds": 4}),
    "IQN, Treasurehunt, 16 agents, layer 64": (10, {"game": "treasurehunt", "agents": 16, "worlds": 4, "layer": 64}),
    "IQN, Treasurehunt, 2 agents, 1 world": (20, {"game": "treasurehunt", "agents": 2, "worlds": 1}),
    "Treasurehunt, 2 agents": (40, {"game": "treasurehunt", "agents": 2, "learner": "ppo", "worlds": 16}),
    "Treasurehunt, 10 agents": (20, {"game": "treasurehunt", "agents": 10, "learner": "ppo", "worlds": 4}),
}
"""Rounds and settings."""


@dataclass
class Form:
    """One form of a learner in training, and what its rounds took."""

    plan: Plan
    game: Game
    learner: PPO | IQN
    binding: PolicyBinding
    play_s: list[float] = field(default_factory=list)
    learn_s: list[float] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)  # the mean of each round

    @classmethod
    def of(cls, settings: Mapping[str, Any], compiled: bool) -> Form:
        """A learner and its policy, in the compiled form or in the readable one."""
        plan = make_plan({"total_episodes": 100_000, **settings})
        game = make_game(find_game(plan.game), plan.options, range(plan.worlds))
        (part,) = assign(plan, game.spec)
        learner, binding = (
            make_learner(part, plan, game.spec, "cpu", (0, part.agents)), bind_policy(part, plan, game.spec, "cpu")
        )  # fmt: skip
        if isinstance(learner, IQN):
            assert isinstance(binding.policy, IQNPolicy)
            learner.compiled = binding.policy.compiled = compiled
        else:
            assert isinstance(learner, PPO)
            assert isinstance(binding.policy, PPOPolicy)
            learner.tiled = binding.policy.uses_tables = compiled
        return cls(plan, game, learner, binding)

    def mfu(self) -> dict[str, float]:
        """Utilisation of learning and of playing, without the first round."""
        spec, plan = self.game.spec, self.plan
        steps = plan.worlds * spec.turns * len(self.play_s[1:])
        made = {"learning": 0.0, "playing": 0.0}
        for agent, own in enumerate(herd_flops(plan, spec)):
            assert own is not None
            updates = float(self.learner.steps[agent]) * len(self.learn_s[1:]) / len(self.learn_s)
            made["playing"] += own.act * steps
            made["learning"] += own.learn_step * steps + own.learn_update * updates
        spent = {"learning": sum(self.learn_s[1:]), "playing": sum(self.play_s[1:])}
        return {name: made[name] / (spent[name] * peak_flops()) for name in made}

    def round(self, number: int) -> None:
        """Play and learn one round."""
        self.binding.policy.load(self.learner.rows(), number)
        began = time.thread_time()
        rollout = Rollout(self.game, [self.binding], RolloutConfig(self.plan.seed, self.plan.worlds))
        first = number * self.plan.worlds
        rollout.start(Task(tuple(range(first, first + self.plan.worlds))))
        fragments = rollout.play(rollout.empty_fragments())
        self.play_s.append(time.thread_time() - began)
        self.returns.append(sum(float(own.rewards.sum()) for own in fragments) / self.plan.worlds)
        began = time.thread_time()
        self.learner.take(self.learner.context.select(fragments))
        self.learner.update(self.plan.worlds)
        self.learn_s.append(time.thread_time() - began)


def line(name: str, readable: list[float], compiled: list[float]) -> str:
    """Medians per round, and the ratio of the sums with the spread of single rounds."""
    each = sorted(a / b for a, b in zip(readable, compiled, strict=True))
    low, high = each[len(each) // 10], each[-1 - len(each) // 10]
    return (
        f"    {name:8s} {1e3 * statistics.median(readable):8.1f} ms  {1e3 * statistics.median(compiled):8.1f} ms   "
        f"{sum(readable) / sum(compiled):6.2f}  ({low:.2f} to {high:.2f} in eight of ten rounds)"
    )


def train(title: str, rounds: int, settings: Mapping[str, Any]) -> None:
    """Train both forms in turn and print what their rounds took, without the first round."""
    forms = [Form.of(settings, compiled) for compiled in (False, True)]
    for number in range(rounds + 1):
        for form in forms:
            form.round(number)
    readable, compiled = forms
    print(f"  {title}, {rounds} rounds of {readable.plan.worlds} episodes: readable, compiled, ratio")
    print(line("learning", readable.learn_s[1:], compiled.learn_s[1:]))
    print(line("playing", readable.play_s[1:], compiled.play_s[1:]))
    whole = [[a + b for a, b in zip(form.play_s[1:], form.learn_s[1:], strict=True)] for form in forms]
    print(line("both", *whole), flush=True)
    for name, form in (("readable", readable), ("compiled", compiled)):
        print(f"    MFU {name}: {', '.join(f'{part} {share:.2f}' for part, share in form.mfu().items())}", flush=True)


def main(words: Sequence[str] = ()) -> None:
    """Print the tables."""
    keep_freed_memory()
    print(f"\nCompiled and readable forms, one core, processor seconds\n  {machine()}", flush=True)
    with one_thread_each():
        for title, (rounds, settings) in PLANS.items():
            if not words or any(word in title for word in words):
                train(title, rounds, settings)


if __name__ == "__main__":
    main(sys.argv[1:])
