"""Settings from anywhere give a plan or one sentence, and execute nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hostile import deep, frugal, harmless, often, plain, refusal, times, trees
from hypothesis import example, given
from hypothesis import strategies as st

from remuda.core import yamlfile as config
from remuda.core.errors import ConfigError
from remuda.core.plan import ParallelSwitches, Plan
from remuda.core.yamlfile import MAX_BYTES, read_assignments, read_yaml, write_yaml
from remuda.games.cage2.options import Cage2Options
from remuda.games.treasurehunt import TreasurehuntOptions
from remuda.learners.iqn.options import IQNOptions
from remuda.learners.ppo.options import PPOOptions
from remuda.runs.settings import make_plan

OWNERS = (Plan, ParallelSwitches, TreasurehuntOptions, Cage2Options, IQNOptions, PPOOptions)
NAMES = [
    *dict.fromkeys(name for owner in OWNERS for name in owner.model_fields),
    "epochs", "parallel", "train_interval", "policy", "red_agent", "game.turns", "iqn.lr", "ppo.x", "x.y",
]  # fmt: skip
GAMES = ["treasurehunt", "cage2", "remuda.testing:UNEQUAL", "remuda.testing:MASKED"]
TAGS = [
    "!!python/object/apply:os.system ['touch {0}']",
    "!!python/object/new:os.system ['touch {0}']",
    "!!python/object/apply:subprocess.check_call [['touch', '{0}']]",
    "!!python/object/apply:builtins.eval [\"open('{0}', 'w')\"]",
    "!!python/object:remuda.core.plan.Plan {{game: x}}",
    "!!python/name:os.system", "!!python/module:os", "!!python/tuple [1]", "!!python/bytes x",
    "!mine 3", "!<tag:yaml.org,2002:python/name:os.system> x", "!!binary '%%%'", "!!timestamp x",
    "!!int ''", "!!float ''", "!!bool x", "!!int 0x", "!!int [1]", "!!omap 3", "!!pairs [[1]]", "!!set [1]", "!!null x",
    "!!str [1]", "!!map 3", "!!seq 3", "!!merge x", "!!value x", "2001-99-99", "=", "<<", "? [1]", "*nobody",
]  # fmt: skip
NUMBERS = ["1" * 5000, "0x" + "f" * 5000, "0b" + "1" * 70, ":".join("1" * 2000), ":".join("1" * 300) + ".5",
           ".nan", ".inf", "-.inf", "1e999", "-0", "0o17", "1_000", str(2**63), str(-(2**64)), "9" * 30]  # fmt: skip
SCALARS = st.sampled_from([*TAGS, *NUMBERS]) | st.text(max_size=10)
LINES = st.one_of(
    st.builds("{}: {}".format, st.sampled_from(NAMES) | st.text(max_size=6), SCALARS),
    st.builds("  {}: {}".format, st.sampled_from(NAMES), SCALARS),
    st.builds("- {}".format, SCALARS),
    st.builds("{}: &{} [{}]".format, st.sampled_from(NAMES), st.sampled_from("ab"), SCALARS),
    st.builds("{}: {{<<: [*{}, *{}], x: {}}}".format, st.sampled_from(NAMES), *[st.sampled_from("ab")] * 2, SCALARS),
    st.sampled_from(
        ["---", "...", "%YAML 1.1", "%TAG ! tag:x,", "# x", "\t", "a: |", "a: >", "'", '"', "{", "[", "? x"]
    ),
)
texts = st.one_of(st.text(), st.lists(LINES, max_size=8).map("\n".join), st.lists(LINES, max_size=8).map("\r\n".join))
contents = (
    st.binary()
    | texts.map(lambda text: text.encode("utf-8", "surrogatepass"))
    | texts.map(lambda text: text.encode("utf-16", "surrogatepass"))
)
values = trees | SCALARS | st.sampled_from([*GAMES, "iqn", "ppo", "random", "auto", "0.9:0.1", "x:y", "frozen:x/0"])
settings = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=6), values, max_size=5)


def plan_of(given: dict[str, Any]) -> None:
    """A plan is made of them and can be written and read back, unless they are refused."""
    plan = make_plan(given)
    assert plan == make_plan(plan.model_dump())


def try_file(folder: Path, content: bytes) -> str | None:
    path = folder / "plan.yaml"
    path.write_bytes(content.replace(b"{0}", str(folder / "outside" / "executed").encode()))
    with harmless(folder / "outside"):
        return refusal(lambda: plan_of({"game": "treasurehunt", **read_yaml(path)}))


@times(60, 3000)
def test_any_file_is_a_plan_or_one_sentence(tmp_path: Path, count: int) -> None:
    @often(count)
    @given(contents)
    def check(content: bytes) -> None:
        try_file(tmp_path, content)

    check()


@pytest.mark.parametrize("value", [*TAGS, *NUMBERS], ids=lambda value: value[:30])
@pytest.mark.parametrize(
    "form", ["worlds: {}", "{}: 3", "options: {{turns: {}}}", "options: {{{}: 3}}", "learners: [{}]"]
)
def test_every_odd_value_in_every_place(tmp_path: Path, value: str, form: str) -> None:
    try_file(tmp_path, form.format(value).encode())


@times(60, 3000)
def test_any_word_is_a_setting_or_one_sentence(tmp_path: Path, count: int) -> None:
    names = st.sampled_from(NAMES) | st.text(max_size=5)
    words = st.text() | st.builds("{}={}".format, names, texts | values.map(repr) | plain)

    @often(count)
    @given(st.lists(words, max_size=4))
    @example(["worlds=" + deep(400)])
    @example(["worlds=0x" + "f" * 100_000])
    def check(words: list[str]) -> None:
        with harmless(tmp_path / "outside"):
            refusal(lambda: plan_of({"game": "treasurehunt", **read_assignments(words)}))

    check()


@times(60, 3000)
def test_any_settings_are_a_plan_or_one_sentence(tmp_path: Path, count: int) -> None:
    """As a file that says so, and where that is read the same way, as keywords."""

    @often(count)
    @given(st.sampled_from(GAMES) | plain, settings)
    def check(game: Any, given: dict[str, Any]) -> None:
        with harmless(tmp_path / "outside"):
            path = tmp_path / "plan.yaml"
            path.write_text(yaml.safe_dump({"game": game, **given}), encoding="utf-8", errors="surrogatepass")
            refusal(lambda: plan_of(read_yaml(path)))

    check()


@times(60, 3000)
def test_any_value_of_one_setting(count: int) -> None:
    @often(count)
    @given(st.sampled_from(GAMES), st.sampled_from(NAMES), values)
    @example("treasurehunt", "total_episodes", 10**5000)
    @example("treasurehunt", "worlds", [10**5000])
    def check(game: str, name: str, value: Any) -> None:
        refusal(lambda: plan_of({"game": game, name: value}))

    check()


@times(60, 3000)
def test_any_plan_of_a_run_is_read_or_one_sentence(tmp_path: Path, count: int) -> None:
    whole = make_plan({"game": "treasurehunt"}).model_dump()

    @often(count)
    @given(st.sampled_from(list(whole)), values)
    def check(name: str, value: Any) -> None:
        refusal(lambda: Plan.read({**whole, name: value}, "the plan"))

    check()


def laughs(line: str, first: str) -> str:
    """Ten lines, each of them nine times the one before."""
    return "\n".join([first, *(line.format(n, n - 1) for n in range(1, 10))])


BOMBS: dict[str, Callable[[], str]] = {
    "lists": lambda: laughs("a{0}: &a{0} [" + "*a{1}, " * 9 + "]", "a0: &a0 [x, x]"),
    "mappings": lambda: laughs(
        "a{0}: &a{0} {{" + ", ".join(f"k{i}: *a{{1}}" for i in range(9)) + "}}", "a0: &a0 {x: 1}"
    ),
    "merged mappings": lambda: laughs("a{0}: &a{0} {{<<: [" + "*a{1}, " * 9 + "]}}", "a0: &a0 {x: 1, y: 2}"),
    "itself": lambda: "a: &a [*a, *a]",
    "itself, merged": lambda: "a: &a {<<: *a, x: 1}",
    "deep": lambda: "a: " + deep(1500),
    "deep, in blocks": lambda: "\n".join(" " * n + "a:" for n in range(2000)),
    "not quite too deep to be read": lambda: "options: " + "{a: " * 60 + "1" + "}" * 60,
    "many bytes": lambda: "#" * (MAX_BYTES + 1),
    "a long number": lambda: "a: " + "9" * 100_000,
    "a long hexadecimal number": lambda: "a: 0x" + "9" * 100_000,
    "a long number to base 60": lambda: "a: " + "1:" * 100_000 + "1",
    "a long number as a key": lambda: "0x" + "9" * 5000 + ": 1",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_one_sentence(tmp_path: Path, name: str) -> None:
    content = BOMBS[name]().encode()
    with frugal():
        assert try_file(tmp_path, content) is not None


@pytest.mark.parametrize("limit", [1000, pytest.param(config.MAX_VALUES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("content", ["a: [{}]", "[{}]"])
def test_too_many_values_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, limit: int
) -> None:
    monkeypatch.setattr(config, "MAX_VALUES", limit)
    assert "values" in (try_file(tmp_path, content.format("1,\n" * (limit + 1)).encode()) or "")


def test_what_never_ends_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="bytes"):
        read_yaml(Path("/dev/zero"))


def test_aliases_a_person_would_write_are_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("base: &base {turns: 9}\noptions: {<<: *base, height: 7}\nspawn: &s [0.1, 0.2]\ngem: *s\n")
    content = read_yaml(path)
    assert content["options"] == {"turns": 9, "height": 7}
    assert content["gem"] == [0.1, 0.2]


def test_the_largest_plan_we_write_is_read_back(tmp_path: Path) -> None:
    rates = [1 / (3 + agent) for agent in range(5000)]
    field = {"agents": len(rates), "height": 100, "width": 100}
    plan = make_plan({"game": "treasurehunt", "seed": 2**63 - 1, "lr": rates, **field})
    write_yaml(tmp_path / "plan.yaml", plan)
    assert make_plan(read_yaml(tmp_path / "plan.yaml")) == plan


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", [n for n, field in Plan.model_fields.items() if field.annotation is float])
def test_numbers_of_a_plan_are_finite(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        make_plan({"game": "treasurehunt", name: value})


@pytest.mark.parametrize("trick", ["../../x", "/etc/passwd", "a\nb", "x" * 300])
def test_the_command_says_one_sentence(cli: Any, tmp_path: Path, trick: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump({"game": trick}))
    for words in (("--config", path), (f"game={trick}",), ("treasurehunt", f"layer={trick}")):
        outcome = cli("train", *words)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith("error: ")
        assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("name", ["gem", "food", "bone", "wall"])
@pytest.mark.parametrize("value", [1e39, -1e300, [1.0, 1e39]])
def test_rewards_beyond_single_precision_are_refused(name: str, value: Any) -> None:
    said = refusal(lambda: make_plan({"game": "treasurehunt", name: value}))
    assert said is not None
    assert name in said
    assert "single precision" in said


@pytest.mark.parametrize(
    "content",
    ["seed: 1\nworlds: 2\nseed: 2\n", "options: {height: 7, height: 9}", "variants:\n  a: {}\n  a: {lr: 1}\n"],
)
def test_a_key_that_stands_twice_is_refused(tmp_path: Path, content: str) -> None:
    """YAML keeps the last one without a word: a variant of a study would be lost."""
    path = tmp_path / "plan.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"'\w+' stands twice, again in line \d"):
        read_yaml(path)


def test_a_key_may_override_one_that_was_merged(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("a: &a {x: 1, y: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: *b, y: 3}\n")
    assert read_yaml(path)["c"] == {"x": 2, "y": 3}


@pytest.mark.parametrize("text", ["1:0", "1:0:0.5", "0:30", "1:2:3:4:5"])
def test_a_schedule_is_no_number_to_base_60(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(f"entropy: {text}\n")
    assert read_yaml(path) == read_assignments([f"entropy={text}"]) == {"entropy": text}
