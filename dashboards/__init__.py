"""Grafana dashboards, Prometheus rules and the table of metrics, made from code: ``python -m dashboards`` writes, ``--check`` compares.

Why code: a query that is written once is executed once in the tests, against a Prometheus that scraped a real run.
"""
