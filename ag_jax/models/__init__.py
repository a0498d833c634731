"""BERT, RoBERTa, ELECTRA and DeBERTa as settings of one Linen `Encoder`, and the heads of such an encoder."""
