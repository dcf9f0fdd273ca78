"""The service on a socket that is given by its number, as ``serve`` starts it."""

from __future__ import annotations

import socket
import sys

import uvicorn


def main() -> None:
    """Serve until a signal comes."""
    config = uvicorn.Config(
        "api.app:app", factory=True, http="api.protocol:TimedProtocol", ws="none", loop="asyncio",
        lifespan="on", log_level="warning", access_log=False, server_header=False,
        proxy_headers=False, h11_max_incomplete_event_size=16 << 10,
        timeout_graceful_shutdown=2,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])


if __name__ == "__main__":
    main()
