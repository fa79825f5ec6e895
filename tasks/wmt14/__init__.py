"""Translation from English to German (WMT14) with Transformer-big: Table 6 of the paper."""
