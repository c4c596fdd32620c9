"""Pods of a LeaderWorkerSet: their labels and annotations, and what its webhook gives to them."""
