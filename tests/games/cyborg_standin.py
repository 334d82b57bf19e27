"""A stand-in for CybORG 2.1: the part of its interface that we use, with a few simple rules.

Red breaks into a random host and may become root there. Blue's table shows it, unless blue placed a decoy on that host
in the same step. All random numbers come from Python's `random`, as in the original.
"""

from __future__ import annotations

import random
import sys
from collections import namedtuple
from enum import Enum, auto
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

HOSTS = ("Defender", "Enterprise0", "Enterprise1", "Enterprise2", "Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0")
HOSTS = (*HOSTS, *(f"User{i}" for i in range(5)))
DECOYS = ("Apache", "Femitter", "HarakaSMPT", "Smss", "SSHD", "Svchost", "Tomcat", "Vsftpd")
ON_HOSTS = ("Analyse", "Remove", *(f"Decoy{decoy}" for decoy in DECOYS), "Restore")
HostReward = namedtuple("HostReward", "confidentiality availability")


class TrinaryEnum(Enum):
    TRUE = auto()
    UNKNOWN = auto()
    FALSE = auto()

    def __str__(self) -> str:
        return self.name


class Action:
    def __init__(self, hostname: str | None = None) -> None:
        self.hostname = hostname


KINDS = {name: type(name, (Action,), {}) for name in ("Sleep", "Monitor", *ON_HOSTS, "Impact", "Exploit")}


class SleepAgent:
    def get_action(self) -> Action:
        return KINDS["Sleep"]()


class B_lineAgent:  # noqa: N801
    def get_action(self) -> Action:
        return KINDS["Exploit"](random.choice(HOSTS)) if random.random() < 0.7 else KINDS["Impact"]("Op_Server0")


class RedMeanderAgent(B_lineAgent):
    def get_action(self) -> Action:
        return KINDS["Exploit"](random.choice(HOSTS[-5:]))


class GreenAgent:
    def get_action(self) -> str | None:
        return random.choice(HOSTS) if random.random() < 0.5 else None


class CybORG:
    made = 0
    asked = 0

    def __init__(
        self, scenario_file: str, environment: str = "sim", env_config: Any = None, agents: Any = None
    ) -> None:
        assert Path(scenario_file).is_file()
        assert environment == "sim"
        assert set(agents) <= {"Red", "Green"}
        type(self).made += 1
        self.red = agents["Red"]()
        self.green = agents["Green"]() if "Green" in agents else None
        self.action: dict[str, Action] = {}

    def reset(self, agent: str) -> Any:
        self.root: set[str] = {"User0"}
        self.entered: set[str] = {"User0"}
        return SimpleNamespace(observation={}, action_space={})

    def step(self, agent: str, action: Action) -> Any:
        assert agent == "Blue"
        red = self.red.get_action()
        self.action = {"Blue": action, "Red": red}
        self.success = {"Blue": TrinaryEnum.TRUE, "Red": TrinaryEnum.UNKNOWN}
        events: dict[str, list[dict[str, Any]]] = {}
        name = type(action).__name__
        if name == "Restore":
            self.root -= {str(action.hostname)} - {"User0"}
            self.entered -= {str(action.hostname)} - {"User0"}
        if name.startswith("Decoy"):
            self.success["Blue"] = TrinaryEnum.FALSE if name == "DecoySmss" else TrinaryEnum.TRUE
            events[str(action.hostname)] = [{"Service Name": name}]
        if type(red).__name__ == "Exploit":
            self.entered.add(str(red.hostname))
            if random.random() < 0.5:
                self.root.add(str(red.hostname))
            events.setdefault(str(red.hostname), []).append({"Connections": [{"local_port": 22}]})
        if type(red).__name__ == "Impact":
            self.success["Red"] = TrinaryEnum.TRUE if "Op_Server0" in self.root else TrinaryEnum.FALSE
        if self.green is not None and (host := self.green.get_action()):
            events.setdefault(host, []).append({"Connections": [{"local_port": 80}]})
        reward = round(-0.1 * len(self.root - {"User0"}) - (name == "Restore"), 1)
        return SimpleNamespace(observation=events, reward=reward, done=False, action_space={})

    def get_last_action(self, agent: str) -> Action | None:
        return self.action.get(agent)

    def get_observation(self, agent: str) -> dict[str, Any]:
        return {"success": self.success[agent]}

    def get_reward_breakdown(self, agent: str) -> dict[str, HostReward]:
        assert agent == "Blue"
        return {host: HostReward(-0.1 if host in self.root - {"User0"} else 0, 0) for host in HOSTS}

    def get_agent_state(self, agent_name: str) -> dict[str, Any]:
        assert agent_name == "True"
        type(self).asked += 1
        red = [{"Agent": "Red", "Username": "pi"}]
        return {
            "success": TrinaryEnum.UNKNOWN,
            **{host: {"Sessions": red} if host in self.entered else {} for host in HOSTS},
        }


class RedAbstractSession:
    """As in the last version; the leaderboard's has no `clearports`."""

    def clearports(self, address: str) -> None: ...


class ProcessVersion(Enum):
    """As in the last version; the leaderboard's gives UNKNOWN for most."""

    UNKNOWN = auto()

    @classmethod
    def parse_string(cls, text: str) -> Any:
        return text


class BlueTableWrapper:
    def __init__(self, env: Any = None, agent: Any = None, output_mode: str = "table") -> None:
        assert output_mode == "vector"
        self.env = env

    def reset(self, agent: str) -> Any:
        return self._with_bits(self.env.reset(agent))

    def step(self, agent: str, action: Action) -> Any:
        return self._with_bits(self.env.step(agent, action))

    def _with_bits(self, result: Any) -> Any:
        bits = []
        for host in HOSTS:
            events = self._interpret_connections(result.observation[host]) if host in result.observation else "None"
            bits += [int(events == "Scan"), 0, 0, 0]
        result.observation = np.array(bits)
        return result

    def _interpret_connections(self, activity: list[dict[str, Any]]) -> str:
        return "None" if "Service Name" in activity[0] else "Scan"


class EnumActionWrapper:
    def __init__(self, env: Any = None, agent: Any = None) -> None:
        self.env = env
        self.possible_actions: list[Action] = []

    def reset(self, agent: str) -> Any:
        self.possible_actions = [KINDS["Sleep"](), KINDS["Monitor"]()]
        self.possible_actions += [KINDS[kind](host) for kind in ON_HOSTS for host in HOSTS]
        return self.env.reset(agent)

    def step(self, agent: str, action: int) -> Any:
        return self.env.step(agent, self.possible_actions[action])


PARTS = ("", ".Agents", ".Agents.Wrappers", ".Simulator.Session", ".Shared.Enums")


def install(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Make `import CybORG` find this module's classes."""
    _write_scenario(folder)
    modules = [ModuleType(f"CybORG{part}") for part in PARTS]
    package, agents, wrappers, session, enums = modules
    package.__file__ = str(folder / "__init__.py")
    vars(session).update(RedAbstractSession=RedAbstractSession)
    vars(enums).update(ProcessVersion=ProcessVersion)
    vars(package).update(CybORG=CybORG, Agents=agents)
    vars(agents).update(
        B_lineAgent=B_lineAgent, RedMeanderAgent=RedMeanderAgent, SleepAgent=SleepAgent, GreenAgent=GreenAgent
    )
    vars(wrappers).update(BlueTableWrapper=BlueTableWrapper, EnumActionWrapper=EnumActionWrapper)
    for module in modules:
        patch.setitem(sys.modules, module.__name__, module)
    patch.setattr(CybORG, "made", 0)
    patch.setattr(CybORG, "asked", 0)


def make_it_the_leaderboards(patch: pytest.MonkeyPatch, fixes: int = 2) -> None:
    """Take back late fixes: both give the version of the leaderboard, one a version between."""
    patch.delattr(RedAbstractSession, "clearports")
    if fixes == 2:
        patch.setattr(ProcessVersion, "parse_string", lambda text: ProcessVersion.UNKNOWN)


def write(folder: Path) -> None:
    """Write the same as a package on disk, so that other processes can import it."""
    _write_scenario(folder)
    names = {
        "__init__.py": "CybORG",
        "Agents/__init__.py": "B_lineAgent, GreenAgent, RedMeanderAgent, SleepAgent",
        "Agents/Wrappers/__init__.py": "BlueTableWrapper, EnumActionWrapper",
        "Simulator/Session.py": "RedAbstractSession",
        "Shared/Enums.py": "ProcessVersion",
    }
    for file, classes in names.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"from cyborg_standin import {classes}\n")


def _write_scenario(folder: Path) -> None:
    scenarios = folder / "Shared" / "Scenarios"
    scenarios.mkdir(parents=True)
    (scenarios / "Scenario2.yaml").write_text("Agents: {}\n")
