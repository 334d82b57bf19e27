"""Our games with one agent, by name, for Gymnasium: importing this is cheap, and registers them.

    import gymnasium, remuda_envs
    env = gymnasium.make("remuda/cage2-v0")

or `gymnasium.make("remuda_envs:remuda/cage2-v0")` without an import. remuda itself, with torch, is imported when an
environment is made.
"""

from __future__ import annotations

from typing import Any

from gymnasium.envs.registration import register, registry

ENVS: dict[str, dict[str, Any]] = {
    "remuda/cage2-v0": {"game": "cage2"},
    "remuda/treasurehunt-v0": {"game": "treasurehunt", "agents": 1},
}
ANY_GAME = "remuda/game-v0"
"""Takes the game as an argument: gymnasium.make("remuda/game-v0", game="my_module:ENTRY")."""


def register_envs() -> None:
    """Make our games known to `gymnasium.make` and `gymnasium.make_vec`; twice does no harm."""
    for name, settings in {**ENVS, ANY_GAME: {}}.items():
        if name not in registry:
            register(
                id=name,
                entry_point="remuda.adapters.outbound.gymnasium:WorldEnv",
                vector_entry_point="remuda.adapters.outbound.gymnasium:WorldsEnv",
                kwargs=settings,
            )


register_envs()
