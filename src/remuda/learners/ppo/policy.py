"""The policy of PPO: samples from the actor and stores the log-probability of the action."""

from __future__ import annotations

from threading import get_ident
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remuda.core import rng
from remuda.core.game import Group
from remuda.core.kernels import kernel
from remuda.core.policy import PolicyInput, PolicyOutput, explore, random_actions
from remuda.core.rng import uniform, uniforms
from remuda.learners.devices import to_device
from remuda.learners.distinct import WORD, distinct_rows
from remuda.learners.ppo.actions import MIN_PROB, Head
from remuda.learners.ppo.network import PPONetwork
from remuda.learners.ppo.options import PPOOptions
from remuda.learners.ppo.output_cache import ABSENT, OutputCache, fill_keys, take_rows
from remuda.learners.recurrent import memory_rows
from remuda.learners.stack import MIN_ROWS, StackedPolicy, chunks, padded, stack_frames

LOG_PROB = "log_prob"
DRAW = "draw"
"""Name of continuous actions before they are squashed, among the extras."""


class PPOPolicy(StackedPolicy):
    """Samples from the actor and stores the log-probability. The critic runs only when the learner learns."""

    extras: tuple[str, ...] = (LOG_PROB,)

    def __init__(self, group: Group, agents: int, options: PPOOptions, precision: str, device: str) -> None:
        self.network = PPONetwork(group, options, precision, device)
        super().__init__(group, agents, self.network.layout, 0, device)
        self.frames = options.frames
        self.reads_state = options.critic != "obs"
        self.memory_size = self.network.memory_size
        plain = self.network.head is None and not self.network.body_columns
        self.uses_tables = plain and self.network.device.type == "cpu"
        """Whether known observations are looked up; tests and benchmarks set it to False. No result depends on it."""
        self.tables: dict[tuple[int, int], OutputCache] = {}  # by thread and agent: threads play other worlds
        self._row_versions = [0] * agents  # how often each agent's row has changed
        if self.network.head is not None and self.network.head.stored_size:
            self.extras = (LOG_PROB, DRAW)
            self.extra_shapes = {DRAW: (self.network.head.stored_size,)}

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        """Sample actions; if `inputs.exploration` is given, take the likeliest ε-greedily instead."""
        if self.network.head is not None:
            return self._act_with_head(self.network.head, inputs, first)
        worlds, agents = inputs.keys.shape
        probs = np.empty((worlds, agents, self.group.actions), np.float32)
        memory = self._empty_memory(inputs)
        if not (self.uses_tables and self._fill_from_tables(inputs, first, probs)):
            for low, high in chunks(agents, self.network.row_bytes(max(worlds, MIN_ROWS))):
                self._fill_probabilities(inputs, low, high, first, probs, memory)
        if inputs.exploration is None:
            actions = np.empty((worlds, agents), np.int64)
            sample(probs, inputs.keys, actions)
        else:
            epsilon = np.full(agents, inputs.exploration)
            actions = explore(probs.argmax(axis=2), epsilon, inputs, self.group.actions)
        log_probs = np.empty((worlds, agents), np.float32)
        log_probabilities(probs, actions, log_probs)
        return PolicyOutput(actions, {LOG_PROB: log_probs}, memory)

    def load(self, rows: NDArray[np.float32], versions: int | NDArray[np.int64]) -> None:
        """Use published rows; what tables know of rows that changed is evaluated again when they are used."""
        if self.uses_tables:
            for agent in np.flatnonzero((rows != self._rows).any(axis=1)):
                self._row_versions[agent] += 1
        super().load(rows, versions)

    def _fill_from_tables(self, inputs: PolicyInput, first: int, probs: NDArray[np.float32]) -> bool:
        """Write probabilities to `probs` (worlds, agents, actions) if tables pay for all agents; whether they do."""
        tables = [self._table(first + agent) for agent in range(probs.shape[1])]
        if not all(table.pays for table in tables):
            return False
        frames, worlds, agents = inputs.obs.shape[:3]
        seen = inputs.obs.reshape(frames, worlds, agents, -1).view(np.uint8)
        mask = np.zeros((worlds, agents, 0), np.bool_) if inputs.mask is None else inputs.mask
        for agent, table in enumerate(tables):
            if len(table.kept):
                table.add(table.kept, self._answers(first + agent, table.kept))
                table.kept = table.kept[:0]
            keys = np.zeros((worlds, table.keys.shape[1]), np.uint64)
            fill_keys(seen, inputs.ages, mask, agent, self._key_columns, keys.view(np.uint8))
            places = table.find(keys)
            missing = np.flatnonzero(places == ABSENT)
            if len(missing):
                distinct = distinct_rows(keys[missing])
                answers = self._answers(first + agent, keys[missing[distinct.firsts]])
                table.add(keys[missing[distinct.firsts]], answers)
                probs[missing, agent] = answers[distinct.numbers]
            take_rows(table.answers, places, probs[:, agent])
        return True

    @property
    def _key_columns(self) -> int:
        """Bytes of a key that hold the frames, a multiple of 8."""
        return self.network.inputs * np.dtype(self.group.obs_dtype).itemsize

    def _table(self, agent: int) -> OutputCache:
        """This thread's table of an agent, for its present row."""
        place = (get_ident(), agent)
        if place not in self.tables:
            mask_bytes = padded(self.group.actions) if self.group.masked else 0
            self.tables[place] = OutputCache((self._key_columns + mask_bytes) // WORD, self.group.actions)
        table = self.tables[place]
        if table.version != self._row_versions[agent]:
            table.begin(self._row_versions[agent])
        return table

    @torch.no_grad()
    def _answers(self, agent: int, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """The probabilities of all actions for keys (rows, words): (rows, actions)."""
        network, columns, rows = self.network, self._key_columns, len(keys)
        stacks = np.ascontiguousarray(keys.view(np.uint8)[:, :columns]).view(self.group.obs_dtype)
        x = stack_frames(stacks[None, :, None], np.zeros((rows, 1), np.int64), network.scale, network.inputs)
        mask = None
        if self.group.masked:
            allowed = keys.view(np.uint8)[None, :, columns : columns + network.actions] != 0
            mask = torch.from_numpy(allowed)
        logits = network.logits(self.agent_arrays(agent, agent + 1), x, mask)
        answers: NDArray[np.float32] = logits.softmax(dim=2)[0, :rows, : network.actions].numpy()
        return answers

    def _empty_memory(self, inputs: PolicyInput) -> NDArray[np.float32] | None:
        """Space for the next recurrent states, (worlds, agents, numbers), if there are any."""
        return np.empty((*inputs.keys.shape, self.memory_size), np.float32) if self.memory_size else None

    def _features(self, inputs: PolicyInput, low: int, high: int, first: int, memory: NDArray[Any] | None) -> Tensor:
        """What the actors of agents low … high-1 see; writes their next recurrent states to `memory`."""
        network = self.network
        x = stack_frames(inputs.obs[:, :, low:high], inputs.ages[:, low:high], network.scale, network.inputs)
        before = None
        if inputs.memory is not None and memory is not None:
            before = memory_rows(inputs.memory[:, low:high]).to(network.device)
        arrays = self.agent_arrays(first + low, first + high)
        x, after = network.features(arrays, x.to(network.device), before)
        if memory is not None and after is not None:
            memory[:, low:high] = after[:, : len(memory)].transpose(0, 1).cpu().numpy()
        return x

    def _act_with_head(self, head: Head, inputs: PolicyInput, first: int) -> PolicyOutput:
        """Draw actions that are not Discrete; if `inputs.exploration` is given, take the likeliest ε-greedily."""
        worlds, agents = inputs.keys.shape
        outputs, memory = np.empty((worlds, agents, head.outputs), np.float32), self._empty_memory(inputs)
        for low, high in chunks(agents, self.network.row_bytes(max(worlds, MIN_ROWS))):
            self._fill_outputs(inputs, low, high, first, outputs, memory)
        spread = self.network.spread(self.agent_arrays(first, first + agents)).cpu().numpy()
        draw = head.draw(outputs, spread, inputs.keys, greedy=inputs.exploration is not None)
        actions, extras = draw.actions, {LOG_PROB: draw.log_probs}
        if inputs.exploration:
            explores = uniforms(rng.keys(inputs.keys, 0), 1)[:, :, 0] < inputs.exploration
            actions[explores] = random_actions(self.group, rng.keys(inputs.keys, 1))[explores]
        if draw.stored is not None:
            extras[DRAW] = draw.stored
        return PolicyOutput(actions, extras, memory)

    @torch.no_grad()
    def _fill_outputs(
        self, inputs: PolicyInput, low: int, high: int, first: int, outputs: NDArray[Any], memory: NDArray[Any] | None
    ) -> None:
        """Write the outputs of the actors of agents low … high-1 to `outputs` (worlds, agents, outputs)."""
        network, worlds = self.network, len(inputs.keys)
        x = self._features(inputs, low, high, first, memory)
        own = network.forward(self.agent_arrays(first + low, first + high), "actor", x)
        outputs[:, low:high] = own[:, :worlds, : outputs.shape[2]].transpose(0, 1).cpu().numpy()

    @torch.no_grad()
    def _fill_probabilities(
        self, inputs: PolicyInput, low: int, high: int, first: int, probs: NDArray[Any], memory: NDArray[Any] | None
    ) -> None:
        """Write the probabilities by the actors of agents low … high-1 to `probs` (worlds, agents, actions)."""
        network, worlds = self.network, len(inputs.keys)
        x = self._features(inputs, low, high, first, memory)
        mask = None
        if inputs.mask is not None:
            mask = to_device(inputs.mask[:, low:high], network.device).transpose(0, 1)
        logits = network.logits(self.agent_arrays(first + low, first + high), x, mask)
        own = logits.softmax(dim=2)[:, :worlds, : network.actions]
        probs[:, low:high] = own.transpose(0, 1).cpu().numpy()


@kernel
def sample(probs: Any, keys: Any, out: Any) -> None:
    """Sample one action per world and agent from `probs` (worlds, agents, actions)."""
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            total = 0.0
            for i in range(probs.shape[2]):
                total += probs[w, a, i]
            left = uniform(keys[w, a], 0) * total
            action = 0
            for i in range(probs.shape[2]):
                if probs[w, a, i] > 0.0:
                    action = i
                    left -= probs[w, a, i]
                    if left < 0.0:
                        break
            out[w, a] = action


@kernel
def log_probabilities(probs: Any, actions: Any, out: Any) -> None:
    """Log-probabilities of the chosen actions, (worlds, agents)."""
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            out[w, a] = np.log(max(probs[w, a, actions[w, a]], MIN_PROB))
