"""Counts that add up to sacrebleu's own corpus scores."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import sacrebleu
from sacremoses import MosesTokenizer  # type: ignore[import-untyped]

from tasks.wmt14.bleu import bleu, count_bleu, signature

TEXT = "der die das Haus ist groß , klein . Die E-Mail-Adresse 3,5 % z.B. „so“ & <b>"


def corpus(lines: int, seed: int) -> tuple[list[str], list[str]]:
    draw = random.Random(seed)
    references = [" ".join(draw.choices(TEXT.split(), k=draw.randint(1, 14))) for _ in range(lines)]
    hypotheses = [
        " ".join(w for w in line.split() if draw.random() < 0.9) if draw.random() < 0.95 else ""
        for line in references
    ]
    return hypotheses, references


def in_parts(hypotheses: list[str], references: list[str], parts: int) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in range(parts):
        for name, value in count_bleu(hypotheses[part::parts], references[part::parts]).items():
            total[name] = total.get(name, 0.0) + value
    return bleu(total)


@pytest.mark.parametrize("parts", [1, 2, 7, 60])
def test_parts_add_up_to_sacrebleus_score(parts: int):
    hypotheses, references = corpus(60, seed=parts)
    found = in_parts(hypotheses, references, parts)
    assert found["sacrebleu"] == sacrebleu.corpus_bleu(hypotheses, [references]).score
    moses = MosesTokenizer("de")
    tokenised = [
        [moses.tokenize(x, aggressive_dash_splits=True, return_str=True, escape=False) for x in s]
        for s in (hypotheses, references)
    ]
    expected = sacrebleu.corpus_bleu(tokenised[0], [tokenised[1]], tokenize="none", force=True)
    assert found["token_bleu"] == expected.score
    assert 20 < found["sacrebleu"] < 100


def test_the_ends_of_the_scale():
    _, references = corpus(20, seed=0)
    assert bleu(count_bleu(references, references)) == pytest.approx(
        {"sacrebleu": 100.0, "token_bleu": 100.0}
    )
    assert bleu(count_bleu([""] * 20, references)) == {"sacrebleu": 0.0, "token_bleu": 0.0}
    assert count_bleu([], []) == {}


def test_hyphens_are_split_for_token_bleu_only():
    whole = count_bleu(["Die E-Mail"], ["Die E-Mail"])
    assert whole["sacrebleu/total_1"] == 2
    assert whole["token_bleu/total_1"] == 4  # Die E @-@ Mail


def test_the_signature():
    assert signature().startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.")


@pytest.mark.skipif("DATA_ROOT" not in os.environ, reason="DATA_ROOT is not set")
def test_real_sentences():
    folder = Path(os.environ["DATA_ROOT"]) / "newstest"
    en, de = ((folder / f"test.{x}").read_text().split("\n")[:200] for x in ("en", "de"))
    assert in_parts(en, de, 3)["sacrebleu"] == sacrebleu.corpus_bleu(en, [de]).score
