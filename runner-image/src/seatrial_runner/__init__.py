"""What runs beside the task in a trial Pod: ``stage``, ``agent``, ``verifier``. Standard library only."""
