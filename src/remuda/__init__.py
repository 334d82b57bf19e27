"""remuda: train herds of independent agents as fast as the machine allows.

What is listed here is public; everything else may change without notice. A name is imported when it is first used:
`import remuda` by itself loads neither torch nor numba.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from remuda.core.errors import RemudaError

if TYPE_CHECKING:
    from remuda.adapters.outbound.pettingzoo import parallel_env
    from remuda.board.serve import serve_board
    from remuda.core import rng, scene
    from remuda.core.fragment import Fragment
    from remuda.core.game import Game, GameEntry, GameSpec, Group
    from remuda.core.kernels import kernel
    from remuda.core.learner import Learner, LearnerContext
    from remuda.core.options import Options
    from remuda.core.policy import Policy, PolicyInput, PolicyOutput
    from remuda.games import grid
    from remuda.games.registry import verify
    from remuda.learners.schedule import PerAgent
    from remuda.learners.single_agent.off_policy import OffPolicyLearner, ReplayBatch
    from remuda.learners.single_agent.on_policy import OnPolicyLearner, RolloutBatch
    from remuda.learners.single_agent.options import OffPolicyOptions, OnPolicyOptions
    from remuda.runs.callbacks.base import Callback
    from remuda.runs.evaluation import evaluate
    from remuda.runs.export import export
    from remuda.runs.film import watch
    from remuda.runs.listing import list_engines, list_games, list_learners, list_settings
    from remuda.runs.recording import Recording, record
    from remuda.runs.replay import replay, replay_failure
    from remuda.runs.run import Run, load
    from remuda.runs.training import resume, train
    from remuda.studies.compare.compare import compare
    from remuda.studies.from_python import resume_study, search, sweep
    from remuda.studies.leaderboard import cage2_leaderboard
    from remuda.studies.schelling import schelling
    from remuda.studies.study import study
    from remuda.studies.tournament.tournament import tournament
    from remuda.testing.check import check
    from remuda.testing.finding import Finding

__version__ = "0.2.0"
__all__ = [
    "Callback",
    "Finding",
    "Fragment",
    "Game",
    "GameEntry",
    "GameSpec",
    "Group",
    "Learner",
    "LearnerContext",
    "OffPolicyLearner",
    "OffPolicyOptions",
    "OnPolicyLearner",
    "OnPolicyOptions",
    "Options",
    "PerAgent",
    "Policy",
    "PolicyInput",
    "PolicyOutput",
    "Recording",
    "RemudaError",
    "ReplayBatch",
    "RolloutBatch",
    "Run",
    "__version__",
    "cage2_leaderboard",
    "check",
    "compare",
    "evaluate",
    "export",
    "grid",
    "kernel",
    "list_engines",
    "list_games",
    "list_learners",
    "list_settings",
    "load",
    "parallel_env",
    "record",
    "replay",
    "replay_failure",
    "resume",
    "resume_study",
    "rng",
    "scene",
    "schelling",
    "search",
    "serve_board",
    "study",
    "sweep",
    "tournament",
    "train",
    "verify",
    "watch",
]
_MODULES = {"grid": "remuda.games.grid", "rng": "remuda.core.rng", "scene": "remuda.core.scene"}
_NAMES = {
    "remuda.adapters.outbound.pettingzoo": ("parallel_env",),
    "remuda.board.serve": ("serve_board",),
    "remuda.core.fragment": ("Fragment",),
    "remuda.core.game": ("Game", "GameEntry", "GameSpec", "Group"),
    "remuda.core.kernels": ("kernel",),
    "remuda.core.learner": ("Learner", "LearnerContext"),
    "remuda.core.options": ("Options",),
    "remuda.core.policy": ("Policy", "PolicyInput", "PolicyOutput"),
    "remuda.games.registry": ("verify",),
    "remuda.learners.schedule": ("PerAgent",),
    "remuda.learners.single_agent.off_policy": ("OffPolicyLearner", "ReplayBatch"),
    "remuda.learners.single_agent.on_policy": ("OnPolicyLearner", "RolloutBatch"),
    "remuda.learners.single_agent.options": ("OffPolicyOptions", "OnPolicyOptions"),
    "remuda.runs.callbacks.base": ("Callback",),
    "remuda.runs.evaluation": ("evaluate",),
    "remuda.runs.export": ("export",),
    "remuda.runs.film": ("watch",),
    "remuda.runs.listing": ("list_engines", "list_games", "list_learners", "list_settings"),
    "remuda.runs.recording": ("Recording", "record"),
    "remuda.runs.replay": ("replay", "replay_failure"),
    "remuda.runs.run": ("Run", "load"),
    "remuda.runs.training": ("resume", "train"),
    "remuda.studies.compare.compare": ("compare",),
    "remuda.studies.from_python": ("resume_study", "search", "sweep"),
    "remuda.studies.leaderboard": ("cage2_leaderboard",),
    "remuda.studies.schelling": ("schelling",),
    "remuda.studies.study": ("study",),
    "remuda.studies.tournament.tournament": ("tournament",),
    "remuda.testing.check": ("check",),
    "remuda.testing.finding": ("Finding",),
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = import_module(_MODULES[name])
    elif name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
    else:
        hint = f"; train with remuda.train(game, learner={name.lower()!r})" if name.lower() in ("ppo", "iqn") else ""
        raise AttributeError(f"module 'remuda' has no attribute {name!r}{hint}; its names are {', '.join(__all__)}")
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if "gymnasium" in sys.modules:  # it reads no entry points: who imports it later imports remuda_envs as well
    import_module("remuda_envs")
