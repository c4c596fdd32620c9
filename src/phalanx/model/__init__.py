"""What objects are: kinds, schema, quantities, selectors, defaults, validation, conversion, the group tree."""
