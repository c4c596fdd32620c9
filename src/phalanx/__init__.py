"""Phalanx places groups of pods together, or not at all."""

__version__ = "0.3.0"
