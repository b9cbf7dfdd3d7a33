# The types of the names that __init__.py loads on first use.
from seatrial.sdk.evaluator import AsyncEvaluator as AsyncEvaluator
from seatrial.sdk.evaluator import Evaluator as Evaluator
from seatrial.taskpkg.collection import discover_harbor_tasks as discover_harbor_tasks

__version__: str
