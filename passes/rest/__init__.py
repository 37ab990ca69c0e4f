"""Stores the weights outside the recurrent layers as int8: embeddings, linear layers and convolutions.

Enters: a model whose recurrent layers are done. QuantizeEmbeddings gathers int8 rows of a table and dequantizes only
those; StoreWeights stores the other weights as int8, and the arithmetic stays float. `Int8Weights` stores each weight
once, however many passes use it.
"""
