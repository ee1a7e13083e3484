"""The data's way: files, the order of samples, batches, augmentation."""
