"""Clock, errors, ids and the Client protocol: what every layer may rely on. Must import no other layer."""
