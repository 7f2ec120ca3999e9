"""Training scripts. They need the `train` extra (optax); nothing else in specjax imports this package."""
