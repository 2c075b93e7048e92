#!/usr/bin/env python3
"""Writes the same rows with Spark in the ways that its users do: DIR/<table>-<way> is a folder of files, one for each partition.

table: columns of many types with missing values and awkward texts; the list is text in CSV. vectors: a label and VectorUDT, sparse
and dense, also as libsvm. late: rows of the table without those of the first partition, which is an empty file.
"""

import datetime
import decimal
import os
import random
import sys

from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

ROWS, PARTITIONS, SIZE = 3_000, 3, 40
SITES = ["plain", "of two words", "a, b", 'say "so"', "größer", "NA", "", "42", None]
TABLE = T.StructType(
    [
        T.StructField("id", T.StringType(), False),
        T.StructField("clicked", T.IntegerType(), False),
        T.StructField("weight", T.DoubleType(), False),
        T.StructField("price", T.DoubleType()),
        T.StructField("share", T.FloatType()),
        T.StructField("tiny", T.DoubleType()),
        T.StructField("amount", T.DecimalType(20, 2)),
        T.StructField("cents", T.DecimalType(6, 2)),
        T.StructField("age", T.LongType()),
        T.StructField("level", T.ByteType()),
        T.StructField("member", T.BooleanType()),
        T.StructField("site", T.StringType()),
        T.StructField("device", T.IntegerType()),
        T.StructField("tags", T.ArrayType(T.StringType())),
        T.StructField("day", T.DateType()),
        T.StructField("at", T.TimestampType()),
    ]
)
# Ways to write Parquet: options of the writer, and those of the session.
PARQUET = {
    "snappy": ({}, {}),
    "zstd": ({"compression": "zstd", "parquet.block.size": 32_768}, {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}),
    "gzip": ({"compression": "gzip", "parquet.enable.dictionary": "false"}, {}),
    "legacy": ({"compression": "none"}, {"spark.sql.parquet.writeLegacyFormat": "true"}),
    "v2": ({"parquet.writer.version": "v2", "parquet.page.size": 4_096}, {}),
    "v2-plain": ({"parquet.writer.version": "v2", "parquet.enable.dictionary": "false"}, {}),
}


def row(draw, number):
    def maybe(value):
        return value if draw.random() > 0.1 else None

    site, device = draw.choice(SITES), draw.randrange(5)
    price, age = draw.gauss(100, 15), draw.randrange(18, 80)
    tags = draw.sample(["red", "green", "blue", "dark red"], draw.randrange(4))
    score = (price - 100) / 15 + (age - 49) / 20 + (site in SITES[:4]) - 0.5 + device % 2
    return (
        f"row {number}",
        int(draw.random() < 0.1 or score > 0.5),
        draw.choice([0.5, 1.0, 2.5]),
        maybe(price),
        maybe(draw.randrange(256) / 256),
        maybe(draw.gauss(0, 1e-5)),
        maybe(decimal.Decimal(draw.randrange(-(10**12), 10**12)).scaleb(-2)),
        maybe(decimal.Decimal(draw.randrange(-(10**5), 10**5)).scaleb(-2)),
        maybe(age),
        maybe(draw.randrange(-128, 128)),
        maybe(draw.random() < 0.5),
        site,
        maybe(device),
        maybe(tags),
        maybe(datetime.date(1969, 12, 1) + datetime.timedelta(days=number)),
        maybe(datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc) + datetime.timedelta(seconds=number)),
    )


def vector(draw):
    """A label and a vector of SIZE, every second one dense. Values are not 0."""
    places = sorted(draw.sample(range(SIZE), draw.randrange(SIZE // 2)))
    values = [draw.choice([-1.5, 0.25, 1.0, 3.0]) for _ in places]
    is_dense = draw.random() < 0.5
    if is_dense:
        places, values = range(SIZE), [draw.gauss(0, 1) for _ in range(SIZE)]
    label = float(sum(value for place, value in zip(places, values) if place % 3 == 0) > 0)
    return label, Vectors.dense(values) if is_dense else Vectors.sparse(SIZE, list(places), values)


def main(folder):
    os.environ["PYSPARK_PYTHON"] = sys.executable
    draw = random.Random(5)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "512m").config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse").getOrCreate()

    def parallel(rows, schema):
        return spark.createDataFrame(spark.sparkContext.parallelize(rows, PARTITIONS), schema)

    def save(frame, name, form, options):
        frame.write.format(form).options(**options).save(f"{folder}/{name}")

    table = parallel([row(draw, number) for number in range(ROWS)], TABLE)
    vectors = T.StructType([T.StructField("label", T.DoubleType(), False), T.StructField("features", VectorUDT(), False)])
    vectors = parallel([vector(draw) for _ in range(ROWS)], vectors)
    for way, (options, settings) in PARQUET.items():
        for key, value in settings.items():
            spark.conf.set(key, value)
        save(table, f"table-{way}", "parquet", options)
        save(vectors, f"vectors-{way}", "parquet", options)
        for key in settings:
            spark.conf.unset(key)
    save(vectors, "vectors-libsvm", "libsvm", {})
    text = table.withColumn("tags", F.concat_ws("|", "tags"))
    csv = {"header": "true", "escape": '"'}
    save(text, "table-csv", "csv", csv)
    save(text, "table-packed", "csv", csv | {"compression": "gzip"})
    late = F.col("id").substr(5, 9).cast("int") >= ROWS // PARTITIONS
    save(table.where(late), "late-snappy", "parquet", {})
    save(text.where(late), "late-csv", "csv", csv)
    spark.stop()


main(sys.argv[1])
