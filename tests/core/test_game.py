"""The game protocol and the registry of games."""

from __future__ import annotations

import numpy as np
import pytest

from remuda.core import rng
from remuda.core.errors import ConfigError, UnknownName
from remuda.core.game import GameEntry, Group, Signals, make_game
from remuda.core.rng import Stream
from remuda.games.registry import SHIPPED, find_game
from remuda.testing.odd_games import GIFTS, MASKED, UNEQUAL, Masked, OddGame, OddOptions, Unequal


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_games_are_found_by_name_and_describe_themselves(name: str) -> None:
    entry = find_game(name)
    assert entry.name == name
    assert entry.summary
    assert make_game(entry, {}, [0]).spec.name == name
    assert all(option.description for option in entry.options.model_fields.values())


def test_a_users_game_is_found_by_module_and_attribute() -> None:
    assert find_game("remuda.testing:GIFTS") is GIFTS


def test_an_unknown_game_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="unknown game 'tresurehunt': did you mean 'treasurehunt'"):
        find_game("tresurehunt")
    with pytest.raises(UnknownName, match=r"valid: .*treasurehunt"):
        find_game("zzz")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no.such.module:GAME", "cannot be imported: No module named 'no'"),
        ("remuda.testing:NOTHING", "cannot be imported: .*NOTHING"),
        ("remuda.testing:GIFT", "did you mean remuda.testing:GIFTS?"),
        ("remuda.testing:ODD", "is a tuple, neither a GameEntry nor a factory"),
        (":GAME", "as Python would import it"),
        ("..testing:GAME", "as Python would import it"),
    ],
)
def test_a_name_that_is_not_a_game_raises_one_sentence(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_game(name)


def test_an_unknown_option_names_the_nearest_and_the_game() -> None:
    with pytest.raises(UnknownName, match="option of game gifts 'agent': did you mean 'agents'"):
        make_game(GIFTS, {"agent": 3}, [0])


def test_an_option_of_the_wrong_type_is_named() -> None:
    with pytest.raises(ConfigError, match=r"turns='many' .*game gifts.* should be a whole number"):
        make_game(GIFTS, {"turns": "many"}, [0])


def test_agents_are_numbered_through_the_herd() -> None:
    spec = make_game(UNEQUAL, {"agents": 3}, [0]).spec
    assert spec.agents == 7
    assert [spec.first_agent(g) for g in range(2)] == [0, 3]


def test_clearing_signals_changes_only_the_given_worlds() -> None:
    signals = Signals.empty(Group("some", 2, (1,), np.int8, 2, metrics=("a", "b")), 3)
    arrays = (signals.rewards, signals.terminated, signals.truncated, signals.metrics)
    for array in arrays:
        array[:] = 1
    signals.clear(np.array([0, 2]))
    for array in arrays:
        assert not array[[0, 2]].any()
        assert array[1].all()
    assert signals.alive.tolist() == [[True, True], [False, False], [True, True]]


def test_a_step_is_begin_then_all_agents_in_order_then_end() -> None:
    calls: list[str] = []

    class RecordedCalls(Unequal):
        def begin(self) -> None:
            calls.append("begin")

        def act(self, group: int, first: int, last: int, actions: np.ndarray) -> None:
            calls.append(f"act {group} {first}-{last} {actions.tolist()}")

        def end(self) -> None:
            calls.append("end")

    RecordedCalls(OddOptions(agents=1, turns=3), [0]).step([np.array([[2]]), np.array([[4, 3]])])
    assert calls == ["begin", "act 0 0-1 [[2]]", "act 1 0-2 [[4, 3]]", "end"]


def test_a_game_without_mask_picture_or_text_says_which_method_to_write() -> None:
    game = make_game(GIFTS, {}, [0])
    with pytest.raises(NotImplementedError, match=r"gifts .* no mask\(\)"):
        game.mask(0, 0, 1, np.ones((1, 1, 3), np.bool_))
    with pytest.raises(ConfigError, match=r"'gifts' has no picture: .* render\(\)"):
        game.render(0)
    with pytest.raises(ConfigError, match=r"'gifts' has no text form: .* text\(\)"):
        game.text(0)


def test_a_world_that_is_over_ignores_actions() -> None:
    game = make_game(MASKED, {}, [0, 1, 2])
    assert isinstance(game, Masked)
    assert game.over.all()
    game.reset(np.arange(3), rng.keys(rng.key(0, Stream.CHECK), np.arange(3)))
    lengths = game.length
    for turn in range(12):
        assert (game.turn == np.minimum(turn, lengths)).all()
        game.step([(game.forbidden(0, 3) + 1) % 4])
    assert game.over.all()
    assert (game.turn == lengths).all()


def test_an_impossible_group_raises_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"'some' has actions=.*discrete"):
        Group("some", 1, (1,), np.int8, 2.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'some' has size=0"):
        Group("some", 0, (1,), np.int8, 2)


def test_an_entry_with_its_arguments_swapped_is_one_sentence() -> None:
    with pytest.raises(
        ConfigError, match=r"game 'odd': the options .* not OddGame: write GameEntry\(name, summary, op"
    ):
        GameEntry("odd", "Swapped.", OddGame, OddOptions)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"class of remuda\.Options, not 3"):
        GameEntry("odd", "Not even a class.", 3, OddGame)  # type: ignore[arg-type]
