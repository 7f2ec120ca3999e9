"""What each kind of drafter is trained for, one file each."""
