"""Image classification on ImageNet with ResNet-50 v2: Tables 1, 2 and 3 of the paper."""
