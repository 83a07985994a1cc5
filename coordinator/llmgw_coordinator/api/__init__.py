"""The admin API: a table of routes, one module per resource, and an OpenAPI document made from the table."""
