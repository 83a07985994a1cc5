"""Engine logs on disk: read, followed, and kept within bounds."""
