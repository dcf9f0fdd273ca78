"""Launch: starts ranks and connects them. May import lanes, launch_spec, priority and base."""
