"""Racing: times callables beside each other on a GPU, and holds the rivals that benchmarks race the winners against."""
