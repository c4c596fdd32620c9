"""Files made from the code: pages and images of the documentation, constants of the dashboard's JavaScript."""
