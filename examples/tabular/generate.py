#!/usr/bin/env python3
"""Writes a table of visits to a shop: data/train-*.csv with --rows records in --files files, and data/test.csv with a tenth.
With --format parquet, which needs PyArrow, the same records are in data/train-*.parquet and data/test.parquet.

bought is 1 with a probability that depends on each other column but visit_id: on numbers (age, income, pages_seen, minutes), on
categories (country, device, source), on pairs of country and device, and on whether the age is stated. age, income and source
are missing in some records; NA stands for a number. The same seed gives the same files on every machine.
"""

import argparse
import csv
import math
import os
import random
import sys

COLUMNS = {
    "visit_id": "string",
    "age": "int64",
    "income": "int64",
    "pages_seen": "int64",
    "minutes": "double",
    "country": "string",
    "device": "string",
    "source": "string",
    "bought": "int64",
}
COUNTRIES = ["at", "be", "ch", "de", "dk", "es", "fr", "it", "nl", "pl", "pt", "se"]
DEVICES = ["desktop", "phone", "tablet"]
SOURCES = ["search", "mail", "advert", "direct", "friend"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000, help="records of the training data (20,000)")
    parser.add_argument("--files", type=int, default=4, help="files of the training data (4)")
    parser.add_argument("--format", choices=["csv", "parquet"], default="csv", help="format of the files (csv)")
    parser.add_argument("--seed", type=int, default=1, help="another seed gives other records (1)")
    return parser.parse_args()


def effects(draw):
    """What each category, and each pair of country and device, adds to the score."""
    added = {word: draw.uniform(-1, 1) for word in COUNTRIES + DEVICES + SOURCES + [""]}
    added |= {(country, device): draw.uniform(-1, 1) for country in COUNTRIES for device in DEVICES}
    return added


def record(draw, added, number):
    age = draw.randint(18, 79)
    income = 30_000 * math.exp(0.6 * (draw.random() + draw.random() + draw.random() - 1.5) * 2)
    pages = int(-8 * math.log(1 - draw.random()))
    minutes = pages * draw.uniform(0.2, 2)
    country, device, source = draw.choice(COUNTRIES), draw.choice(DEVICES), draw.choice(SOURCES)
    has_age, has_income, has_source = draw.random() > 0.2, draw.random() > 0.05, draw.random() > 0.1
    source = source if has_source else ""
    score = 0.04 * (age - 48) + 1.5 * math.log(income / 30_000) + 0.8 * math.log1p(pages) - 2.5 + 0.02 * minutes
    score += added[country] + added[device] + added[source] + added[country, device]
    score -= 0 if has_age else 1
    bought = int(draw.random() < 1 / (1 + math.exp(-score)))
    return [
        f"v{number:07}",
        age if has_age else None,
        round(income) if has_income else None,
        pages,
        round(minutes, 1),
        country,
        device,
        source or None,
        bought,
    ]


def write_csv(path, records):
    with open(path, "w", newline="") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(COLUMNS)
        for visit_id, age, income, *rest in records:
            table.writerow([visit_id, *("NA" if number is None else number for number in (age, income)), *rest])


def write_parquet(path, records):
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        sys.exit("--format parquet needs PyArrow: pip install pyarrow")
    schema = pyarrow.schema(list(COLUMNS.items()))
    pyarrow.parquet.write_table(pyarrow.table(list(zip(*records)), schema=schema), path)


def main():
    args = arguments()
    draw = random.Random(args.seed)
    added = effects(draw)
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
    os.makedirs(folder, exist_ok=True)
    bounds = [args.rows * file // args.files for file in range(args.files + 1)]
    parts = [(f"train-{file:02}", bounds[file], bounds[file + 1]) for file in range(args.files)]
    parts.append(("test", args.rows, args.rows + args.rows // 10))
    write = write_parquet if args.format == "parquet" else write_csv
    for name, first, end in parts:
        records = (record(draw, added, number) for number in range(first, end))
        write(os.path.join(folder, f"{name}.{args.format}"), records)


main()
