"""The commands, one module each: `add` adds the parser, `run` runs the command. `program` combines them."""
