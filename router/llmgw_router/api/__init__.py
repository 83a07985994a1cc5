"""What clients may ask for: routes, families of errors, and the few body fields that the router reads."""
