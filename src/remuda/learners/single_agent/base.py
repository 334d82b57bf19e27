"""What learners for one agent have in common: weights, optimiser, schedules, report and state of the whole herd."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remuda.core.errors import ConfigError, message_of, place_of, user_frame
from remuda.core.game import Group
from remuda.core.learner import Learner, LearnerContext, State
from remuda.core.options import Options
from remuda.learners.devices import to_device
from remuda.learners.schedule import PerAgent, Schedule, per_agent_options, schedule
from remuda.learners.single_agent.module import AgentModule
from remuda.learners.single_agent.options import SingleAgentOptions
from remuda.learners.single_agent.stacking import HerdMap
from remuda.learners.stack import MIN_ROWS, Adam, chunks, init_keys

SHARES = ("gamma", "epsilon")
"""Per-agent options that are at most 1."""
LEARNERS = "remuda.learners."
WRITTEN_BY_AUTHORS = ("network", "loss", "q_values", "logits_and_values", "options_class")
LossTerms = Tensor | tuple[Tensor, dict[str, Tensor]]
"""What `loss` returns: one number, or that and metrics by name."""


class NoGradient(RuntimeError):
    """The loss does not depend on the weights."""


CERTAIN = (AttributeError, NameError, TypeError, NoGradient)
"""Errors that a loss raises whatever the numbers in its batch are."""


def agent_module(learner: type[SingleAgentLearner], group: Group, options: Any) -> AgentModule:
    """The network that a learner makes for an agent of this group."""
    group.require_discrete(learner.__name__)
    example = torch.zeros((MIN_ROWS, options.frames, *group.obs_shape))
    return AgentModule(learner.__name__, lambda: learner.network(group, options), example)


class SingleAgentLearner(Learner):
    """A learner whose author writes a network and a loss for one agent; agents never meet in them."""

    options_class: ClassVar[type[SingleAgentOptions]]
    """The class of the options; a subclass adds its own fields to it."""
    metrics: tuple[str, ...] = ("loss", "grad_norm")

    def __init__(self, context: LearnerContext, options: Any) -> None:
        super().__init__(context, options)
        self.module = agent_module(type(self), context.group, options)
        initial = self.module.initial_rows(init_keys(context.seed, context.agent_numbers))
        self.weights = torch.from_numpy(initial).to(context.device)
        self.adam = Adam(self.weights)
        self.updates = 0  # due so far, also those that an agent did not make: the clock of schedules and random streams
        self.steps = np.zeros(context.agents, np.int64)
        self._schedules = _schedules(options, context.agent_numbers)
        self._gradients = HerdMap(self._gradient, self._stackable_gradient, options.stack)
        self._reset_sums()

    @staticmethod
    @abstractmethod
    def network(group: Group, options: Any) -> nn.Module:
        """A new network for one agent of the group. Its input is (rows, frames, *group.obs_shape), float32."""

    @classmethod
    def options_type(cls) -> type[Options]:
        """`options_class`."""
        return cls.options_class

    @abstractmethod
    def _loss(self, nets: list[nn.Module], batch: Any, options: Any) -> LossTerms:
        """The user's loss."""

    @property
    def stacking(self) -> str:
        """Whether agents are computed together, and if not, why."""
        return f"one by one: {self._gradients.reason}" if self._gradients.reason else "stacked by torch.func"

    @abstractmethod
    def _example(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Weights, and a batch of zeros, as a gradient step gets them."""

    def try_stacking(self) -> str:
        """`stacking` before the first update: a test with random numbers, as each new shape of a batch gets one.

        Whatever the user's loss raises is raised here; ConfigError if it does not return what it should, or raises
        what it would raise with any batch.
        """
        try:
            self._try_stacking()
        except CERTAIN as error:
            if self._learns_in_its_own_way():
                raise
            raise ConfigError(self._refusal(error)) from error
        return self.stacking

    def _try_stacking(self) -> None:
        values = {name: torch.zeros(self.context.agents, device=self.weights.device) for name in self._schedules}
        example = (*self._example(), values)
        if self.context.agents == 1 or not self.options.stack:
            self._gradients.one_by_one(*example)
        else:
            self._gradients.is_stacked(*example)

    def _learns_in_its_own_way(self) -> bool:
        """Whether a subclass replaces a method of remuda's: then its loss may get other batches than `_example`."""
        kinds = type(self).__mro__
        theirs = [*takewhile(lambda kind: not kind.__module__.startswith(LEARNERS), kinds)]
        ours = {name for kind in kinds[len(theirs) :] for name, own in vars(kind).items() if callable(own)}
        replaced = {name for kind in theirs for name in vars(kind)} & ours - {*WRITTEN_BY_AUTHORS}
        return any(not name.startswith("__") for name in replaced)

    def _refusal(self, error: Exception) -> str:
        """One sentence about an error of the loss, with a line of the user's code."""
        said = str(error) if isinstance(error, NoGradient) else f"raised {type(error).__name__}: {message_of(error)}"
        code = getattr(getattr(self, "loss", None), "__code__", None)
        own = f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""
        return f"the loss of {type(self).__name__} {said}{place_of(error) if user_frame(error) else own}"

    def _gradient(self, rows: tuple[Tensor, ...], batch: Any, values: dict[str, Tensor]) -> Any:
        """Gradient, loss and metrics of one agent; `rows` are its weights and, where there is one, its target's."""
        own = rows[0].detach().requires_grad_()
        terms = self._terms((own, *rows[1:]), batch, values)
        if not terms["loss"].requires_grad:
            raise NoGradient("has no gradient: compute it from what the network returns, without detach() or no_grad()")
        (gradient,) = torch.autograd.grad(terms["loss"], own)
        return gradient, {name: term.detach() for name, term in terms.items()}

    def _stackable_gradient(self, rows: tuple[Tensor, ...], batch: Any, values: dict[str, Tensor]) -> Any:
        """`_gradient` in the form that `torch.func.vmap` takes."""

        def loss(own: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            terms = self._terms((own, *rows[1:]), batch, values)
            return terms["loss"], {name: term.detach() for name, term in terms.items()}

        return torch.func.grad(loss, has_aux=True)(rows[0])

    def _terms(self, rows: tuple[Tensor, ...], batch: Any, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """The loss and the metrics of one agent, by name."""
        options = SimpleNamespace(**{**dict(self.options), **values})

        def loss(*arguments: Any) -> LossTerms:
            return self._loss(list(arguments[:-1]), arguments[-1], options)

        with autocast(self.context.precision, self.context.device):
            found = self.module.call(loss, rows, batch)
        total, metrics = found if isinstance(found, tuple) else (found, {})
        if not isinstance(total, Tensor) or total.shape != ():
            shape = tuple(total.shape) if isinstance(total, Tensor) else type(total).__name__
            raise ConfigError(
                f"the loss of {type(self).__name__} should be one number, a tensor of shape (), not {shape}: "
                "return its mean over the rows"
            )
        if {*metrics, "loss", "grad_norm"} != {*self._computed}:
            own = "".join(f', "{name}"' for name in metrics) or ","
            base = next(kind.__name__ for kind in type(self).__mro__ if kind.__module__.startswith(LEARNERS))
            raise ConfigError(
                f"loss() of {type(self).__name__} returns the metrics {sorted(metrics)}, but its class has metrics = "
                f"{self.metrics}: write metrics = (*remuda.{base}.metrics{own})"
            )
        return {"loss": total.float(), **{name: torch.as_tensor(value).float() for name, value in metrics.items()}}

    @property
    def _computed(self) -> tuple[str, ...]:
        """Metrics that come from the loss."""
        return self.metrics

    def _step(self, first: int, last: int, rows: tuple[Tensor, ...], batch: Any, clock: int) -> NDArray[np.bool_]:
        """One gradient step for agents first … last-1; returns which of them made it, (last-first,)."""
        now = {name: own.at(clock, self.context.total_updates)[first:last] for name, own in self._schedules.items()}
        values = {name: to_device(own.astype(np.float32), self.weights.device) for name, own in now.items()}
        gradients, terms = self._gradients(rows, batch, values)
        with torch.no_grad():
            terms["grad_norm"] = self.adam.step(first, last, gradients, now["lr"], self.options.grad_clip)
        made: NDArray[np.bool_] = torch.isfinite(terms["grad_norm"]).cpu().numpy()
        for name, term in terms.items():
            self._sums[name][first:last] += np.where(made, term.cpu().numpy(), 0.0)
        self._made[first:last] += made
        self.steps[first:last] += made
        return made

    def _chunks(self, agents: int, rows: int) -> Iterator[tuple[int, int]]:
        """Ranges of agents whose activations for so many rows fit into the cache together."""
        return chunks(agents, activation_bytes(self.module, rows))

    def report(self) -> dict[str, NDArray[np.float64]]:
        """Means over the gradient steps since the last report."""
        each = np.where(self._made > 0, self._made, np.nan)
        result = {name: sums / each for name, sums in self._sums.items()}
        self._reset_sums()
        return result

    def _reset_sums(self) -> None:
        self._sums = {name: np.zeros(self.context.agents) for name in self._computed}
        self._made = np.zeros(self.context.agents, np.int64)

    def state(self) -> State:
        """Weights, optimiser and counters."""
        return {
            **self.adam.state(),
            "steps": self.steps,
            "updates": np.full(self.context.agents, self.updates, np.int64),
        }

    def restore(self, state: State) -> None:
        """Become equal to the learner that `state` came from."""
        self.check_state(state)
        self.adam.restore(state)
        self.steps[:] = state["steps"]
        self.updates = int(state["updates"][0])


def _schedules(options: Any, agent_numbers: NDArray[np.int64]) -> dict[str, Schedule]:
    """The options that may differ per agent and change over the run, by name."""
    return {
        name: schedule(name, getattr(options, name), agent_numbers, high=1.0 if name in SHARES else math.inf)
        for name in per_agent_options(type(options), PerAgent)
    }


def activation_bytes(module: AgentModule, rows: int) -> int:
    """About how many bytes the activations of one agent take: every layer has a bias as wide as its output."""
    widths = sum(entry.size for entry in module.layout.entries if len(entry.shape) == 1)
    return 4 * 4 * rows * widths


@cache
def _device_type(device: str) -> str:
    return torch.device(device).type


def autocast(precision: str, device: str) -> torch.autocast:
    """Where matrix products are computed in bf16, if that is the precision."""
    return torch.autocast(_device_type(device), torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)
