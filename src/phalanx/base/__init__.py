"""Clock, errors, ids, the Client protocol and what follows from it alone (retry, informer). Imports no other layer."""
