"""The client side of the Kubernetes API: transport, informers, lease, events, execution of decisions."""
