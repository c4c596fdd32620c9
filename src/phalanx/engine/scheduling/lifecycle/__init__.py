"""States of pods and units, and the tables of transitions that alone change them. Imports `queue`."""
