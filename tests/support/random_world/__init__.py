"""One engine in a random life, from a seed: `world` holds the cluster and its faults, `events` what may happen,
`checks` what must be true."""
