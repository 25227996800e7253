"""Gradient checkpointing in JAX: see, measure and plan the memory of a gradient."""
