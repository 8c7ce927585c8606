"""The method in numpy, written from the paper's text alone, with loops and its own backward pass:
somebody else's implementation, which the check must call right.

Section 3: split the tokens into bags of s, average their embeddings, and predict the next bag from
one set of logits. The loss is the mean over the s targets of their cross-entropy, each of these
over its own valid positions. Labels are shifted by one already, and by s − 1 more here.
"""

import numpy as np


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def loss_and_gradients(
    table: np.ndarray, head: np.ndarray, ids: np.ndarray, labels: np.ndarray, s: int
) -> tuple[float, np.ndarray, np.ndarray]:
    rows, length = ids.shape
    positions = length // s
    bags = ids.reshape(rows, positions, s)
    latent = table[bags].mean(axis=2)
    probabilities = softmax(latent @ head)
    shifted = np.full((rows, length), -100)
    shifted[:, : length - (s - 1)] = labels[:, s - 1 :]
    targets = shifted.reshape(rows, positions, s)
    loss, of_logits = 0.0, np.zeros_like(probabilities)
    for i in range(s):
        b, k = np.nonzero(targets[:, :, i] != -100)
        y = targets[b, k, i]
        loss -= np.log(probabilities[b, k, y]).mean() / s
        of_logits[b, k] += probabilities[b, k] / len(y) / s
        of_logits[b, k, y] -= 1 / len(y) / s
    of_head = np.einsum("bkd,bkv->dv", latent, of_logits)
    of_latent = of_logits @ head.T
    of_table = np.zeros_like(table)
    for i in range(s):
        np.add.at(of_table, bags[:, :, i], of_latent / s)
    return float(loss), of_table, of_head
