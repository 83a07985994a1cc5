"""HTTP/1.1 as bytes: which headers pass, and answers rendered ahead of time."""
