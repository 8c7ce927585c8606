"""Operations of a layer with a backward pass of our own, each where autograd's walks over memory
more often or refuses. Every one is held to autograd by `tests/model/test_kernels.py`.
"""
