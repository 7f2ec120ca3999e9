"""`python -m specjax.checkpoints.convert SOURCE DEST`, the same as `specjax convert`."""

if __name__ == "__main__":  # a command of its own, above everything, though it stands here
    import sys

    from specjax.cli.app import main

    sys.argv.insert(1, "convert")
    main()
