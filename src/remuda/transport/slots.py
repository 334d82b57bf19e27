"""Slots of shared memory for fragments: exactly one owner each, handed on by a token.

Whoever owns a slot may write it, nobody else touches it; so nothing needs a lock and nothing is torn.
The table of owners is kept by the process that made the slots and is the truth: what a dead owner held
is reclaimed, and its token, should it still arrive, is recognised by its serial number and refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from remuda.core.errors import OrderError
from remuda.core.fragment import Fragment, Origin
from remuda.core.game import GameSpec
from remuda.core.policy import PolicyBinding
from remuda.core.task import Task
from remuda.rollout.config import RolloutConfig, max_frames
from remuda.transport.shared_memory import ArrayField, SharedMemory, plan_fields


@dataclass(frozen=True)
class SlotToken:
    """The right to a slot. A slot that is handed out anew has a new serial number."""

    slot: int
    serial: int


@dataclass(frozen=True)
class GroupLayout:
    """Where the arrays of one group's fragment lie within a slot."""

    before: int
    fields: dict[str, ArrayField]
    extras: tuple[str, ...]


@dataclass(frozen=True)
class SlotLayout:
    """How a slot is divided: room for `worlds` whole episodes of every group."""

    worlds: int
    slot_bytes: int
    groups: tuple[GroupLayout, ...]

    @classmethod
    def of(cls, spec: GameSpec, bindings: Sequence[PolicyBinding], worlds: int) -> SlotLayout:
        """The layout for a game and whoever plays it."""
        arrays: list[tuple[str, tuple[int, ...], Any]] = []
        shapes = []
        for g, group in enumerate(spec.groups):
            extras = tuple(
                sorted({name for binding in bindings if binding.group == g for name in binding.policy.extras})
            )
            before = max_frames(bindings, g) - 1
            turn = (spec.turns, worlds, group.size)
            own = [
                ("obs", (before + spec.turns + 1, worlds, group.size, *group.obs_shape), group.obs_dtype),
                ("actions", turn, np.int64),
                ("rewards", turn, np.float32),
                ("terminated", turn, np.bool_),
                ("truncated", turn, np.bool_),
                ("alive", turn, np.bool_),
                ("ages", turn, np.int64),
                ("versions", (spec.turns, group.size), np.int64),
                ("metrics", (worlds, group.size, len(group.metrics)), np.float32),
                ("keys", (worlds, group.size), np.uint64),
                *((f"extras.{name}", turn, np.float32) for name in extras),
                *([("mask", (spec.turns + 1, worlds, group.size, group.actions), np.bool_)] if group.masked else []),
            ]
            arrays += [(f"{g}/{name}", shape, dtype) for name, shape, dtype in own]
            shapes.append((before, extras))
        fields, size = plan_fields(arrays)
        groups = []
        for g, (before, extras) in enumerate(shapes):
            prefix = f"{g}/"
            own_fields = {n.removeprefix(prefix): f for n, f in fields.items() if n.startswith(prefix)}
            groups.append(GroupLayout(before, own_fields, extras))
        return cls(worlds, size, tuple(groups))


class SlotArray:
    """The slots as memory: what collectors fill and trainers read. Goes to other processes as a descriptor."""

    def __init__(self, layout: SlotLayout, count: int) -> None:
        self.layout = layout
        self.count = count
        self.memory = SharedMemory(layout.slot_bytes * count)

    def fragments(self, slot: int, task: Task, config: RolloutConfig, turns: int | None = None) -> list[Fragment]:
        """The slot as fragments of this task, cut to its worlds and to `turns` turns."""
        if len(task.episodes) > self.layout.worlds:
            raise OrderError(f"a slot has room for {self.layout.worlds} episodes, not for {len(task.episodes)}")
        episodes = np.array(task.episodes, np.int64)
        fragments = []
        for g, group in enumerate(self.layout.groups):
            origin = Origin(g, episodes % config.worlds, episodes, 0, task.purpose)
            fragments.append(self._fragment(slot, group, origin, turns))
        return fragments

    def _fragment(self, slot: int, group: GroupLayout, origin: Origin, turns: int | None) -> Fragment:
        worlds = len(origin.episodes)
        base = slot * self.layout.slot_bytes
        arrays = {name: field.view(self.memory, base) for name, field in group.fields.items()}
        n = len(arrays["actions"]) if turns is None else turns
        return Fragment(
            origin=origin,
            before=group.before,
            obs=arrays["obs"][: group.before + n + 1, :worlds],
            actions=arrays["actions"][:n, :worlds],
            rewards=arrays["rewards"][:n, :worlds],
            terminated=arrays["terminated"][:n, :worlds],
            truncated=arrays["truncated"][:n, :worlds],
            alive=arrays["alive"][:n, :worlds],
            ages=arrays["ages"][:n, :worlds],
            versions=arrays["versions"][:n],
            metrics=arrays["metrics"][:worlds],
            mask=arrays["mask"][: n + 1, :worlds] if "mask" in arrays else None,
            extras={name: arrays[f"extras.{name}"][:n, :worlds] for name in group.extras},
        )

    def keys(self, slot: int, group: int, worlds: int) -> Any:
        """The keys of a turn's chance, (worlds, agents): whoever fills the slot asks for actions with them."""
        field = self.layout.groups[group].fields["keys"]
        return field.view(self.memory, slot * self.layout.slot_bytes)[:worlds]


class SlotOwners:
    """The table of who owns which slot. Kept in one process; the methods are the only way a slot changes hands."""

    def __init__(self, count: int) -> None:
        self.peak = 0  # most slots in use at once
        self._owner: list[str | None] = [None] * count
        self._serial = [0] * count
        self._free = deque(range(count))

    @property
    def free(self) -> int:
        """Slots nobody owns."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Slots somebody owns."""
        return len(self._owner) - len(self._free)

    def lend(self, owner: str) -> SlotToken:
        """Give a free slot to somebody; check `free` first."""
        if not self._free:
            raise OrderError("no slot is free: wait for one to come back")
        slot = self._free.popleft()
        self._owner[slot] = owner
        self.peak = max(self.peak, self.used)
        return SlotToken(slot, self._serial[slot])

    def holds(self, token: SlotToken, owner: str) -> bool:
        """Whether the token is still good and its holder is who they say."""
        return self._serial[token.slot] == token.serial and self._owner[token.slot] == owner

    def move(self, token: SlotToken, owner: str, to: str) -> None:
        """Hand a slot on."""
        self._check(token, owner)
        self._owner[token.slot] = to

    def give_back(self, token: SlotToken, owner: str) -> None:
        """Free a slot."""
        self._check(token, owner)
        self._owner[token.slot] = None
        self._serial[token.slot] += 1
        self._free.append(token.slot)

    def reclaim(self, owner: str) -> int:
        """Free whatever somebody owned who is no more; returns how many slots that were."""
        lost = [slot for slot, name in enumerate(self._owner) if name == owner]
        for slot in lost:
            self.give_back(SlotToken(slot, self._serial[slot]), owner)
        return len(lost)

    def _check(self, token: SlotToken, owner: str) -> None:
        if not self.holds(token, owner):
            raise OrderError(
                f"slot {token.slot} (serial {token.serial}) is not {owner}'s: {self._owner[token.slot]} has it"
            )
