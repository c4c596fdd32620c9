"""Dynamic resource allocation without a driver: claims of templates, released claims, eviction by device taints."""
