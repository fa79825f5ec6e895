"""Mark-up that articles use, and the plain lines and words that become of it."""

from __future__ import annotations

import pytest

from tasks.wikitext103.markup import DISAMBIGUATION, Line, article_lines, plain
from tasks.wikitext103.tokens import tokenize


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("'''Bold''' and ''slanted''", "Bold and slanted"),
        ("a [[link]], [[Other page|shown]] and [[plural]]s", "a link, shown and plurals"),
        ("[[:Category:Acids|acids]] stay", "acids stay"),
        ("gone [[Category:Acids]][[de:Säure]]", "gone "),
        ("[[File:A.jpg|thumb|200px|A [[cat]] and [http://x.org a site]]]left", "left"),
        ("[[Image:A.jpg]]left", "left"),
        ("see [http://example.org/a?b=c the site] [http://example.org]", "see the site "),
        ('stated<ref name="x" /> so<ref name="y">{{cite web|url=http://x}}</ref>.', "stated so."),
        ("a<!-- not\nthis -->b", "ab"),
        ("{{Infobox|a={{nested|b}}\n|c=d}}text", "text"),
        ('before\n{| class="x"\n| cell\n{|\n| inner\n|}\n|}\nafter', "before\n\nafter"),
        ("fish &amp; chips&nbsp;&ndash; cheap", "fish & chips – cheap"),
        ("CO<sub>2</sub> and x<br/>y", "CO2 and x y"),
        ("an area <math>a < b</math> here", "an area <formula> here"),
        ("the name ({{IPAc-en|a|b}}; {{lang|el|ἀρχή}})", "the name (ἀρχή)"),
        ("the name ({{IPAc-en|a|b}}) is", "the name is"),
        ("{{convert|60|cm|in|abbr=on}} long", "60 cm long"),
        ("{{convert|1200|to|3400|km|mi}}", "1,200 to 3,400 km"),
        ("{{as of|2010|lc=y}}, {{small|few}}{{snd}}{{nowrap|1=two words}}", None),
        ("first.<ref>x</ref>Second", "first. Second"),
        ("__NOTOC__text", "text"),
        ("{{lang-la|cattus}} {{HMS|Bounty}} {{circa|1500}}", "cattus HMS Bounty c. 1500"),
    ],
)
def test_plain(source: str, wanted: str | None):
    expected = "as of 2010, few – two words" if wanted is None else wanted
    assert plain(source) == expected


ARTICLE = """{{Use dmy dates}}
'''Cats''' are small
animals of the house.
{{clear}}

They sleep a lot.
== Life ==
=== Food ===
* Mice
* In winter they eat what people give them to eat.
; Term
| debris of a table that was not closed
<blockquote>A cat is a very fine animal.</blockquote>
== Empty ==
{{main|Dogs}}
== See also ==
* A long item about dogs that nobody wants to see here.
=== Below it ===
A sentence that is not wanted.
== Names ==
A cat has many names.
== References ==
{{reflist}}
"""


def test_lines_of_an_article():
    assert article_lines("Cat", ARTICLE) == [
        Line(1, "Cat"),
        Line(0, "Cats are small animals of the house."),
        Line(0, "They sleep a lot."),
        Line(2, "Life"),
        Line(3, "Food"),
        Line(0, "In winter they eat what people give them to eat."),
        Line(0, "A cat is a very fine animal."),
        Line(2, "Names"),
        Line(0, "A cat has many names."),
    ]


def test_an_article_without_text():
    assert article_lines("List of cats", "{{x}}\n== A ==\n* [[Tom (cat)|Tom]]\n") == []


@pytest.mark.parametrize(
    ("line", "is_kept"),
    [
        ("Where is the cat?", True),
        ("It said: www.example.org is a good address.", False),
        ("1 + 2 = 3 (4) 5 6 7 8.", False),
        ("A heading without an end", False),
        ("Unclosed {{template of a sentence.", False),
    ],
)
def test_which_lines_are_prose(line: str, is_kept: bool):
    assert bool(article_lines("Title", line)) == is_kept


def test_disambiguation_pages():
    assert DISAMBIGUATION.search("x\n{{disambiguation|geo}}")
    assert DISAMBIGUATION.search("x\n{{Disambig}}")
    assert not DISAMBIGUATION.search("x {{distinguish|disambiguation}}")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("A red-tipped, hard claw.", "A red @-@ tipped , hard claw ."),
        ("2.2 kg of 14,000 in 1,2 (or 3).", "2 @.@ 2 kg of 14 @,@ 000 in 1 , 2 ( or 3 ) ."),
        ("1,234,567.8 units", "1 @,@ 234 @,@ 567 @.@ 8 units"),
        ("Boyle's law wasn't the boys' law.", "Boyle 's law wasn 't the boys ' law ."),
        (
            "don't 'quote' the U.S.'s 1990's o'clock",
            "don 't ' quote ' the U.S. 's 1990 's o 'clock",
        ),
        ("the “red” ‘cat’", "the \" red \" ' cat '"),
        ("The U.S. and H. americanus, e.g. here.", "The U.S. and H. americanus , e.g. here ."),
        ("Dr. No lives at No. 5 St. Mark's Sq.", "Dr. No lives at No. 5 St. Mark 's Sq ."),
        ("He said no. Then he left the U.S.", "He said no . Then he left the U.S."),
        ("plan A. ", "plan A ."),
        ("5–6 % of $30, and/or 30°...", "5 – 6 % of $ 30 , and / or 30 ° ..."),
        ("let <formula>, be", "let <formula> , be"),
        ("café naïve cafe\u0301 เบียร์", "café naïve café เบียร์"),
        ("", ""),
    ],
)
def test_tokens(text: str, wanted: str):
    assert tokenize(text) == wanted.split()
