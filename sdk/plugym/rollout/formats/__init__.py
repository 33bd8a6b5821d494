"""Tool-call formats beyond Hermes, one module each: what other families of models were taught to write.

Each is a `plugym.rollout.parsers.Parser` and obeys its two rules: `calls` undoes `render_call`, whatever the arguments
hold, and no text of a model makes it raise.
"""
