"""A local Kubernetes for development and tests: kind where Docker runs, else one real node made of ordinary packages.

Standard library only: it has to run with the Python of a bare machine, before any virtual environment exists.
"""
