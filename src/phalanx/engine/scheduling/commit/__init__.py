"""What follows an answer: admission to the queue, reservations, binding, evictions. The top layer of `scheduling`."""
