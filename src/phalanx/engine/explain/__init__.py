"""Explain why something is pending and which changes would help; answer what-if queries. No side effects."""

from phalanx.engine.explain.ask import Unknown, why
from phalanx.engine.explain.plans import plan
from phalanx.engine.explain.values import PlanAnswer, Relaxation, Report, Verdict, WhatIfAnswer, WhatIfUnit, Why
from phalanx.engine.explain.whatif import Question, whatif

__all__ = [
    "PlanAnswer",
    "Question",
    "Relaxation",
    "Report",
    "Unknown",
    "Verdict",
    "WhatIfAnswer",
    "WhatIfUnit",
    "Why",
    "plan",
    "whatif",
    "why",
]
