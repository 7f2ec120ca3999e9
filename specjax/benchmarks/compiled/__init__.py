"""What the compilers of real chips make of specjax, on a machine without: `python -m specjax.benchmarks.compiled`."""
