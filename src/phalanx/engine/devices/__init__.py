"""Devices of dynamic resource allocation: what drivers publish, what claims ask for, and who gets which."""
