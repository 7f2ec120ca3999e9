"""What `specjax bench` measures, and how. Never part of the tests: a time is a result, not a promise."""
