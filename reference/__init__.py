"""Pages of the documentation that are made from code: ``python -m reference`` writes them, ``--check`` compares."""
