"""Clock, errors, ids, the Client and what follows from it alone (retry, informer). Imports no other layer."""
