"""PPO for a herd: every agent its own actor and critic."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from remuda.core.fragment import Fragment
from remuda.core.game import Group
from remuda.core.learner import DenseFlops, Learner, LearnerContext, State
from remuda.core.options import Options
from remuda.core.policy import Policy
from remuda.learners.job_pool import JobPool
from remuda.learners.ppo.experience import generalised_advantages
from remuda.learners.ppo.inputs import NetworkInputs
from remuda.learners.ppo.learning import METRICS, Agents, RoundLearning, RoundSettings
from remuda.learners.ppo.minibatches import minibatch_count
from remuda.learners.ppo.moments import RunningMoments
from remuda.learners.ppo.network import PPONetwork
from remuda.learners.ppo.options import PPOOptions
from remuda.learners.ppo.policy import PPOPolicy
from remuda.learners.ppo.rounds import Round, gather_rounds
from remuda.learners.ppo.stacked import StackedLearning
from remuda.learners.ppo.tiled import TiledLearning, can_be_tiled
from remuda.learners.schedule import counts, schedule
from remuda.learners.stack import Adam, init_keys
from remuda.learners.transitions import find_transitions


class PPO(Learner):
    """PPO for neighbouring agents, each with its own actor, critic, optimiser and random streams.

    It learns `passes` times from each round. The plan's updates_per_episode only advances the schedules.
    """

    metrics = METRICS
    keeps_views = True
    incremental = False
    max_lag = 1  # stored log-probabilities correct for older data, and the clip bounds the correction

    def __init__(self, context: LearnerContext, options: PPOOptions) -> None:
        super().__init__(context, options)
        self.options: PPOOptions = options
        self.network = PPONetwork(context.group, options, context.precision, context.device)
        initial = self.network.initial_rows(init_keys(context.seed, context.agent_numbers))
        self.weights = torch.from_numpy(initial).to(context.device)
        self.adam = Adam(self.weights, options.beta2)
        self.updates = 0  # due so far by the plan: the clock of the schedules
        self._passes = counts("passes", options.passes, context.agent_numbers)  # per round, (agents,)
        self.passes = np.zeros(context.agents, np.int64)  # made so far: the clock of the random streams
        self.steps = np.zeros(context.agents, np.int64)
        self.returns = RunningMoments(context.agents, 1)
        self.inputs = NetworkInputs(self.network, context.agents)
        self._rate = schedule("lr", options.lr, context.agent_numbers)
        self._entropy = schedule("entropy", options.entropy, context.agent_numbers)
        self._gamma = schedule("gamma", options.gamma, context.agent_numbers, high=1.0)
        self.fragments: list[Fragment] = []  # taken since the last update
        self._report = self._empty_report()
        self.pool = JobPool(context.threads)
        self.tiled = can_be_tiled(self.network)
        """Whether the compiled form learns; tests and benchmarks set it to False for the readable one."""

    @classmethod
    def options_type(cls) -> type[Options]:
        """The class PPOOptions."""
        return PPOOptions

    @classmethod
    def make_policy(cls, group: Group, agents: int, options: Any, precision: str, device: str) -> Policy:
        """A PPOPolicy, before rows are loaded."""
        return PPOPolicy(group, agents, options, precision, device)

    @classmethod
    def dense_flops(cls, group: Group, options: Any, agent: int) -> DenseFlops | None:
        """Of actor and critic: one value per row before learning, then a gradient in each pass."""
        network = PPONetwork(group, options, "fp32", "cpu")
        if network.body_columns:
            return None
        passes = int(counts("passes", options.passes, np.array([agent]))[0])
        actor, critic = (network.dense_flops(name) for name in ("actor", "critic"))
        gradient = sum(3.0 * sum(layers) - layers[0] for layers in (actor, critic))  # none by the observations
        return DenseFlops(act=sum(actor), learn_step=passes * gradient + sum(critic), learn_update=0.0)

    def rows(self) -> NDArray[np.float32]:
        """Weights.

        If observations are normalised, mean and standard deviation are folded into the first layers. So the policy, and
        anyone who exports the network, uses plain observations.
        """
        weights = self.weights.clone()
        if self.options.normalise_observations:
            self.inputs.fold_into(self.network.layout.arrays(weights))
        return weights.cpu().numpy()

    def take(self, fragment: Fragment) -> None:
        """Keep the fragment until the next update."""
        assert fragment.actions.shape[2] == self.context.agents, "the fragment has other agents, too"
        self.fragments.append(fragment)

    def update(self, count: int) -> None:
        """Learn `passes` times from what was taken; `count` only advances the schedules."""
        rounds = gather_rounds(self.fragments, self.context.in_turn, self.network, self.weights)
        self.fragments = []
        skipped, too_few = np.zeros((2, self.context.agents), np.int64)
        for own in rounds:
            learning = self.learning(own)
            self.fill_advantages(own, learning)
            here = slice(own.first, own.last)
            steps = self.options.steps_per_pass(own.count)
            if own.count < steps:
                too_few[here] = self._passes[here] * steps
                continue
            learned = learning.learn(self.round_settings())
            for name, column in learned.means.items():
                self._report[name][here] = column
            self.steps[here] += learned.made
            skipped[here] = self._passes[here] * minibatch_count(own.rows, self.options) - learned.made
        self.note_skipped_updates(skipped)
        self.note_skipped_updates(
            too_few, f"the round had fewer turns of theirs than minibatches={self.options.minibatches}"
        )
        if self.options.normalise_observations:  # after learning: this round was played with the old moments
            for own in rounds:
                for agent in range(own.first, own.last):
                    self.inputs.observe(agent, own.rows.stacks[agent - own.first], own.rows.states[agent - own.first])
        self.passes += self._passes
        self.updates += count
        self.thread_pool_cpu_s = self.pool.cpu_s

    def learning(self, own: Round) -> RoundLearning:
        """The way to learn from a round."""
        agents = Agents(self.context, self.options, self.network, self.weights, self.adam, self.inputs, self.pool)
        return TiledLearning(agents, own) if self.tiled else StackedLearning(agents, own)

    def fill_advantages(self, own: Round, learning: RoundLearning) -> None:
        """Write generalised advantages and returns to the rows of a round, and include the returns in their moments."""
        values, after = learning.values()
        moments = self.value_moments()
        gamma = self._gamma.at(self.updates, self.context.total_updates)
        rewards = own.rewards * np.float32(self.options.reward_scale)
        for place, agent in enumerate(range(own.first, own.last)):
            mean, std = moments[agent].astype(np.float32)
            plain, beyond, out = values[place] * std + mean, after[place] * std + mean, own.rows.advantages[place]
            generalised_advantages(
                rewards[place], plain, beyond, (own.terminated[place], own.cut_off[place]), own.elapsed[place],
                gamma[agent], self.options.gae_lambda, out,
            )  # fmt: skip
            own.rows.returns[place] = out + plain
            if np.isfinite(own.rows.returns[place]).all():
                self.returns.add(agent, own.rows.returns[place, :, None].astype(np.float64))

    def value_moments(self) -> NDArray[np.float64]:
        """Mean and standard deviation by which the critic's values are standardised, (agents, 2)."""
        if not self.options.normalise_values:
            return np.tile([0.0, 1.0], (self.context.agents, 1))
        mean, std = self.returns.mean_and_std()
        return np.concatenate([mean, np.maximum(std, 1e-6)], axis=1)

    def round_settings(self) -> RoundSettings:
        """What holds for all gradient steps of this round."""
        now = self.updates, self.context.total_updates
        return RoundSettings(
            self._rate.at(*now), self._entropy.at(*now), self.value_moments(), self._passes, self.passes
        )

    def planned_steps(self, count: int) -> NDArray[np.int64]:
        """Its own passes and minibatches, whose number may depend on the turns that were taken."""
        del count
        taken = [find_transitions(fragment, self.context.in_turn).learnable for fragment in self.fragments]
        rows = sum((own.sum(axis=(0, 1)) for own in taken), np.zeros(self.context.agents, np.int64))
        return self._passes * np.array([self.options.steps_per_pass(own) for own in rows.tolist()], np.int64)

    def report(self) -> dict[str, NDArray[np.float64]]:
        """Means over the gradient steps of the last round."""
        report, self._report = self._report, self._empty_report()
        return report

    def _empty_report(self) -> dict[str, NDArray[np.float64]]:
        return {name: np.full(self.context.agents, np.nan) for name in self.metrics}

    def skip(self, count: int) -> None:
        """Advance schedules and random streams; drop what was taken."""
        self.fragments = []
        self.passes += self._passes
        self.updates += count

    def state(self) -> State:
        """Weights, optimiser, moments and counters; between rounds there is nothing else."""
        agents = self.context.agents
        return {
            **self.adam.state(),
            "returns": self.returns.moments,
            "observed": self.inputs.observed.moments,
            **({"states": self.inputs.states.moments} if self.network.state_size else {}),
            "steps": self.steps,
            "updates": np.full(agents, self.updates, np.int64),
            "passes": self.passes,
        }

    def restore(self, state: State) -> None:
        """Become equal to the learner that `state` came from."""
        self.check_state(state)
        self.adam.restore(state)
        self.returns.moments[:] = state["returns"]
        self.inputs.observed.moments[:] = state["observed"]
        if self.network.state_size:
            self.inputs.states.moments[:] = state["states"]
        self.steps[:] = state["steps"]
        self.updates = int(state["updates"][0])
        self.passes[:] = state["passes"]

    def close(self) -> None:
        """End the thread pool."""
        self.pool.close()

    def memory_bytes(self) -> int:
        """A round of frame stacks, and four times the weights: network, two moments of the optimiser, gradient."""
        group, context = self.context.group, self.context
        stack = self.network.inputs * np.dtype(group.obs_dtype).itemsize
        if self.network.state_size:
            stack += self.network.state_size * np.dtype(group.state_dtype).itemsize
        rows = context.agents * context.turns * context.round_episodes
        return rows * (stack + 32) + 4 * self.weights.numel() * self.weights.element_size()
