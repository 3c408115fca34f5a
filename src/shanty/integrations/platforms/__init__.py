"""What the commands of other platforms have in common: flags, their files, the job of them."""
