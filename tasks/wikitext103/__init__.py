"""Language modelling on WikiText-103 with Transformer-XL: Table 7 and Figure 2 of the paper."""
