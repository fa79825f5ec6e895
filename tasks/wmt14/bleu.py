"""BLEU (Papineni et al., 2002) as counts that add up over sentences, closed by sacrebleu itself.

"sacrebleu" is sacreBLEU on detokenised text: tokenisation 13a, smoothing exp, with case. The
paper's "Token-BLEU" ("token_bleu") is the same formula on the tokens of `moses.py`, of hypothesis
and reference alike: NeMo's `corpus_bleu(…, tokenize="fairseq")` (nemo_nlp/utils/callbacks/
translation.py and metrics/sacrebleu.py, v0.8.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from sacrebleu.metrics.bleu import BLEU, MAX_NGRAM_ORDER, BLEUScore

from tasks.base import Counts
from tasks.wmt14.moses import tokenize

ORDERS = range(1, MAX_NGRAM_ORDER + 1)
TOKENS = "moses-en-aggressive-hyphens-no-prefixes"  # of "token_bleu", both sides


@lru_cache(maxsize=1)
def _metrics() -> dict[str, BLEU]:
    # `force` is for text that is tokenised already, about which sacrebleu would warn.
    return {"sacrebleu": BLEU(tokenize="13a"), "token_bleu": BLEU(tokenize="none", force=True)}


def count_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
    """Matching and all n-grams, and words of both sides, of some sentences, by either metric."""
    if not references:
        return {}
    counts: Counts = {}
    for name, metric in _metrics().items():
        pair: tuple[Sequence[str], Sequence[str]] = (hypotheses, references)
        if name == "token_bleu":
            pair = [_tokens(line) for line in hypotheses], [_tokens(line) for line in references]
        score = metric.corpus_score(pair[0], [pair[1]])
        assert isinstance(score, BLEUScore)
        counts[f"{name}/hypothesis"] = float(score.sys_len)
        counts[f"{name}/reference"] = float(score.ref_len)
        for n, correct, total in zip(ORDERS, score.counts, score.totals, strict=True):
            counts[f"{name}/correct_{n}"] = float(correct)
            counts[f"{name}/total_{n}"] = float(total)
    return counts


def sentence_bleu(hypothesis: str, reference: str) -> float:
    """sacreBLEU's score of one sentence, smoothed, of the orders that it has."""
    metric = BLEU(tokenize="13a", effective_order=True)
    return float(metric.sentence_score(hypothesis, [reference]).score)


def bleu(counts: Mapping[str, float]) -> dict[str, float]:
    """The scores of a whole corpus from the sums of its counts."""
    scores = {}
    for name in _metrics():
        score = BLEU.compute_bleu(
            correct=[int(counts[f"{name}/correct_{n}"]) for n in ORDERS],
            total=[int(counts[f"{name}/total_{n}"]) for n in ORDERS],
            sys_len=int(counts[f"{name}/hypothesis"]),
            ref_len=int(counts[f"{name}/reference"]),
            smooth_method="exp",
        )
        scores[name] = score.score
    return scores


def signature() -> str:
    """How both scores were calculated, in sacrebleu's own notation; one reference a sentence."""
    metric = BLEU(tokenize="13a")
    metric.corpus_score(["a"], [["a"]])  # it knows the number of references afterwards
    sacrebleu = str(metric.get_signature())
    return f"sacrebleu {sacrebleu}; token_bleu {sacrebleu.replace('tok:13a', f'tok:{TOKENS}')}"


@lru_cache(maxsize=20_000)  # references come again at every evaluation
def _tokens(line: str) -> str:
    return tokenize(line)
