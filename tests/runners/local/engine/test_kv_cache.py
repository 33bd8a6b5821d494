"""What is kept between turns, and for how long."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from plugym.errors import BadInput
from plugym_runners.local.kv_cache import CacheShape, RowCache, SessionCache

SHAPE = CacheShape(layers=2, heads=1, dim=3, dtype=torch.float32, device=torch.device("cpu"))


def states(tokens: int) -> torch.Tensor:
    return torch.arange(tokens, dtype=torch.float32)[None, None, None, :, None].expand(2, 2, 1, tokens, 3)


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_only_the_common_beginning_is_reused() -> None:
    cache = SessionCache(100)
    for prompt, reused in ((ids(1, 2, 3, 9), 3), (ids(1, 2, 8, 9), 2), (ids(1, 2, 3), 2), (ids(7, 2, 3, 4), None)):
        cache.put("a", ids(1, 2, 3), states(3))
        found = cache.take("a", prompt)
        assert (None if found is None else found.shape[3]) == reused
        assert cache.tokens == 0


def test_the_least_recently_used_session_goes_first_and_is_counted() -> None:
    cache = SessionCache(6)
    for name in "abc":
        cache.put(name, ids(1, 2, 3), states(3))
    assert (cache.evicted, cache.tokens) == (1, 6)
    assert cache.take("a", ids(1, 2, 3, 4)) is None
    cache.put("huge", np.arange(9), states(9))
    assert (cache.evicted, cache.tokens) == (4, 0)


def test_forgetting() -> None:
    cache = SessionCache(10)
    cache.put("a", ids(1, 2), states(2))
    cache.put("a", ids(1, 2, 3), states(3))
    cache.put("b", ids(4), states(1))
    assert cache.tokens == 4
    cache.drop("a")
    cache.drop("never seen")
    assert cache.tokens == 1
    cache.clear()
    assert (cache.tokens, cache.evicted) == (0, 0)


def test_rows_move_and_the_buffer_grows_without_changing_them() -> None:
    cache = RowCache(SHAPE, starts=[2, 0, 1], columns=3)
    new = torch.arange(9, dtype=torch.float32).reshape(3, 1, 3, 1).expand(3, 1, 3, 3)
    cache.open_columns(0, 3)
    for layer in range(2):
        cache.update(new, new + 100, layer)
    cache.keep([0, 2])
    assert cache.starts == [2, 1]
    cache.open_columns(3, 4)
    keys, values = cache.update(new[:2, :, :1] * 0 - 1, new[:2, :, :1] * 0 - 2, 0)
    assert keys[:, 0, :, 0].tolist() == [[1.0, 2.0, -1.0], [7.0, 8.0, -1.0]]  # column 0 was padding for both
    assert values[1, 0, :, 0].tolist() == [107.0, 108.0, -2.0]
    assert (cache.decode_mask()[:, 0, 0] == 0).tolist() == [[False, True, True], [True, True, True]]
    assert cache.save(1)[0, 0, 0, :, 0].tolist() == [7.0, 8.0, -1.0]


def test_a_padding_query_sees_itself_and_nothing_else() -> None:
    cache = RowCache(SHAPE, starts=[2, 0], columns=3)
    written = torch.tensor([[False, False, True], [True, True, True]])
    cache.open_columns(0, 3, written=written)
    seen = (cache.prefill_mask(written) == 0)[:, 0].int().tolist()
    assert seen[0] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert seen[1] == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_models_that_need_another_cache_are_refused() -> None:
    config = transformers.MistralConfig(
        vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=8, sliding_window=16,
    )  # fmt: skip
    model = transformers.MistralForCausalLM(config)
    with pytest.raises(BadInput, match="full attention only"):
        CacheShape.of(model, max_context=64)
    assert CacheShape.of(model, max_context=16).heads == 1
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(BadInput, match="'sdpa' or 'eager'"):
        CacheShape.of(model, max_context=16)
