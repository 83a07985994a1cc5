"""Engine drivers, one file each. To add one: write it after ``base.py`` and name it in ``registry.py``."""
