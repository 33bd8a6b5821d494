"""What plugin authors test their plugins with: small fakes of the parts a runner brings.

Nothing here needs a model, a network or pytest.
"""

from plugym.testing.fakes import CharTokenizer, FakeLearner

__all__ = ["CharTokenizer", "FakeLearner"]
