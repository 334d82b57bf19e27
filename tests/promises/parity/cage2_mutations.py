"""Mutations of the rules of CAGE 2, one at a time. Run as a program, it prints which trace detects each mutation.

It runs uncompiled (NUMBA_DISABLE_JIT=1), because compiling each changed source would take minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from mutants import load

from remuda.core import kernels

PACKAGE = "remuda.games.cage2"
REPLAYED_FIRST = ("bline__decoy", "meander__decoy_open", "meander__cardiff", "bline__random__", "bline__react_mixed")


class Mutation(NamedTuple):
    """A piece of source that occurs once, and its replacement."""

    rule: str
    module: str
    old: str
    new: str


def network(rule: str, old: str, new: str) -> Mutation:
    return Mutation(rule, "network", old, new)


def simulator(rule: str, old: str, new: str) -> Mutation:
    return Mutation(rule, "simulator", old, new)


def state(rule: str, old: str, new: str) -> Mutation:
    return Mutation(rule, "state", old, new)


def red(rule: str, old: str, new: str) -> Mutation:
    return Mutation(rule, "red", old, new)


MUTATIONS = (
    network(
        "Enterprise0 costs as little as a user host", 'E, "Linux", 1.0, "pi", None)', 'E, "Linux", 0.1, "pi", None)'
    ),
    network("User0 costs something", '"Windows", 0.0,', '"Windows", 0.1,'),
    network(
        "User2 links to Enterprise0",
        '"vagrant", "Enterprise1"),\n    Host("User3"',
        '"vagrant", "Enterprise0"),\n    Host("User3"',
    ),
    network("Enterprise2 links nowhere", '"vagrant", "Op_Server0")', '"vagrant", None)'),
    network("Enterprise1 and 2 speak smb", "ListeningService(139, None,", 'ListeningService(139, "smb",'),
    network("User3's mysql is on its own port", 'ListeningService(3389, "mysql"', 'ListeningService(3390, "mysql"'),
    network(
        "rdp on Enterprise1 and 2 is not SYSTEM",
        'ListeningService(3389, "rdp", "SYSTEM")',
        'ListeningService(3389, "rdp", "NetworkService")',
    ),
    network(
        "User4's mail server is not root",
        'ListeningService(25, "smtp", "root"),\n    ),\n}',
        'ListeningService(25, "smtp", "mail"),\n    ),\n}',
    ),
    network("Defender has a guessable account", '"Linux", 0.1, None, None)', '"Linux", 0.1, "pi", None)'),
    network("Vsftpd opens 21", '"Vsftpd", 21, 80, "web"', '"Vsftpd", 21, 21, "femitter"'),
    network("Vsftpd checks 80", '"Vsftpd", 21, 80,', '"Vsftpd", 80, 80,'),
    network("Femitter runs anywhere", '"femitter", "Windows")', '"femitter", None)'),
    network("Haraka runs on Windows", '"smtp", "Linux")', '"smtp", "Windows")'),
    network("a stopped service costs five", "SERVICE_DOWN = 10.0", "SERVICE_DOWN = 5.0"),
    network("Restore is free", "RESTORE_COST = 1.0", "RESTORE_COST = 0.0"),
    simulator(
        "Remove ends SSH sessions",
        "        s.removable[host] = 0\n        if",
        "        s.removable[host] = s.pinned[host] = 0\n        if",
    ),
    simulator(
        "Remove deletes files",
        "        s.removable[host] = 0\n        if",
        "        s.removable[host] = s.malware[host] = 0\n        if",
    ),
    simulator("Remove ends nothing", "        s.removable[host] = 0\n        if", "        if"),
    simulator("Remove says a clean host is unsure", "if s.compromised[host] != CLEAN:", "if True:"),
    simulator("Remove clears the table", "s.compromised[host] = UNSURE", "s.compromised[host] = CLEAN"),
    simulator("a restored service can be stopped again", "s.service_stoppable = 0", "s.service_stoppable = 1"),
    simulator(
        "Restore leaves the service down",
        "        s.service_up = 1\n        s.service_stoppable",
        "        s.service_stoppable",
    ),
    simulator("Restore clears red's memory", "    wipe(s, host)\n", "    wipe(s, host)\n    s.scanned[host] = 0\n"),
    state("Restore ends the foothold", "1 if host == FOOTHOLD else 0", "0"),
    state("Restore leaves files", "    s.pinned[host] = 0\n    s.malware[host] = 0\n", "    s.pinned[host] = 0\n"),
    state("Restore leaves decoys", "        s.decoys[host, d] = 0\n", "        pass\n"),
    simulator(
        "a scan out of reach fails",
        "        s.empty_scan = 1\n        return SUCCEEDED",
        "        s.empty_scan = 1\n        return FAILED",
    ),
    simulator("a sweep reaches everything", "if not _reaches(s, subnet):", "if False:"),
    simulator("every host can be scanned", "if not _reaches(s, SUBNET_OF[host]):", "if False:"),
    state("only root opens the way", "return s.root[host] != 0 or", "return s.root[host] != 0 and"),
    simulator(
        "head remembers old ports", "s.known_ports[host] | seen if leaderboard else seen", "s.known_ports[host] | seen"
    ),
    simulator("leaderboard forgets old ports", "s.known_ports[host] | seen if leaderboard else seen", "seen"),
    simulator(
        "head breaks restored mail servers",
        "    if leaderboard:\n        s.smtp_lost",
        "    if True:\n        s.smtp_lost",
    ),
    simulator("leaderboard repairs mail servers", "        s.smtp_lost[host] = 1", "        s.smtp_lost[host] = 0"),
    simulator("decoys do not protect", "    lured = shell == NO_SHELL and", "    lured = False and"),
    simulator("a decoy hides the real service", "lured = shell == NO_SHELL and _lures", "lured = _lures"),
    simulator("an undetected shell can be removed", "BRUTE_FORCE and draws.detected:", "BRUTE_FORCE:"),
    simulator(
        "an SSH session can be removed",
        "elif draws.exploit != BRUTE_FORCE and draws.detected:",
        "elif draws.detected or draws.exploit == BRUTE_FORCE:",
    ),
    simulator(
        "SSH leaves a file",
        "    if draws.exploit != BRUTE_FORCE:\n        s.malware",
        "    if True:\n        s.malware",
    ),
    simulator(
        "an exploit leaves no file",
        "    if draws.exploit != BRUTE_FORCE:\n        s.malware",
        "    if False:\n        s.malware",
    ),
    simulator("brute force is quiet", "11 if succeeds else 10", "2 if succeeds else 1"),
    simulator("a decoy leaves one trace", "2 if lured else 1", "1"),
    simulator("every shell is noticed", "if succeeds and draws.detected:", "if succeeds:"),
    simulator(
        "escalation leaves no file",
        "        s.root[host] = 1\n        s.malware[host] = 1\n",
        "        s.root[host] = 1\n",
    ),
    simulator("escalation reveals no subnet", "    s.subnets |= 1 << SUBNET_OF[host]\n", ""),
    simulator(
        "escalation always takes a file",
        "    if s.root[host] == 0:\n",
        "    s.malware[host] = 1\n    if s.root[host] == 0:\n",
    ),
    simulator("an exploit reveals no name", "    s.hostnames |= 1 << host\n", ""),
    simulator(
        "Impact needs a service to stop",
        "        s.service_up = 0\n    return SUCCEEDED",
        "        s.service_up = 0\n        return SUCCEEDED\n    return FAILED",
    ),
    simulator(
        "ten per successful Impact",
        "    if s.service_up == 0:",
        "    if s.red == IMPACT and s.red_success == SUCCEEDED:",
    ),
    simulator("Analyse looks after red has acted", "    if found:", "    if verb == ANALYSE and s.malware[host] != 0:"),
    simulator("Analyse sees root, not files", "s.malware[host] != 0\n", "s.root[host] != 0\n"),
    simulator(
        "a callback outweighs a scan",
        "entries >= 3 and three_ports:",
        "entries >= 3 and three_ports and not ports & CALLBACK:",
    ),
    simulator("a placed decoy is no record", "entries = records + 1 if placed else records", "entries = records"),
    simulator("both wrappers see a screened scan", "return SCREENED if placed else SCANNED", "return SCANNED"),
    simulator(
        "an attack does not outdate a verdict",
        "if activity[host] == ATTACKED:",
        "if activity[host] == ATTACKED and s.compromised[host] != PRIVILEGED:",
    ),
    simulator("green is not seen", "if actions.green_target != NONE:", "if False:"),
    simulator(
        "a scan of two ports is an attack", "entries >= 3 and beyond_one == 0:", "entries >= 2 and beyond_one == 0:"
    ),
    Mutation(
        "unknown and user swapped",
        "observation",
        "[1, 0], [0, 1], [1, 1]], np.uint8)  #",
        "[0, 1], [1, 0], [1, 1]], np.uint8)  #",
    ),
    red("B_line falls back further", "[0, 1, 2, 2, 2, 2, 5,", "[0, 1, 2, 1, 2, 2, 5,"),
    red("B_line never starts over", "if not m.struck and s.empty_scan:", "if False:"),
    red("B_line goes through the wrong gateway", "for i in (1, 1, 0, 0)", "for i in (0, 0, 1, 1)"),
    red(
        "Meander doubts Enterprise first",
        "for subnet in (OPERATIONAL, ENTERPRISE):",
        "for subnet in (ENTERPRISE, OPERATIONAL):",
    ),
    red("Meander never doubts", "        _revise_subnets(m)\n", "        pass\n"),
    red("Meander escalates what it lost", "& ~m.escalated & ~lost", "& ~m.escalated"),
    red(
        "Meander attacks before it escalates",
        "    if below_root:",
        "    if below_root and not s.addresses & ~m.exploited:",
    ),
    red(
        "Meander scans before it sweeps",
        "if s.subnets >> subnet & 1 and not",
        "if not s.addresses & ~m.probed and s.subnets >> subnet & 1 and not",
    ),
    red(
        "Meander forgets a failed sweep",
        "    if action < EXPLOIT:\n",
        "    if action == SWEEP and s.red_success == FAILED:\n        m.swept = 0\n    if action < EXPLOIT:\n",
    ),
)


def detected_by(mutation: Mutation, traces: list[Path]) -> str | None:
    """The first trace that detects a mutation."""
    verifier = load(PACKAGE, "verify", mutation)
    for path in traces:
        if not verifier.verify(path).good:
            return path.stem
    return None


def main(folder: Path) -> None:
    """Print every mutation and the first trace that detects it."""
    kernels.kernel = lambda function: function  # type: ignore[assignment]  # 2.4 times faster than guarding each call
    traces = sorted(folder.rglob("*.npz"), key=lambda path: (not path.stem.startswith(REPLAYED_FIRST), path.name))
    for mutation in MUTATIONS:
        where = detected_by(mutation, traces)
        print(f"{mutation.rule}\t{where or ''}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
