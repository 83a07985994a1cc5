"""Which replicas serve which model: immutable snapshots of the table, and where they come from."""
