"""Asks a board."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from remuda.board.server import BoardServer


class Client:
    """Asks a board, as a browser or as somebody else would."""

    def __init__(self, server: BoardServer) -> None:
        self.port = int(server.server_address[1])

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    @contextmanager
    def follow(self, **wish: Any) -> Iterator[http.client.HTTPResponse]:
        """The answer to which a line is added whenever something has changed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", f"/api/follow?{urlencode({'wish': json.dumps(wish)})}")
            answer = connection.getresponse()
            assert answer.status == 200
            yield answer
        finally:
            connection.close()

    def json(self, path: str, **query: Any) -> Any:
        status, _, body = self.ask(f"{path}?{urlencode(query)}" if query else path)
        assert status == 200, (path, query, body)
        return json.loads(body)
