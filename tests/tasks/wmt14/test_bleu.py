"""Counts that add up to sacrebleu's own corpus scores."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import sacrebleu
from sacremoses import MosesTokenizer  # type: ignore[import-untyped]

from tasks.wmt14.bleu import TOKENS, bleu, count_bleu, signature
from tasks.wmt14.moses import tokenize

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
    tokenised = [[tokenize(line) for line in side] for side in (hypotheses, references)]
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


def test_the_signature_names_the_tokens_of_both_scores():
    ours, theirs = signature().split("; ")
    assert ours.startswith("sacrebleu nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.")
    assert theirs == ours.replace("sacrebleu", "token_bleu").replace("tok:13a", f"tok:{TOKENS}")


class PeriodsAlwaysSplit(MosesTokenizer):  # type: ignore[misc]
    """sacremoses's English rules without its list of abbreviations."""

    def __init__(self) -> None:
        super().__init__("en")

    def handles_nonbreaking_prefixes(self, text: str) -> str:
        words = text.split()
        return " ".join(f"{w[:-1]} ." if len(w) > 1 and w.endswith(".") else w for w in words)


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ("Die E-Mail von Dr. Maier, z.B. heute.", "Die E @-@ Mail von Dr . Maier , z.B . heute ."),
        ("5,300 Euro, 3,5 %, oder 7,", "5,300 Euro , 3,5 % , oder 7 ,"),
        ("Rock'n'Roll ist's der 1990's", "Rock 'n'Roll ist 's der 1990 's"),
        ("„So ...“ sagt er: 'nein.'", "„ So ... “ sagt er : ' nein . '"),
        ("x_y 2² ½ & <b>", "x _ y 2 ² ½ & < b >"),
        (" \t\x01 ", ""),
    ],
)
def test_tokens_of_the_reference(line: str, tokens: str):
    """Frozen from NeMo 0.8.1's `tokenize_en`, unescaped."""
    assert tokenize(line) == tokens


@pytest.mark.skipif("DATA_ROOT" not in os.environ, reason="DATA_ROOT is not set")
def test_newstest2014_as_another_implementation_of_moses_reads_it():
    folder = Path(os.environ["DATA_ROOT"]) / "newstest"
    moses = PeriodsAlwaysSplit()
    for side in ("en", "de"):
        for line in (folder / f"test.{side}").read_text().splitlines():
            theirs = moses.tokenize(line, aggressive_dash_splits=True, escape=False)
            assert tokenize(line).split() == theirs


# What NeMo 0.8.1's own corpus_bleu (tokenize "fairseq" and "13a") gives for newstest2014's German
# text without every n-th word, and for its English text. German rules with abbreviations give a
# Token-BLEU of 70.2172, 34.9282 and 2.9845.
FROZEN = {
    7: (70.23503095347525, 69.64479145422924),
    4: (35.02829402163273, 32.40224774663005),
    None: (3.0537082802133364, 2.754502903088081),
}


@pytest.mark.parametrize("left_out", FROZEN)
@pytest.mark.skipif("DATA_ROOT" not in os.environ, reason="DATA_ROOT is not set")
def test_scores_of_the_reference_on_newstest2014(left_out: int | None):
    folder = Path(os.environ["DATA_ROOT"]) / "newstest"
    en, de = ((folder / f"test.{side}").read_text().splitlines() for side in ("en", "de"))
    hypotheses = en
    if left_out is not None:
        hypotheses = [
            " ".join(w for i, w in enumerate(line.split(), 1) if i % left_out) for line in de
        ]
    found = in_parts(hypotheses, de, 3)
    token_bleu, sacre = FROZEN[left_out]
    assert found["token_bleu"] == pytest.approx(token_bleu, abs=1e-12)
    assert found["sacrebleu"] == pytest.approx(sacre, abs=1e-12)
