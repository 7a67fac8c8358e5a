"""Audit kernel fusion in existing PyTorch programs."""

__version__ = "0.1.0"
