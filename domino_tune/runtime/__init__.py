"""Runtime: plays schedules on real ranks with PyTorch. May import store, requests, base and the
simulator. Inside it: executor, session and the jobs > launch | ops > lanes."""
