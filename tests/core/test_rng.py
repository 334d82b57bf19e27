"""A random number is a function of its key, never of the order of draws or of whether the code was compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from remuda.core import rng
from remuda.core.rng import Stream

SCRIPT = """
import numpy as np
from remuda.core import rng
keys = rng.keys(rng.keys(rng.key(7, rng.Stream.NOISE, 3), np.arange(4))[:, None], np.arange(-1, 4))
print(keys.tolist())
print(rng.uniforms(keys, 3).tolist())
print(rng.normals(keys, 3).tolist())
print([int(rng.below(keys[0, 0], draw, 10)) for draw in range(20)])
"""


def output_of_script(**environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", SCRIPT],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def some_keys(count: int, stream: Stream = Stream.CHECK) -> rng.Keys:
    return rng.keys(rng.key(0, stream), np.arange(count))


def test_compiled_and_plain_code_give_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    exec(SCRIPT, {})
    assert output_of_script(NUMBA_DISABLE_JIT="1") == capsys.readouterr().out


def test_numbers_never_change_between_releases() -> None:
    """A seed in a paper must mean the same numbers next year: SplitMix64, here in plain integers."""

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    golden, start = 0x9E3779B97F4A7C15, 2**64 - 5
    key = rng.fold(np.uint64(start), 8)
    assert int(key) == mix(((start ^ 8) + golden) % 2**64)
    for draw in range(4):
        word = mix((int(key) + (draw + 1) * golden) % 2**64)
        assert int(rng.bits(np.uint64(key), draw)) == word
        assert float(rng.uniform(np.uint64(key), draw)) == (word >> 11) / 2**53


def test_every_coordinate_matters() -> None:
    """Seeds and streams are both small integers: swapping them must give another key."""
    keys = {int(rng.key(seed, s, a, b)) for seed in range(6) for s in Stream for a in range(12) for b in range(12)}
    assert len(keys) == 6 * len(Stream) * 12 * 12
    assert rng.key(0, Stream.ACT, 1, 2) != rng.key(0, Stream.ACT, 2, 1)


def test_streams_share_no_number_and_are_not_correlated() -> None:
    draws = {stream: rng.uniforms(some_keys(400, stream), 8).ravel() for stream in Stream}
    assert len(np.unique(np.concatenate(list(draws.values())))) == len(Stream) * 3200
    correlation = np.corrcoef(np.stack(list(draws.values()))) - np.eye(len(Stream))
    assert np.abs(correlation).max() < 5 / np.sqrt(3200)


def test_neighbouring_keys_and_draws_are_not_correlated() -> None:
    u = rng.uniforms(some_keys(2000), 10)
    for a, b in ((u[1:], u[:-1]), (u[:, 1:], u[:, :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / np.sqrt(a.size)


def test_uniforms_are_uniform() -> None:
    u = rng.uniforms(some_keys(2000), 50).ravel()
    assert u.min() >= 0.0
    assert u.max() < 1.0
    assert abs(u.mean() - 1 / 2) < 5 * np.sqrt(1 / 12 / u.size)
    assert abs(u.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / u.size)
    counts = np.histogram(u, bins=100, range=(0, 1))[0]
    assert ((counts - 1000.0) ** 2 / 1000).sum() < 99 + 5 * np.sqrt(2 * 99)


def test_normals_are_normal() -> None:
    z = rng.normals(some_keys(2000), 50)
    error = 1 / np.sqrt(z.size)
    assert abs(z.mean()) < 5 * error
    assert abs(z.var() - 1) < 5 * np.sqrt(2) * error
    assert abs((z**3).mean()) < 5 * np.sqrt(15) * error
    assert abs((z**4).mean() - 3) < 5 * np.sqrt(96) * error
    assert abs(np.corrcoef(z[:, ::2].ravel(), z[:, 1::2].ravel())[0, 1]) < 5 / np.sqrt(z.size / 2)


@pytest.mark.parametrize("bound", [1, 3, 7, 1000])
def test_below_reaches_every_number_and_no_other(bound: int) -> None:
    drawn = [int(rng.below(rng.key(1, Stream.CHECK), draw, bound)) for draw in range(20 * bound)]
    assert set(drawn) == set(range(bound))


def test_numbers_do_not_depend_on_how_keys_are_batched() -> None:
    keys = some_keys(60).reshape(3, 4, 5)
    for draw in (rng.uniforms, rng.normals):
        whole = draw(keys, 7)
        assert np.array_equal(whole[1:, ::2, 3], draw(keys[1:, ::2, 3], 7))
        assert np.array_equal(whole[..., :2], draw(keys, 2))
        assert np.array_equal(whole[2, 1, 4], draw(keys[2, 1, 4:], 7)[0])
    folded = rng.keys(keys, np.arange(5))
    assert np.array_equal(folded[1, ::3, 2:], rng.keys(keys[1, ::3, 2:], np.arange(2, 5)))
    assert np.array_equal(folded, rng.keys(keys, np.broadcast_to(np.arange(5), keys.shape)))


@pytest.mark.parametrize("shapes", [((5, 1), (3,)), ((3,), (5, 1)), ((1, 3), (5, 1)), ((), (5, 3)), ((5, 3), ())])
def test_folding_broadcasts_either_way(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    base = some_keys(15)[: int(np.prod(shapes[0]))].reshape(shapes[0])
    coordinate = np.arange(int(np.prod(shapes[1]))).reshape(shapes[1])
    result = rng.keys(base, coordinate)
    bases, coordinates = np.broadcast_arrays(base, coordinate)
    one_by_one = [int(rng.fold(b, int(c))) for b, c in zip(bases.ravel(), coordinates.ravel(), strict=True)]
    assert result.shape == (5, 3)
    assert result.ravel().tolist() == one_by_one


@pytest.mark.parametrize("coordinate", [3, np.arange(4)], ids=["one", "many"])
def test_folding_does_not_depend_on_the_memory_layout_of_keys(coordinate: Any) -> None:
    keys = some_keys(20).reshape(4, 5)
    assert np.array_equal(rng.keys(keys.T, coordinate), rng.keys(np.ascontiguousarray(keys.T), coordinate))


def test_folding_does_not_change_its_arguments() -> None:
    keys = some_keys(4)
    before = keys.copy()
    rng.keys(keys, 3)
    assert np.array_equal(keys, before)


def test_torch_is_seeded_inside_the_context_only() -> None:
    torch.manual_seed(3)
    undisturbed = torch.rand(4)
    torch.manual_seed(3)
    with rng.torch_seeded(rng.key(0, Stream.INIT)):
        inside = torch.rand(4)
    assert torch.equal(torch.rand(4), undisturbed)
    with rng.torch_seeded(rng.key(0, Stream.INIT)):
        assert torch.equal(torch.rand(4), inside)
    with rng.torch_seeded(rng.key(1, Stream.INIT)):
        assert not torch.equal(torch.rand(4), inside)
