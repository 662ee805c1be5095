"""Programs that measure and trace all operations of training scripts."""
