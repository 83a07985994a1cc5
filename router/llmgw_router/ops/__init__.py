"""The paths that are not hot: health and metrics."""
