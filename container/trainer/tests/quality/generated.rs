//! Data that the tests generate.

use std::fmt::Write;
use std::path::Path;

use heddle_protocol::figure::Figure;
use heddle_protocol::job_spec::LossFunction;

use crate::harness::{Job, Mixed, job_file};

const ROWS: usize = 4_000;
const FEATURES: usize = 20;

/// Records of columns of different size, and labels linear in them with noise of 0.5, about `mean` and times `unit`: the
/// columns with a 1 for the bias, and the labels.
fn linear_rows(random: &mut Mixed, mean: f64, unit: f64) -> Vec<([f64; FEATURES + 1], f64)> {
    let truth: Vec<f64> = (0..FEATURES).map(|_| random.normal()).collect();
    let size = |column: usize| 10f64.powi(column as i32 % 5 - 2);
    (0..ROWS)
        .map(|_| {
            let mut x = [1.0; FEATURES + 1];
            let mut label = 0.0;
            for (column, truth) in truth.iter().enumerate() {
                let value = random.normal() + 1.0;
                // As the reader sees it.
                x[column] = f64::from((value * size(column)) as f32);
                label += truth * x[column] / size(column);
            }
            (x, f64::from((mean + unit * (label + 0.5 * random.normal())) as f32))
        })
        .collect()
}

/// The least root of the mean squared residual, by the normal equations.
fn least_squares(rows: &[([f64; FEATURES + 1], f64)]) -> f64 {
    const N: usize = FEATURES + 1;
    let mut sums = [[0.0; N + 1]; N];
    for (x, label) in rows {
        for i in 0..N {
            for j in 0..N {
                sums[i][j] += x[i] * x[j];
            }
            sums[i][N] += x[i] * label;
        }
    }
    // Gauss-Jordan; the matrix is positive definite.
    for pivot in 0..N {
        let head = sums[pivot];
        for (_, row) in sums.iter_mut().enumerate().filter(|(at, _)| *at != pivot) {
            let factor = row[pivot] / head[pivot];
            row.iter_mut().zip(&head).for_each(|(value, head)| *value -= factor * head);
        }
    }
    let weights: Vec<f64> = (0..N).map(|i| sums[i][N] / sums[i][i]).collect();
    let residual = |(x, label): &([f64; N], f64)| {
        let score: f64 = x.iter().zip(&weights).map(|(x, w)| x * w).sum();
        (score - label) * (score - label)
    };
    (rows.iter().map(residual).sum::<f64>() / rows.len() as f64).sqrt()
}

fn write_rows(file: &Path, rows: &[([f64; FEATURES + 1], f64)]) {
    let mut text = String::new();
    for (x, label) in rows {
        write!(text, "{label}").expect("a string");
        for (column, value) in x[..FEATURES].iter().enumerate() {
            write!(text, " {}:{value}", column + 1).expect("a string");
        }
        text.push('\n');
    }
    std::fs::write(file, text).expect("written");
}

#[test]
fn linear_regression_reaches_least_squares() {
    let dir = tempfile::tempdir().expect("a folder");
    let rows = linear_rows(&mut Mixed(1), 3.0, 1.0);
    write_rows(&dir.path().join("train.libsvm"), &rows);
    let file = dir.path().join("job.toml");
    let text = format!(
        "name = \"linear\"\n[data]\ntrain = \"train.libsvm\"\ntest = \"train.libsvm\"\npasses = 20\n\
         [model]\nalgorithm = \"linear-regression\"\nfeatures = {FEATURES}\nstandardise = true\n\
         l2 = 0\nscale-labels = false\noptimizer = {{ kind = \"ftrl\", alpha = 0.3 }}\n[training]\nlanes = 4\nbatch = 16\n"
    );
    std::fs::write(&file, text).expect("written");
    let mut job = Job::new(job_file(&file, &[]));
    let figures = job.run().figures(LossFunction::Squared).expect("records");
    let reference = least_squares(&rows);
    println!("{figures}, least squares {reference:.4}");
    let rmse = figures.get(Figure::Rmse).expect("a residual");
    assert!(rmse >= reference * 0.999_999 && rmse <= 1.01 * reference, "{rmse} of {reference}");
    assert!(figures.get(Figure::R2).is_some_and(|share| share > 0.95), "{figures}");
}

/// The required keys alone fit labels of any mean and unit, over columns of any size.
#[test]
fn defaults_reach_least_squares_in_any_unit() {
    for (mean, unit) in [(-4e6, 1e5), (1e-3, 1e-5)] {
        let dir = tempfile::tempdir().expect("a folder");
        let rows = linear_rows(&mut Mixed(2), mean, unit);
        write_rows(&dir.path().join("train.libsvm"), &rows);
        let file = dir.path().join("job.toml");
        let text = format!(
            "name = \"linear\"\n[data]\ntrain = \"train.libsvm\"\n\
             [model]\nalgorithm = \"linear-regression\"\nfeatures = {FEATURES}\n"
        );
        std::fs::write(&file, text).expect("written");
        let mut job = Job::new(job_file(&file, &[]));
        job.run();
        let figures = job.on_training_data().figures(LossFunction::Squared).expect("records");
        let rmse = figures.get(Figure::Rmse).expect("a residual");
        let reference = least_squares(&rows);
        println!("mean {mean}, unit {unit}: {figures}, least squares {reference:.4}");
        assert!(rmse <= 1.03 * reference, "{mean} {unit}: {rmse} of {reference}");
    }
}

/// Ratings of users for items as `examples/ratings/generate.py` makes them, a quarter of its size: as many for each user.
fn write_ratings(dir: &Path) {
    const USERS: usize = 500;
    const ITEMS: usize = 250;
    let mut random = Mixed(1);
    let biases: Vec<f64> = (0..USERS + ITEMS).map(|_| 0.5 * random.normal()).collect();
    let factors: Vec<[f64; 4]> =
        (0..USERS + ITEMS).map(|_| std::array::from_fn(|_| 0.5946 * random.normal())).collect();
    for (name, rows) in [("train.libsvm", 50_000), ("test.libsvm", 5_000)] {
        let mut text = String::new();
        for _ in 0..rows {
            let user = (random.unit() * USERS as f64) as usize;
            let item = USERS + (random.unit() * ITEMS as f64) as usize;
            let product: f64 = factors[user].iter().zip(&factors[item]).map(|(u, v)| u * v).sum();
            let rating = 3.5 + biases[user] + biases[item] + product + 0.5 * random.normal();
            writeln!(text, "{rating:.4} {}:1 {}:1", user + 1, item + 1).expect("a string");
        }
        std::fs::write(dir.join(name), text).expect("written");
    }
}

#[test]
fn factorization_machine_finds_products_of_features() {
    let dir = tempfile::tempdir().expect("a folder");
    write_ratings(dir.path());
    let file = dir.path().join("job.toml");
    let job = include_str!("../../../../examples/ratings/job.toml");
    let job = job
        .replace("data/train-*.libsvm", "train.libsvm")
        .replace("data/test.libsvm", "test.libsvm")
        .replace("features = 3000", "features = 750");
    std::fs::write(&file, job).expect("written");
    let rmse = |sets: &[&str]| {
        let figures = Job::new(job_file(&file, sets)).run().figures(LossFunction::Squared);
        let figures = figures.expect("records");
        println!("{sets:?}: {figures}");
        figures.get(Figure::Rmse).expect("a residual")
    };
    let machine = rmse(&[]);
    assert!(machine <= 0.54, "rank 4: {machine}");
    let linear = rmse(&["model.algorithm=linear-regression", "model.loss=auto", "model.rank=0"]);
    assert!(linear > 0.85, "linear: {linear}");
}
