"""Builders, reference implementations and a simulated world; public, and imported by nothing in the product."""
