"""One function for one agent, computed for many: stacked by `torch.func`, or one agent after the other.

Both have to give the same bits, because each engine slices a herd differently. So arguments of some shape are stacked
only after a test with random numbers of that shape in which every bit was equal. What the test says never changes a
result, only the time it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from remuda.core import rng
from remuda.core.rng import Stream

OneAgent = Callable[..., Any]
"""A function of one agent's tensors, or of tuples and dicts of them, that returns the same kind of thing."""


class HerdMap:
    """Maps a function over agents, which are the first axis of every tensor it is given."""

    def __init__(self, function: OneAgent, stackable: OneAgent | None = None, stack: bool = True) -> None:
        """`stackable` computes the same as `function` in a way that `torch.func.vmap` takes; default: the same."""
        self._function = function
        self._stacked = torch.func.vmap(stackable or function, randomness="error")
        self._stack = stack
        self._same_bits: dict[tuple[Any, ...], bool] = {}  # by the shapes of the arguments
        self.reason = "" if stack else "the option stack is false"
        """Why agents were computed one by one; empty if they were not."""

    def __call__(self, *arguments: Any) -> Any:
        """The results of all agents, stacked along a first axis."""
        return self._stacked(*arguments) if self.is_stacked(*arguments) else self.one_by_one(*arguments)

    def is_stacked(self, *arguments: Any) -> bool:
        """Whether arguments of these shapes are computed for all agents at once."""
        leaves = pytree.tree_leaves(arguments)
        if not self._stack or len(leaves[0]) == 1:
            return False
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if shapes not in self._same_bits:
            self._same_bits[shapes] = self._test(arguments)
        return self._same_bits[shapes]

    def _test(self, arguments: Any) -> bool:
        """Whether both ways give the same bits for random numbers of these shapes."""
        example = pytree.tree_map(_random_like, arguments)
        apart = pytree.tree_leaves(self.one_by_one(*example))
        try:
            together = pytree.tree_leaves(self._stacked(*example))
        except Exception as error:  # the user's function may do anything that torch.func cannot
            self.reason = f"torch.func cannot stack it: {(str(error) or type(error).__name__).splitlines()[0]}"
            return False
        same = all(_equal_bits(a, b) for a, b in zip(apart, together, strict=True))
        if not same:
            self.reason = "torch.func would compute other bits"
        return same

    def one_by_one(self, *arguments: Any) -> Any:
        """The results of all agents, computed one after the other."""
        agents = len(pytree.tree_leaves(arguments)[0])
        results = [self._function(*_of_agent(arguments, agent)) for agent in range(agents)]
        return pytree.tree_map(lambda *own: torch.stack(own), *results)


def _of_agent(arguments: Any, agent: int) -> Any:
    """One agent's part of the arguments.

    A clone begins at an aligned address, wherever the agent is in its slice: products of matrices at other addresses
    may have other bits.
    """
    return pytree.tree_map(lambda leaf: leaf[agent].clone(), arguments)


def _random_like(leaf: Tensor) -> Tensor:
    """Random numbers in place of floats; integers and flags stay as they are, because they may be indices."""
    if not leaf.is_floating_point():
        return leaf
    keys = rng.keys(rng.key(0, Stream.CHECK), len(leaf.shape))
    return torch.from_numpy(0.3 * rng.normals(keys, leaf.numel())).to(leaf).reshape(leaf.shape)


def _equal_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
