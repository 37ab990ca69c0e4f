"""Models that tests take: exporters' ways, Brevitas' cells, functions, loops."""
