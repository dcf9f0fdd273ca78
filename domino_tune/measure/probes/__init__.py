"""Probes: measurements that ranks make together. May import runtime, base and the simulator."""
