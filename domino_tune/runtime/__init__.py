"""Plays any Schedule on real ranks with PyTorch: the second executor."""
