import pytest
import torch
import torch.nn.functional as F

from tst_study.superposition import bag_embedding

DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def table_and_bags(dtype, bag_size, vocabulary=53, width=12):
    generator = torch.Generator().manual_seed(bag_size)
    weight = torch.randn(vocabulary, width, generator=generator).to(dtype).requires_grad_()
    return weight, torch.randint(vocabulary, (3, 5, bag_size), generator=generator)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bag_of_one_token_is_its_embedding_bit_for_bit(dtype):
    weight, token_ids = table_and_bags(dtype, bag_size=1)
    upstream = torch.randn(3, 5, 12).to(dtype)
    plain = F.embedding(token_ids.squeeze(2), weight.to(torch.promote_types(dtype, torch.float32)))
    bagged = bag_embedding(weight, token_ids)
    assert torch.equal(bagged, plain.to(dtype))
    (plain_grad,) = torch.autograd.grad(plain, weight, upstream.to(plain.dtype))
    (bagged_grad,) = torch.autograd.grad(bagged, weight, upstream)
    assert torch.equal(bagged_grad, plain_grad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bag_size", [2, 6, 16])
def test_a_latent_token_is_the_mean_of_its_embeddings(dtype, bag_size):
    weight, token_ids = table_and_bags(dtype, bag_size)
    latent = bag_embedding(weight, token_ids)
    exact = F.embedding(token_ids, weight.double()).mean(dim=2)
    assert latent.dtype == dtype
    # One rounding to the dtype of the table, nothing lost before it.
    torch.testing.assert_close(
        latent.double(), exact, rtol=torch.finfo(dtype).eps / 2 + 1e-6, atol=1e-6
    )
    upstream = torch.randn(latent.shape).to(dtype)
    (grad,) = torch.autograd.grad(latent, weight, upstream)
    (exact_grad,) = torch.autograd.grad(exact, weight, upstream.double())
    assert (grad - exact_grad).norm() <= 2 * torch.finfo(dtype).eps * exact_grad.norm()


@pytest.mark.parametrize("bag_size", [1, 4])
def test_the_gradient_of_a_frequent_token_does_not_stop_growing_in_bfloat16(bag_size):
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    latent = bag_embedding(weight, torch.ones(1, 4096, bag_size, dtype=torch.long))
    (grad,) = torch.autograd.grad(latent.float().sum(), weight)
    assert grad.tolist() == [[0.0], [4096.0]]


def test_token_ids_need_a_bag_axis():
    with pytest.raises(ValueError, match="token_ids must be"):
        bag_embedding(torch.zeros(4, 2), torch.zeros(3, 5, dtype=torch.long))


def test_the_exchange_is_one_float32_vector_per_latent_token():
    weight, token_ids = table_and_bags(torch.bfloat16, bag_size=4)
    seen = []

    def reduce(sums):
        seen.append((tuple(sums.shape), sums.dtype))
        return sums[:, ::5]  # a reduce-scatter along l keeps this rank's positions

    latent = bag_embedding(weight, token_ids, reduce=reduce)
    assert seen == [((3, 5, 12), torch.float32)]
    assert torch.equal(latent, bag_embedding(weight, token_ids)[:, ::5])
