"""Who speaks the synthetic commands: voices of eSpeak NG with a pitch and a speed of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

TRAINING = "train-clean-100"


class Speaker(NamedTuple):
    """One way of speaking; `variant` is "" for the language's plain voice."""

    number: int
    language: str
    variant: str
    pitch: int  # 0 to 99
    speed: int  # words a minute
    hiss: int  # largest sample of the noise, of 32,767

    @property
    def voice(self) -> str:
        return f"{self.language}+{self.variant}" if self.variant else self.language


SPEAKERS: dict[str, list[Speaker]] = {
    TRAINING: [
        Speaker(101, "en-us", "", 50, 190, 8),
        Speaker(102, "en-us", "m1", 45, 185, 12),
        Speaker(103, "en-us", "m4", 55, 200, 6),
        Speaker(104, "en-us", "m7", 50, 195, 10),
        Speaker(105, "en-us", "max", 40, 190, 16),
        Speaker(106, "en-us", "f1", 50, 190, 8),
        Speaker(107, "en-us", "f4", 45, 185, 12),
        Speaker(108, "en-us", "Annie", 40, 195, 10),
        Speaker(109, "en-us", "steph", 45, 200, 6),
        Speaker(110, "en-us", "linda", 40, 190, 16),
        Speaker(111, "en", "", 40, 200, 10),
        Speaker(112, "en", "m2", 50, 190, 6),
        Speaker(113, "en", "m8", 60, 185, 8),
        Speaker(114, "en", "Michael", 50, 195, 16),
        Speaker(115, "en", "f1", 40, 200, 12),
        Speaker(116, "en", "f5", 40, 190, 6),
        Speaker(117, "en-gb-x-rp", "m1", 60, 190, 10),
        Speaker(118, "en-gb-x-rp", "m7", 40, 200, 8),
        Speaker(119, "en-gb-x-rp", "f4", 35, 195, 16),
        Speaker(120, "en-gb-x-rp", "Annie", 50, 185, 12),
    ],
    "dev-clean": [
        Speaker(201, "en-us", "m3", 50, 190, 10),
        Speaker(202, "en-us", "f2", 45, 190, 10),
        Speaker(203, "en", "m5", 50, 195, 10),
        Speaker(204, "en", "belinda", 45, 190, 10),
        Speaker(205, "en-gb-x-rp", "quincy", 50, 195, 10),
    ],
    "dev-other": [
        Speaker(301, "en-gb-scotland", "paul", 60, 215, 40),
        Speaker(302, "en-us-nyc", "edward", 50, 225, 40),
        Speaker(303, "en-gb-x-gbclan", "marcelo", 35, 215, 40),
        Speaker(304, "en-029", "grandma", 45, 210, 40),
    ],
    "test-clean": [
        Speaker(401, "en-us", "m6", 50, 190, 10),
        Speaker(402, "en-us", "f3", 45, 190, 10),
        Speaker(403, "en", "robert", 50, 195, 10),
        Speaker(404, "en", "aunty", 45, 190, 10),
        Speaker(405, "en-gb-x-rp", "rob", 50, 195, 10),
    ],
    "test-other": [
        Speaker(501, "en-gb-scotland", "Gene", 60, 215, 40),
        Speaker(502, "en-us-nyc", "benjamin", 50, 225, 40),
        Speaker(503, "en-gb-x-gbclan", "iven", 35, 215, 40),
        Speaker(504, "en-029", "gustave", 45, 210, 40),
    ],
}
LANGUAGE_FILES = {
    "en": "en",
    "en-us": "en-US",
    "en-gb-x-rp": "en-GB-x-rp",
    "en-gb-scotland": "en-GB-scotland",
    "en-gb-x-gbclan": "en-GB-x-gbclan",
    "en-us-nyc": "en-US-nyc",
    "en-029": "en-029",
}


def at_other_pitches_and_speeds(
    speakers: Sequence[Speaker], pitches: Sequence[int], speeds: Sequence[int]
) -> list[Speaker]:
    """Each voice with all of these changes to its pitch and speed, as speakers of their own."""
    changes = [(pitch, speed) for pitch in pitches for speed in speeds]
    return [
        who._replace(number=100 * who.number + n, pitch=who.pitch + pitch, speed=who.speed + speed)
        for who in speakers
        for n, (pitch, speed) in enumerate(changes)
    ]


_CLOSE = (-4, 0, 4)  # words a minute
MANY_SPEAKERS = {
    TRAINING: at_other_pitches_and_speeds(SPEAKERS[TRAINING], (-10, 10), (-3, 3)),
    "dev-clean": at_other_pitches_and_speeds(SPEAKERS["dev-clean"], (-15, -8, 0, 8, 15), _CLOSE),
    "dev-other": at_other_pitches_and_speeds(SPEAKERS["dev-other"], (-10, 10), (0,)),
    "test-clean": at_other_pitches_and_speeds(SPEAKERS["test-clean"], (-15, -8, 0, 8, 15), _CLOSE),
    "test-other": at_other_pitches_and_speeds(SPEAKERS["test-other"], (-10, 10), (0,)),
}
