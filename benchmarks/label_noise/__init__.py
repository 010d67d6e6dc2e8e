"""Which scorer finds wrong labels? Noise is planted, or real labels are held against the truth."""
