"""What training scripts share: lines that report their progress."""
