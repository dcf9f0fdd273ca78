"""Plain torch: the same model with autograd and no schedule, to compare with. May import ops."""
