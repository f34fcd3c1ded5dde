"""Where should each phase of reinforcement learning run, and when? Measured, predicted, chosen."""

__version__ = "0.1.0"
