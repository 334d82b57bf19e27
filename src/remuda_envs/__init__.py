"""What `import gymnasium` loads of remuda: names only, so that it costs nothing (remuda itself imports torch).

The entry point `gymnasium.envs` of pyproject.toml leads here.
"""

from __future__ import annotations

from gymnasium.envs.registration import register, registry

ENVS = {"remuda/cage2-v0": {"game": "cage2"}, "remuda/treasurehunt-v0": {"game": "treasurehunt", "agents": 1}}


def register_envs() -> None:
    """Make our games with one agent known to `gymnasium.make` and `gymnasium.make_vec`."""
    for name, settings in ENVS.items():
        if name not in registry:
            register(
                id=name,
                entry_point="remuda.adapters.out_gymnasium:WorldEnv",
                vector_entry_point="remuda.adapters.out_gymnasium:WorldsEnv",
                kwargs=settings,
            )
