"""Plans in Hugging Face models: decoder stacks that play a plan inside the user's own loop.

``apply`` > stack | edges | replicas | saving > arriving, shard, cut, families.
"""
