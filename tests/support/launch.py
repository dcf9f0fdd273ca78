"""The service on a socket that is given by its number, as ``serve`` starts it."""

from __future__ import annotations

import socket
import sys

from domino_tune.service import serving

if __name__ == "__main__":
    serving._run(socket.socket(fileno=int(sys.argv[1])), lambda: None, ())
