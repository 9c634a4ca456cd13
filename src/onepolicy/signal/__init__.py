"""The training signal: reference implementations of KL, advantages, losses, masks and shaping, and checks on them."""
