#!/usr/bin/env python3
"""Writes ratings of 2,000 users for 1,000 items: data/train-*.libsvm (200,000 records) and data/test.libsvm (20,000).

A rating is 3.5 + bias of the user + bias of the item + product of two vectors of length 4 + noise of 0.5. The best
possible model has an RMSE of 0.5; one that has the biases alone stays at 0.865. A record has two features of value 1: the
user (1 to 2,000) and the item (2,001 to 3,000). The same numbers on every machine.
"""

import os

USERS, ITEMS, RANK = 2000, 1000, 4
TRAIN, TEST, FILES = 200_000, 20_000, 8
MASK = (1 << 64) - 1


class Mixed:
    """splitmix64 (Steele et al. 2014)."""

    def __init__(self, seed):
        self.state = seed

    def bits(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, bound):
        return self.bits() % bound

    def normal(self):
        """Mean 0 and variance 1, as a sum of twelve even numbers."""
        return sum(self.bits() / 2.0**64 for _ in range(12)) - 6.0


def main():
    random = Mixed(1)
    biases = [0.5 * random.normal() for _ in range(USERS + ITEMS)]
    # Four products of two such numbers have a variance of one half.
    factors = [[0.5946 * random.normal() for _ in range(RANK)] for _ in range(USERS + ITEMS)]

    def record():
        user, item = random.below(USERS), USERS + random.below(ITEMS)
        product = sum(u * v for u, v in zip(factors[user], factors[item]))
        rating = 3.5 + biases[user] + biases[item] + product + 0.5 * random.normal()
        return f"{rating:.4f} {user + 1}:1 {item + 1}:1\n"

    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
    os.makedirs(folder, exist_ok=True)
    for file in range(FILES):
        with open(os.path.join(folder, f"train-{file:02}.libsvm"), "w") as out:
            out.writelines(record() for _ in range(TRAIN // FILES))
    with open(os.path.join(folder, "test.libsvm"), "w") as out:
        out.writelines(record() for _ in range(TEST))


main()
