"""Speech recognition on LibriSpeech with Jasper DR 10x5: Tables 4 and 5 of the paper."""
