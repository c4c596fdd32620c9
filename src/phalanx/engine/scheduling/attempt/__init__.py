"""One attempt: from the cluster state and a unit to an answer. Changes nothing. Imports `lifecycle` and `queue`."""
