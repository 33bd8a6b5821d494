"""From logits to sampled tokens, for all rows of a batch at once.

Each row draws from its own random stream, keyed by its request's seed alone, by inverting the cumulative distribution
at one uniform number per token: what a row samples depends on its logits and its seed, never on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from plugym.engine import Sampling

FIRST_CUT = 512
"""Candidates looked at first for top-k and top-p."""
BLOCK = 256
"""Entries of a distribution that are accumulated together."""


def uniforms(seed: int, count: int) -> npt.NDArray[np.float64]:
    """`count` uniform numbers in [0, 1) of the stream that belongs to `seed`: float64[count].

    Philox is counter-based, so the streams of any two seeds are independent (Salmon et al. 2011, "Parallel random
    numbers: as easy as 1, 2, 3").

    >>> bool((uniforms(7, 3) == uniforms(7, 5)[:3]).all())
    True
    """
    return np.random.Generator(np.random.Philox(key=seed % (1 << 128))).random(count)


class Sampler:
    """Samples one token per row and step.

    settings and seeds belong to the rows, in order; `steps` is the largest number of tokens any of them will draw.
    Log-probs are those of the temperature-scaled distribution before top-k and top-p (`plugym.engine.Sampling`).
    """

    def __init__(self, settings: Sequence[Sampling], seeds: Sequence[int], steps: int, device: torch.device) -> None:
        draws = np.stack([uniforms(seed, steps) for seed in seeds])
        self._draws = torch.from_numpy(draws).to(device)
        self._settings = list(settings)
        self._device = device
        self._prepare()

    def keep(self, order: Sequence[int]) -> None:
        """Row i becomes what row order[i] was."""
        self._settings = [self._settings[i] for i in order]
        self._draws = self._draws[list(order)]
        self._prepare()

    def _prepare(self) -> None:
        """Sort rows by how they are sampled, so that a step only indexes when kinds are mixed."""
        kinds: dict[str, list[int]] = {"greedy": [], "plain": [], "cut": []}
        for row, setting in enumerate(self._settings):
            cut = setting.top_k > 0 or setting.top_p < 1.0
            kinds["greedy" if setting.temperature == 0 else "cut" if cut else "plain"].append(row)
        self._kinds = {kind: torch.tensor(rows, device=self._device) for kind, rows in kinds.items() if rows}
        scale = temperatures(self._settings, self._device)
        self._scale = None if bool((scale == 1).all()) else scale
        self._cuts = [self._settings[row] for row in kinds["cut"]]

    def draw(self, logits: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """The tokens of this step, int64[rows], and their log-probs, float32[rows], of logits[rows, vocabulary]."""
        scores = logits.float()
        if self._scale is not None:
            scores = scores / self._scale
        probs = torch.softmax(scores, dim=-1)
        tokens = torch.empty(len(self._settings), dtype=torch.int64, device=self._device)
        for kind, rows in self._kinds.items():
            part = probs if len(rows) == len(probs) else probs[rows]
            draws = self._draws[rows, step]
            if kind == "greedy":
                tokens[rows] = part.argmax(dim=-1)
            elif kind == "plain":
                tokens[rows] = invert(part, draws)
            else:
                tokens[rows] = draw_cut(part, draws, self._cuts)
        # The log of a float32 softmax is as exact as log_softmax for whatever is likely enough to be drawn.
        return tokens, probs.gather(1, tokens[:, None])[:, 0].log()


def temperatures(settings: Sequence[Sampling], device: torch.device) -> Tensor:
    """What each row's logits are divided by, float32[rows, 1]: 1 for greedy rows."""
    values = [setting.temperature or 1.0 for setting in settings]
    return torch.tensor(values, dtype=torch.float32, device=device)[:, None]


def invert(weights: Tensor, draws: Tensor) -> Tensor:
    """Index at which the cumulative weight first exceeds draws * total: int64[rows] of weights[rows, n] >= 0.

    The sum runs over blocks first and then inside one block: most of a vocabulary is never accumulated one by one. An
    entry of weight 0 is never chosen.

    >>> invert(torch.tensor([[0.5, 0.0, 0.5]]), torch.tensor([0.5], dtype=torch.float64)).tolist()
    [2]
    """
    n = weights.shape[1]
    whole = n - n % BLOCK
    blocks = weights[:, :whole].unflatten(1, (-1, BLOCK)).sum(dim=-1)
    if whole < n:
        blocks = torch.cat([blocks, weights[:, whole:].sum(dim=-1, keepdim=True)], dim=1)
    block, draws = _invert_few(blocks, draws)
    inside = block[:, None] * BLOCK + torch.arange(BLOCK, device=weights.device)
    few = weights.gather(1, inside.clamp(max=n - 1)).masked_fill(inside >= n, 0.0)
    # Only NaN weights lead beyond the end: the log-prob will tell, an index out of range would not.
    return (block * BLOCK + _invert_few(few, draws)[0]).clamp(max=n - 1)


def _invert_few(weights: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """The same by plain accumulation, and where inside the chosen entry's share the draw fell: float64[rows] in
    [0, 1)."""
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1]
    # Rounding may lift the product to the total itself, which no entry exceeds.
    target = torch.minimum(draws * total, torch.nextafter(total, torch.zeros_like(total)))
    chosen = torch.searchsorted(cumulative, target[:, None], right=True)
    chosen = chosen.clamp(max=weights.shape[1] - 1)
    share = weights.gather(1, chosen).double()
    left = (target[:, None] - cumulative.gather(1, chosen) + share) / share
    return chosen[:, 0], left[:, 0].clamp(0.0, 1.0 - 2.0**-53)


def draw_cut(probs: Tensor, draws: Tensor, settings: Sequence[Sampling]) -> Tensor:
    """Sample within the top k, then within the smallest set that holds the mass top_p of those (nucleus sampling,
    Holtzman et al. 2020, arXiv:1904.09751): int64[rows] of probs[rows, vocabulary]."""
    vocabulary = probs.shape[1]
    limits = [min(s.top_k, vocabulary) or vocabulary for s in settings]
    top_k = torch.tensor(limits, device=probs.device)[:, None]
    top_p = torch.tensor([s.top_p for s in settings], dtype=torch.float64, device=probs.device)[:, None]
    # Sorting the vocabulary would cost more than the model: look at the best few, and widen only where top-p needs it.
    width = min(max([FIRST_CUT, *(k for k in limits if k < vocabulary)]), vocabulary)
    while True:
        best, ids = probs.topk(width, dim=-1)
        rank = torch.arange(width, device=probs.device)
        mass = best.double().masked_fill(rank >= top_k, 0.0)
        total = mass.sum(dim=-1, keepdim=True)
        wanted = top_p * torch.where(top_k < vocabulary, total, 1.0)
        if width == vocabulary or bool((total >= wanted).all()):
            break
        width = min(width * 8, vocabulary)
    before = mass.cumsum(dim=-1) - mass
    kept = mass.masked_fill((before >= wanted) & (rank > 0), 0.0)
    return ids.gather(1, invert(kept, draws)[:, None])[:, 0]
