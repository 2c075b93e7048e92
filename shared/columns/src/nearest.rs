//! The columns whose names are like a name that is missing.

/// How many names are shown.
const SHOWN: usize = 3;

/// The columns of a file that are nearest to `name`, for a message: `the nearest of its 40 columns are "price", "rice"`.
#[must_use]
pub fn nearest_columns<'n>(name: &str, columns: impl IntoIterator<Item = &'n str>) -> String {
    let wanted = name.to_lowercase();
    let distance = |column: &str| strsim::damerau_levenshtein(&wanted, &column.to_lowercase());
    let mut nearest: Vec<(usize, &str)> =
        columns.into_iter().map(|column| (distance(column), column)).collect();
    nearest.sort_unstable();
    let count = nearest.len();
    let shown: Vec<String> =
        nearest.iter().take(SHOWN).map(|(_, column)| format!("{column:?}")).collect();
    let shown = shown.join(", ");
    match count {
        0 => "it has 0 columns".to_owned(),
        1 => format!("its only column is {shown}"),
        2..=SHOWN => format!("its columns are {shown}"),
        _ => format!("the nearest of its {count} columns are {shown}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_few_slips_come_first() {
        let columns = ["hour", "Price", "prices", "rice", "site"];
        assert_eq!(
            nearest_columns("price", columns),
            "the nearest of its 5 columns are \"Price\", \"prices\", \"rice\""
        );
        assert_eq!(nearest_columns("y", ["b", "a"]), "its columns are \"a\", \"b\"");
        assert_eq!(nearest_columns("y", ["a;b"]), "its only column is \"a;b\"");
        assert_eq!(nearest_columns("y", []), "it has 0 columns");
    }
}
