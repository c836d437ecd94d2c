"""One module per contender; `bench.harness.contender` says what each has."""
