"""The commands of `phalanx`."""
