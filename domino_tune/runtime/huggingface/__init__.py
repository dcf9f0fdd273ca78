"""Plans in Hugging Face models: decoder stacks that play a plan inside the user's own loop.

``trainer`` | ``apply`` > stack | edges | replicas | saving | optimizers | wrappers > arriving,
shard, weights, cut > families.
"""
