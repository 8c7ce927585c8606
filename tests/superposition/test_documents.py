"""Several documents and padding in one row: no bag and no target crosses from one document into
another, and padding counts nowhere."""

from itertools import accumulate

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tst_study.superposition import Superposition
from tst_study.superposition.bags import document_labels
from tst_study.superposition.loss_kinds import Mode

WORDS, WIDTH, BAG = 97, 16, 4
LENGTHS = (12, 8, 20, 8, 12)  # whole bags
TORN = (13, 8, 22, 6, 11)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def method(mode: Mode = "full") -> Superposition:
    return Superposition(BAG, 1.0, 10, mode=mode, positions="any")


def packed(lengths: tuple[int, ...]) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """The documents, and two rows of tokens, labels and document ids. Neighbours have different
    ids, but ids come back; labels are −100 where a next-token baseline has them."""
    documents = [torch.randint(WORDS, (n,)) for n in (*lengths, *lengths[::-1])]
    ids = [torch.full_like(text, i % 2) for i, text in enumerate(documents)]
    labels = [torch.cat([text[1:], torch.tensor([-100])]) for text in documents]
    return documents, *(torch.cat(parts).view(2, -1) for parts in (documents, labels, ids))


def folded_alone(
    documents: list[Tensor], table: nn.Embedding, head: nn.Linear, mode: Mode
) -> Tensor:
    """The mean cross-entropy at each offset over the bags of all documents; then over offsets."""
    size, losses = (1 if mode == "output_only" else BAG), [[] for _ in range(BAG)]
    for text in documents:
        for end in range(size, len(text) + 1, size):
            logits = head(table(text[end - size : end]).mean(0))
            for offset, target in enumerate(text[end : end + BAG]):
                losses[offset].append(F.cross_entropy(logits, target))
    used = losses[:1] if mode == "input_only" else losses
    return torch.stack([torch.stack(each).mean() for each in used]).mean()


@pytest.mark.parametrize("mode", ["full", "input_only", "output_only"])
@pytest.mark.parametrize("given", ["ids", "cu_seqlens", "labels", "one pass", "in parts"])
def test_packed_documents_are_each_folded_by_itself(mode, given):
    lengths = (13, 8, 22, 6, 15) if mode == "output_only" else LENGTHS
    documents, row, labels, ids = packed(lengths)
    table, head, tst = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False), method(mode)
    expected = folded_alone(documents, table, head, mode)
    weights = [table.weight, head.weight]
    if given == "cu_seqlens":
        ids = torch.tensor([0, *accumulate(map(len, documents))], dtype=torch.int32)
    if given == "labels" and mode == "output_only":
        given = "ids"  # which no labels can express
    if given == "labels":
        hidden = tst.embed(table, row)
        loss = tst.loss(head(hidden), document_labels(labels, ids, BAG))
    elif given == "in parts":
        counts = sum(tst.objective().count_targets(labels[[i]], ids[[i]]) for i in range(2))
        loss = torch.zeros(())
        for i in range(2):
            hidden = tst.embed(table, row[[i]], documents=ids[[i]])
            its = {"valid_counts": counts, "documents": ids[[i]]}
            loss = loss + tst.loss(head(hidden), labels[[i]], **its)
    elif given == "one pass":
        hidden = tst.embed(table, row, documents=ids)
        loss = tst.linear_loss(hidden, head, labels, documents=ids)
    else:
        hidden = tst.embed(table, row, documents=ids)
        loss = tst.loss(head(hidden), labels, documents=ids)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    found, right = (torch.autograd.grad(each, weights) for each in (loss, expected))
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("plain", [True, False])
def test_a_bag_that_two_documents_share_is_of_the_last_one(plain):
    _, row, labels, ids = (each[:1] for each in packed(TORN))
    table, tst = nn.Embedding(WORDS, WIDTH), method()
    module = table if plain else nn.Sequential(table)
    hidden = tst.embed(module, row, documents=ids)
    counts = tst.objective().count_targets(labels, ids)
    expected, ends = [0] * BAG, [0, *accumulate(TORN)]
    whose = torch.cat([torch.full((n,), i) for i, n in enumerate(TORN)])
    for bag in range(len(whose) // BAG):
        last = bag * BAG + BAG - 1
        inside = range(max(bag * BAG, ends[whose[last]]), last + 1)
        vectors = table.weight[row[0, list(inside)]]
        torch.testing.assert_close(hidden[0, bag], vectors.mean(0))
        for offset in range(BAG):
            target = last + 1 + offset
            expected[offset] += target < len(whose) and bool(whose[target] == whose[last])
    assert counts.tolist() == expected
    latent = tst.latent_documents(ids, row)
    whose_bag = whose[BAG - 1 :: BAG]
    runs = [0, *((whose_bag[1:] != whose_bag[:-1]).nonzero().flatten() + 1).tolist(), 15]
    assert latent.cu_seqlens.tolist() == runs
    assert latent.cu_seqlens.dtype == torch.int32


@pytest.mark.parametrize("by", ["documents", "padding_idx", "attach"])
def test_padding_counts_neither_in_a_bag_nor_in_the_loss(by):
    """A document of 6 tokens in bags of 4: its second bag is the mean of two."""
    table = nn.Embedding(WORDS, WIDTH, padding_idx=None if by == "documents" else 0)
    head, tst = nn.Linear(WIDTH, WORDS), method()
    row = torch.tensor([[5, 6, 7, 8, 9, 3, 0, 0, 0, 0, 0, 0], [2, 4, 6, 8] * 3])
    labels = F.pad(row[:, 1:], (0, 1), value=-100).masked_fill(F.pad(row[:, 1:], (0, 1)) == 0, -100)
    documents = torch.where(row == 0, -1, 7) if by == "documents" else None
    if by == "attach":
        tst.attach(table)
    hidden = table(row) if by == "attach" else tst.embed(table, row, documents=documents)
    torch.testing.assert_close(hidden[0, 1], table.weight[[9, 3]].mean(0))
    loss = tst.loss(head(hidden), labels, documents=documents)
    first, second = (head(table.weight[bag].mean(0)) for bag in ([5, 6, 7, 8], [2, 4, 6, 8]))
    bags = [(first, [9, 3]), (second, [2, 4, 6, 8]), (second, [2, 4, 6, 8])]
    offsets = [
        torch.stack([F.cross_entropy(z, torch.tensor(y[i])) for z, y in bags if i < len(y)]).mean()
        for i in range(BAG)
    ]
    torch.testing.assert_close(loss, torch.stack(offsets).mean())
    loss.backward()
    assert table.weight.grad is not None
    assert not table.weight.grad[0].any()


def test_next_token_steps_keep_documents_apart_as_their_labels_do():
    """And with labels that already are, s = 1 keeps the bits of cross-entropy."""
    _, row, labels, ids = packed(TORN)
    row, labels, ids = row[:1], labels[:1], ids[:1]
    tst, table = Superposition(1, 0.0, 10), nn.Embedding(WORDS, WORDS)
    open_labels = torch.cat([row[:, 1:], torch.tensor([[-100]])], dim=1)
    logits = tst.embed(table, row, documents=ids)
    assert torch.equal(logits, table(row))
    plain = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    for given in (labels, open_labels):
        assert torch.equal(tst.loss(logits, given, documents=ids), plain)
    beyond = torch.cat([ids, 1 - ids[:, -1:]], dim=1)  # the last label is in another document
    full = torch.cat([row[:, 1:], row[:, :1]], dim=1)
    assert torch.equal(tst.loss(logits, full, documents=beyond), plain)


@pytest.mark.parametrize(
    ("documents", "line"),
    [
        (torch.zeros(1, 9, dtype=torch.long), r"documents must be \(1, 16\) ids, \(1, 17\) with"),
        (torch.zeros(1, 16), "documents are torch.float32: give ids or cu_seqlens as integers"),
    ],
)
def test_documents_that_do_not_fit_the_row_are_refused(documents, line):
    row = torch.randint(WORDS, (1, 16))
    with pytest.raises(ValueError, match=line):
        method().embed(nn.Embedding(WORDS, WIDTH), row, documents=documents)
    with pytest.raises(ValueError, match=line):
        method().loss(torch.randn(1, 4, WORDS), row, documents=documents)
