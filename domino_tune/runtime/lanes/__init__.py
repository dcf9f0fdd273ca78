"""Lanes: queues of collectives. May import clock, launch_spec, priority and the simulator."""
