"""Checks anybody's implementation of the method, in any framework: cases with their right answers,
and the answers of the usual mistakes. It needs numpy alone.

    from tst_study.conformance import check

    print(check(my_loss, my_embed))

`cases.json` holds the cases, which `tests/conformance/generate.py` in the repository computes, and
`judging.py` judges answers.
"""

from tst_study.conformance.judging import Verdict, cases, check, judge

__all__ = ["Verdict", "cases", "check", "judge"]


def __dir__() -> list[str]:
    return __all__
