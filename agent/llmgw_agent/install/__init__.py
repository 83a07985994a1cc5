"""Installs engines: each version in an environment of its own, built by uv from a lock with hashes.

To follow the code: ``plan.py`` decides what is wanted (pure), ``installer.py`` what to do about it, ``build.py`` builds one
environment, ``uv.py`` runs uv, ``environments.py`` knows what is there.
"""
