"""The router: serves the OpenAI API in front of many engines.

One request's way through the packages: :mod:`client` reads it, :mod:`api` knows what it asks for, :mod:`admission` lets it in,
:mod:`policies` choose a replica from the :mod:`table`, :mod:`relay` passes bytes between client and :mod:`engine`, and
:mod:`account` settles it. :mod:`health` keeps the table honest; :mod:`app` wires all of it together.
"""

from llmgw_proto import __version__

__all__ = ["__version__"]
