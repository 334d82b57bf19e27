"""Slots of shared memory for fragments. Each slot has exactly one owner at a time; a token passes it on.

Only the owner of a slot reads or writes it. So no lock is needed, and nobody reads what another is writing. The table
of owners lives in the process that made the slots, and decides: the slots of a dead owner are reclaimed. A message of
the dead owner may still be in its pipe. Its token is refused, because a freed slot gets a new serial number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from remuda.core.errors import OrderError
from remuda.core.fragment import Fragment, FragmentLayout, Origin, slice_worlds
from remuda.core.game import GameSpec
from remuda.core.policy import PolicyBinding
from remuda.core.task import Task
from remuda.rollout.config import RolloutConfig, fragment_layout
from remuda.transport.shared_memory import ArrayField, SharedMemory, plan_fields

OF_A_TURN = ("keys", "memory_now")
"""Arrays of a slot that are not part of a fragment: lockstep workers pass them with a request for actions."""


@dataclass(frozen=True)
class SlotToken:
    """The right to use a slot. Every time a slot is freed its serial number changes, so old tokens are recognised."""

    slot: int
    serial: int


@dataclass(frozen=True)
class GroupLayout:
    """Where the arrays of one group's fragment lie within a slot."""

    fragment: FragmentLayout
    fields: dict[str, ArrayField]  # by name; also `keys` and `memory_now`, which belong to the current turn


@dataclass(frozen=True)
class SlotLayout:
    """How a slot is divided: space for `worlds` whole episodes of every group."""

    worlds: int
    slot_bytes: int
    groups: tuple[GroupLayout, ...]

    @classmethod
    def of(cls, spec: GameSpec, bindings: Sequence[PolicyBinding], worlds: int) -> SlotLayout:
        """The layout for a game and the policies that play it."""
        layouts = [fragment_layout(bindings, g) for g in range(len(spec.groups))]
        arrays: list[tuple[str, tuple[int, ...], Any]] = []
        for g, (group, layout) in enumerate(zip(spec.groups, layouts, strict=True)):
            named = layout.arrays(group, spec.turns, worlds)
            named["keys"] = ((worlds, group.size), np.uint64)
            if layout.memory:
                named["memory_now"] = named["memory"]
            arrays += [(f"{g}/{name}", shape, dtype) for name, (shape, dtype) in named.items()]
        fields, size = plan_fields(arrays)
        groups = []
        for g, layout in enumerate(layouts):
            prefix = f"{g}/"
            of_group = {name.removeprefix(prefix): field for name, field in fields.items() if name.startswith(prefix)}
            groups.append(GroupLayout(layout, of_group))
        return cls(worlds, size, tuple(groups))


class SlotArray:
    """The memory of all slots: collectors fill them, trainers read them. Pickled for a worker it is a descriptor."""

    def __init__(self, layout: SlotLayout, count: int) -> None:
        self.layout = layout
        self.count = count
        self.memory = SharedMemory(layout.slot_bytes * count)

    def fragments(self, slot: int, task: Task, config: RolloutConfig, turns: int | None = None) -> list[Fragment]:
        """A slot as the fragments of a task, one per group, cut to its worlds and to `turns` turns; views."""
        if len(task.episodes) > self.layout.worlds:
            raise OrderError(f"a slot holds {self.layout.worlds} episodes, this task has {len(task.episodes)}")
        episodes = np.array(task.episodes, np.int64)
        fragments = []
        for g, group in enumerate(self.layout.groups):
            origin = Origin(g, episodes % config.worlds, episodes, 0, task.purpose)
            fragments.append(self._fragment(slot, group, origin, turns))
        return fragments

    def _fragment(self, slot: int, group: GroupLayout, origin: Origin, turns: int | None) -> Fragment:
        base = slot * self.layout.slot_bytes
        arrays = {name: field.view(self.memory, base) for name, field in group.fields.items() if name not in OF_A_TURN}
        return slice_worlds(group.fragment.fragment(origin, arrays), slice(len(origin.episodes)), turns)

    def keys(self, slot: int, group: int, worlds: int) -> Any:
        """The random keys of the current turn, (worlds, agents): a worker requests actions with them."""
        return self._of_a_turn("keys", slot, group, worlds)

    def memory_now(self, slot: int, group: int, worlds: int) -> Any:
        """The recurrent states of the current turn, (worlds, agents, numbers): read and updated by who acts."""
        return self._of_a_turn("memory_now", slot, group, worlds)

    def _of_a_turn(self, name: str, slot: int, group: int, worlds: int) -> Any:
        return self.layout.groups[group].fields[name].view(self.memory, slot * self.layout.slot_bytes)[:worlds]


class SlotOwners:
    """The table of who owns which slot. It lives in one process, and only its methods change an owner."""

    def __init__(self, count: int) -> None:
        self.peak = 0  # most slots in use at once
        self._owner: list[str | None] = [None] * count
        self._serial = [0] * count
        self._free = deque(range(count))

    @property
    def free(self) -> int:
        """Slots without an owner."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Slots with an owner."""
        return len(self._owner) - len(self._free)

    def acquire(self, owner: str) -> SlotToken:
        """Make `owner` the owner of a free slot; check `free` first."""
        if not self._free:
            raise OrderError("no slot is free: wait until one is released")
        slot = self._free.popleft()
        self._owner[slot] = owner
        self.peak = max(self.peak, self.used)
        return SlotToken(slot, self._serial[slot])

    def holds(self, token: SlotToken, owner: str) -> bool:
        """Whether the token is current and `owner` owns its slot."""
        return self._serial[token.slot] == token.serial and self._owner[token.slot] == owner

    def transfer(self, token: SlotToken, owner: str, to: str) -> None:
        """Pass a slot from its owner to another; the token stays valid."""
        self._check(token, owner)
        self._owner[token.slot] = to

    def release(self, token: SlotToken, owner: str) -> None:
        """Free a slot; its token is worthless from now on."""
        self._check(token, owner)
        self._owner[token.slot] = None
        self._serial[token.slot] += 1
        self._free.append(token.slot)

    def reclaim(self, owner: str) -> int:
        """Free all slots of an owner that is dead; returns how many.

        Call it only when the process has ended: until then it may still write.
        """
        slots = [slot for slot, name in enumerate(self._owner) if name == owner]
        for slot in slots:
            self.release(SlotToken(slot, self._serial[slot]), owner)
        return len(slots)

    def _check(self, token: SlotToken, owner: str) -> None:
        if not self.holds(token, owner):
            raise OrderError(
                f"slot {token.slot} (serial {token.serial}) is not {owner}'s: {self._owner[token.slot]} has it"
            )
