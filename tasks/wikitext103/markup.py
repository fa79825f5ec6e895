"""From MediaWiki's mark-up to the lines of an article: headings and paragraphs of plain text.

What a reader of running text would miss is kept: the text of links, quotations, list items that
are sentences, numbers with their units. What surrounds it is left out: notes, tables, boxes,
pictures, navigation, and the closing sections that list links and books.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

FORMULA = "<formula>"  # as in WikiText
_FORMULA_MARK = "\ue000"  # stands for it while tags are removed; of the private use area
_SHORTEST_ITEM = 8  # words of an item of a list; below this it is rather a name than a sentence

CLOSING_SECTIONS = re.compile(
    "see also|references|external links|further reading|notes|footnotes|bibliography|sources"
    "|citations|works cited|notes and references|references and notes|works|selected works"
    "|selected bibliography|gallery|filmography|discography|publications|notes and citations"
    "|literature|primary sources|secondary sources|explanatory notes|notes and sources",
    re.I,
)
DISAMBIGUATION = re.compile(
    r"\{\{\s*(?:disambig\w*|[a-z]*dab|hndis|geodis|set index article|surname|given name)\b", re.I
)

# Templates that stand for a part of the sentence, by what they leave of their arguments.
_FIRST = re.compile(
    "small|smaller|big|large|larger|nowrap|nobr|sc|smallcaps|noitalic|em|strong|sub|sup|math|mvar"
    "|var|quote|bquote|blockquote|quotation|cquote|angbr|angle bracket|vr|linktext|vanchor|unicode"
    "|polytonic|nq|tooltip|abbr|keypress|key|ipa|gaps|nihongo|not a typo|sic"
)
_LAST = frozenset({"lang", "transl", "rtl-lang", "script", "native name", "wikt-lang"})
_CHARACTERS = {
    "nbsp": " ",
    "thinsp": " ",
    "snd": " – ",
    "spnd": " – ",
    "spaced ndash": " – ",
    "ndash": "–",
    "mdash": "—",
    "mdashb": "—",
    "spaced mdash": " — ",
    "'": "'",
    "' \"": "' \"",
    "'s": "'s",
    "dot": " · ",
    "!": " ",
    "=": "=",
    "minus": "−",
    "times": "×",
    "degree": "°",
    "deg": "°",
    "circa": "c. ",
    "c.": "c. ",
    "hamza": "ʼ",
}
_RANGES = {"-": "–", "–": "–", "x": "×", "&": "and"} | {w: w for w in ("to", "and", "or", "by")}
_UNITS = {
    "e6ha": "million hectares",
    "e6acre": "million acres",
    "sqmi": "square miles",
    "sqkm": "square kilometres",
    "mi": "miles",
    "ft": "feet",
    "in": "inches",
    "lb": "pounds",
    "mi2": "square miles",
    "km2": "km²",
    "m2": "m²",
    "m3": "m³",
    "F": "°F",
    "C": "°C",
    "°F": "°F",
    "°C": "°C",
    "nmi": "nautical miles",
    "acre": "acres",
    "yd": "yards",
    "koilbbl/d": "thousand barrels a day",
}


class Line(NamedTuple):
    """A heading of this level (an article's title is of level 1), or a paragraph if it is 0."""

    level: int
    text: str


def article_lines(title: str, source: str) -> list[Line]:
    """An article's title and text; sections without text are left out."""
    lines = [Line(1, title)]
    closed = 0  # the level of the closing section that the lines belong to
    for line in _paragraphs(plain(source)):
        heading = re.fullmatch(r"(={2,6})\s*(.*?)\s*={2,6}", line)
        if heading:
            level = len(heading[1])
            if closed and level > closed:
                continue
            closed = level if CLOSING_SECTIONS.fullmatch(heading[2]) else 0
            if not closed and heading[2]:
                while lines[-1].level >= level:
                    lines.pop()
                lines.append(Line(level, heading[2]))
        elif not closed and _is_prose(line):
            lines.append(Line(0, line.lstrip("*#:; ")))
    while lines and lines[-1].level > 0:
        lines.pop()
    return lines


def _paragraphs(text: str) -> Iterator[str]:
    """Headings, items and paragraphs; a paragraph ends at an empty line or one of those."""
    running: list[str] = []
    for raw in [*text.split("\n"), ""]:
        line = raw.strip()
        if line and line[0] not in "=*#:;|!{}":
            running.append(line)
            continue
        if running:
            yield " ".join(running)
            running = []
        if line:
            yield line


def _is_prose(line: str) -> bool:
    """Neither the rest of a table or a box, nor a name or a formula that stands alone."""
    text = line.lstrip("*#:; ")
    if not text or text[0] in "|!{}<" or line.startswith(("----", "#REDIRECT")):
        return False
    if re.search(r"https?://|www\.|\{\{|\}\}|\[\[|\]\]|ISBN|\bdoi:", text):
        return False
    words = text.split()
    letters = sum(character.isalpha() for character in text)
    if letters < 0.6 * len(text.replace(" ", "")):
        return False
    is_item = line[0] in "*#:;"
    if line[0] == ";" or (is_item and len(words) < _SHORTEST_ITEM):
        return False
    return text[-1] in ".!?:;\"”’')" and len(words) >= 4


def plain(source: str) -> str:
    """The text without mark-up; headings and list marks are still there."""
    text = re.sub(r"<!--.*?(?:-->|\Z)", "", source, flags=re.S)
    text = re.sub(r"<ref\b[^<>]*/>", "", text, flags=re.I)
    text = re.sub(r"<ref\b[^<>]*>.*?</ref\s*>", "", text, flags=re.S | re.I)
    text = re.sub(r"<math\b[^<>]*>.*?</math>", _FORMULA_MARK, text, flags=re.S | re.I)
    gone = "gallery|source|syntaxhighlight|pre|timeline|score|imagemap|references|table|ol|ul"
    text = re.sub(rf"<({gone})\b[^<>]*/>", "", text, flags=re.I)
    text = re.sub(rf"<({gone})\b[^<>]*>.*?</\1\s*>", "", text, flags=re.S | re.I)
    text = re.sub(r"</?nowiki\s*/?>", "", text, flags=re.I)
    text = _innermost(r"\{\{([^{}]*)\}\}", _template, text)
    text = _innermost(r"\{\|(?:(?!\{\||\|\}).)*\|\}", lambda _: "", text)
    text = re.sub(r"\{\|.*?\n\n", "\n\n", text, flags=re.S)  # tables that are never closed
    text = re.sub(r"\[(?:https?:|ftp:|mailto:|//)[^\s\]]*\s*([^\]]*)\]", r"\1", text)
    text = _innermost(r"\[\[([^\[\]]*)\]\]", _link, text)
    text = re.sub(r"'{2,5}", "", text)
    text = re.sub(r"<br\b[^<>]*>", " ", text, flags=re.I)
    blocks = "p|div|blockquote|poem|center|li|dl|dd|dt"
    text = re.sub(rf"</?(?:{blocks})\b[^<>]*>", "\n\n", text, flags=re.I)
    text = re.sub(r"</?[a-zA-Z][^<>]*>", "", text)
    text = re.sub(r"__[A-Z]+__", "", html.unescape(text)).replace("<", " ").replace(">", " ")
    return _tidy(text).replace(_FORMULA_MARK, FORMULA)


def _innermost(pattern: str, replace: Callable[[re.Match[str]], str], text: str) -> str:
    """Again and again, so that what is nested is replaced before what it stands in."""
    compiled, count = re.compile(pattern, re.S), 1
    while count:
        text, count = compiled.subn(replace, text)
    return text


def _template(match: re.Match[str]) -> str:
    inside = match[1].replace("\n", " ")
    name, *rest = (part.strip() for part in inside.split("|"))
    name = re.sub(r"[\s_]+", " ", name).lower()
    if name.startswith("formatnum:"):
        return name.removeprefix("formatnum:")
    if name in _CHARACTERS:
        return _CHARACTERS[name] + (rest[0] if name in ("circa", "c.") and rest else "")
    given = [part for part in rest if not re.match(r"[\w ]+=(?!\s*$)", part) and part]
    if not given:
        named = re.match(r"(?:1|text)\s*=\s*(.*)", rest[0]) if rest else None
        return named[1] if named and _FIRST.fullmatch(name) else ""
    if name in ("convert", "cvt"):
        return _measure(given)
    if name == "as of":
        return f"{'as of' if 'lc=y' in rest else 'As of'} {given[0]}"
    if name in ("hms", "uss", "rms"):
        return f"{name.upper()} {given[0]}"
    if name in ("frac", "fraction"):
        return "/".join(given[-2:])
    if name in ("chem", "val"):
        return "".join(given)
    if name in _LAST:
        return given[-1] if len(given) > 1 else ""
    if name.startswith("lang-"):
        return given[0]
    return given[0] if _FIRST.fullmatch(name) else ""


def _measure(given: list[str]) -> str:
    """{{convert|60|cm|in}} without the conversion: 60 cm."""
    words = []
    for part in given:
        if re.match(r"[-−+]?[\d.,/+]+$", part):
            words.append(f"{int(part):,}" if part.isdecimal() else part)
        elif part in _RANGES and len(words) == 1:
            words.append(_RANGES[part])
        else:
            words.append(_UNITS.get(part, part))
            break
    return " ".join(words)


def _link(match: re.Match[str]) -> str:
    target, *shown = match[1].split("|")
    prefix = target.partition(":")[0].strip().lower() if ":" in target else ""
    if prefix in ("file", "image", "media", "category", "template"):
        return ""
    if re.fullmatch(r"[a-z]{2,3}(-[a-z-]+)?", prefix) and not shown:  # another language's article
        return ""
    return (shown[-1] if shown else target).lstrip(":")


def _tidy(text: str) -> str:
    """Closes the gaps that what was left out has made."""
    text = re.sub(r"[^\S\n]+", " ", text)
    for _ in range(3):
        text = re.sub(r"\( ?(?:[,;:/]|or|and) ?(?=[,;:)])|\( ?[,;:/] ?", "(", text)
        text = re.sub(r" ?[,;:]? ?\)", ")", text)
        text = re.sub(r" ?\( ?\)| ?\[ ?\]", "", text)
        text = re.sub(r"([,;:]) ?[,;](?= )", r"\1", text)
        text = re.sub(r"\" ?\"", "", text)
        text = re.sub(r" +([,.;:!?)])(?= |$)", r"\1", text, flags=re.M)
        text = re.sub(r"\( +", "(", text)
    return re.sub(r"(?<=[a-z0-9)])\.(?=[A-Z][a-z]|[AI] )", ". ", text)
