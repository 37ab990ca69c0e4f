"""The weights around the recurrent layers, stored as int8: embeddings, linear layers and convolutions.

Enters: a model whose recurrent layers are done. QuantizeEmbeddings reads int8 rows of a table and makes floats of those
alone; StoreWeights stores what is left as int8, and the arithmetic stays float. `Int8Weights` holds each weight once,
however many passes ask for it.
"""
