"""Numbers published by Gahlot, Yin and Shankar (2020)."""

# "Data optimization for large batch distributed training of deep neural networks", table I:
# the share of CIFAR-10's 50,000 training images that each extractor's filter keeps.
KEPT_SHARES = {
    "resnet152": 0.9876,
    "resnet101": 0.9487,
    "resnet50": 0.9266,
    "resnet34": 0.9345,
    "resnet18": 0.9379,
}
