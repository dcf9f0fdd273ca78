"""A TCP proxy on loopback that breaks connections: the request arrives, the answer is lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress


class CuttingProxy:
    """Forwards to a server that may stop and come back elsewhere; meanwhile connections are lost.

    While ``cuts`` is above 0, each new connection lowers it by one and is closed as soon as the
    server has answered its first request, without passing the answer on.
    """

    def __init__(self, url: str) -> None:
        self.leads_to(url)
        self.cuts = 0
        self.cut = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def leads_to(self, url: str) -> None:
        """Forward new connections to ``http://HOST:PORT``."""
        host, _, port = url.removeprefix("http://").rpartition(":")
        self.target = (host, int(port))

    def run(self) -> None:
        """Serve until the listener is closed."""
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            cutting = self.cuts > 0
            self.cuts -= cutting
            threading.Thread(target=self._join, args=(client, cutting), daemon=True).start()

    def _join(self, client: socket.socket, cutting: bool) -> None:
        with (
            closing(client), suppress(OSError),
            closing(socket.create_connection(self.target)) as server,
        ):  # fmt: skip
            there = threading.Thread(target=_pump, args=(client, server), daemon=True)
            there.start()
            if cutting:
                server.recv(1)
                self.cut += 1
                client.shutdown(socket.SHUT_RDWR)
            else:
                _pump(server, client)
            there.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def cutting_proxy(url: str) -> Iterator[CuttingProxy]:
    """A proxy in front of ``url``, ``http://HOST:PORT``."""
    proxy = CuttingProxy(url)
    threading.Thread(target=proxy.run, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.listener.shutdown(socket.SHUT_RDWR)
        proxy.listener.close()
