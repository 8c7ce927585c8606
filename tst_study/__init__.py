"""Token Superposition Training: one training job, from configuration to run record."""

__version__ = "0.1.0"
