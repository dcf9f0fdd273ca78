"""Existing objects are left out of garbage collections; objects that are made later are not."""

from __future__ import annotations

import subprocess
import sys

LATER = """
import gc, weakref
from domino_tune.base.garbage import leave_out_what_is_there

class Node:
    pass

def cycle():
    node = Node()
    node.own = node
    return weakref.ref(node)

gone = cycle()
leave_out_what_is_there()
assert gone() is None, "garbage is not kept"
assert gc.get_freeze_count() > 1000
later = cycle()
gc.collect()
assert later() is None
"""


def test_only_what_is_there_is_left_out() -> None:
    subprocess.run([sys.executable, "-c", LATER], check=True)
