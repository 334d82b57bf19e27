"""References to the fragments of rounds, kept for learners that are lost and have to learn them again."""

from __future__ import annotations

from collections.abc import Sequence

from remuda.engines.collectors.ray.remote import Cut, RemoteFragments
from remuda.engines.interfaces import RoundPiece
from remuda.engines.trainers.ray.actor import PieceReference

KEEP_BYTES = 256 << 20
"""Fragments of learned rounds that are kept: in the stores of the nodes, not here."""


class KeptRounds:
    """Complete rounds: those that are not learned yet, and the newest learned ones that fit."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[tuple[RoundPiece, RemoteFragments]]] = {}  # by round, in the order of episodes
        self._bytes: dict[int, int] = {}  # by round

    def keep(self, number: int, pieces: Sequence[RoundPiece]) -> None:
        """A round is complete; its pieces are in the order of episodes."""
        own = []
        for piece in pieces:
            assert isinstance(piece.delivery.fragments, RemoteFragments), "learner actors read from object stores"
            own.append((piece, piece.delivery.fragments))
        self._pieces[number] = own
        self._bytes[number] = sum(fragments.nbytes for _, fragments in own)

    def references(self, number: int, learner: int, cuts: Sequence[Cut]) -> list[PieceReference]:
        """One learner's share of a round."""
        return [
            PieceReference(
                piece.delivery.task.episodes[piece.worlds],
                (piece.worlds.start, piece.worlds.stop),
                fragments.share(learner, cuts),
            )
            for piece, fragments in self._pieces[number]
        ]

    def drop_what_does_not_fit(self, version: int) -> None:
        """Drop the oldest of the rounds up to `version`, which are learned."""
        learned = [number for number in self._pieces if number <= version]
        while learned and sum(self._bytes[number] for number in learned) > KEEP_BYTES:
            self._drop(learned.pop(0))

    def drop_up_to(self, version: int) -> None:
        """Drop rounds that are part of a checkpoint."""
        for number in [number for number in self._pieces if number <= version]:
            self._drop(number)

    def _drop(self, number: int) -> None:
        del self._pieces[number], self._bytes[number]

    def clear(self) -> None:
        """Drop all of them."""
        self._pieces.clear()
        self._bytes.clear()

    def __contains__(self, number: int) -> bool:
        return number in self._pieces
