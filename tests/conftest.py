"""What all tests share.

Property tests are not timed, because a loaded machine is no mistake in the code. And whoever starts the tests in the
background of a shell has them ignore Ctrl-C, which every child would inherit, the ones that are tested with it too.
"""

import signal

from hypothesis import settings

settings.register_profile("plugym", deadline=None)
settings.load_profile("plugym")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
