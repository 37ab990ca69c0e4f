"""Files and protobufs: loading, external data, validation, inlining, names, shapes, operator set versions."""
