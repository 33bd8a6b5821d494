"""What all tests share: property tests are not timed, because a loaded machine is no mistake in the code."""

from hypothesis import settings

settings.register_profile("plugym", deadline=None)
settings.load_profile("plugym")
