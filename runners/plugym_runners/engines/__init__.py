"""Engines that speak HTTP: `openai` for any compatible endpoint, `vllm` for a server whose weights a run replaces.

From the outside in: `openai` and `vllm` are the engines; `wire` turns requests into bodies and answers into
completions; `probe` finds out what a server understands; `refusals` reads what it says when it refuses; `client` sends,
retries and counts; `throttle` decides when; `stream` puts the pieces of a streamed answer together; `server` starts
and ends vLLM.
"""
