"""Registers our games with one agent in Gymnasium. Importing this module is cheap.

    import gymnasium, remuda_envs
    env = gymnasium.make("remuda/cage2-v0")

or `gymnasium.make("remuda_envs:remuda/cage2-v0")` without an import. remuda itself, which imports torch, is imported
when an environment is made.
"""

from __future__ import annotations

from typing import Any

from gymnasium.envs.registration import register, registry

ENVS: dict[str, dict[str, Any]] = {
    "remuda/cage2-v0": {"game": "cage2"},
    "remuda/treasurehunt-v0": {"game": "treasurehunt", "agents": 1},
}


def register_envs() -> None:
    """Register our games for `gymnasium.make` and `gymnasium.make_vec`; names already registered are skipped."""
    for name, settings in ENVS.items():
        if name not in registry:
            register(
                id=name,
                entry_point="remuda.adapters.outbound.gymnasium:WorldEnv",
                vector_entry_point="remuda.adapters.outbound.gymnasium:WorldsEnv",
                kwargs=settings,
            )


register_envs()
