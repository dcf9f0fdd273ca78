"""The service on a socket that is given by its number, as ``serve`` starts it."""

from __future__ import annotations

import socket
import sys

from domino_tune.base.errors import ServiceError
from domino_tune.service import serving

if __name__ == "__main__":
    try:
        serving._run(socket.socket(fileno=int(sys.argv[1])), lambda: None, ())
    except ServiceError as error:
        sys.exit(str(error))
