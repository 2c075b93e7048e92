//! Columns that are encrypted under a footer that is not ("plaintext footer mode" of the format's modular encryption).
//! The other columns are read.
//!
//! The decoder, built without encryption, passes over this part of a footer and takes encrypted pages for damaged ones.

use std::collections::BTreeSet;

use crate::thrift::{Compact, FieldHead, LIST, STRUCT, TEXT};

// Fields of the format's `FileMetaData`, `RowGroup`, `ColumnChunk`, `ColumnCryptoMetaData` and `EncryptionWithColumnKey`.
const ROW_GROUPS: u64 = 4;
const COLUMNS: u64 = 1;
const CRYPTO_METADATA: u64 = 8;
const WITH_COLUMN_KEY: u64 = 2;
const PATH: u64 = 1;

/// The type of such a column, in messages.
pub(crate) const ENCRYPTED: &str = "encrypted";

/// What is encrypted in a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct EncryptedLeaves {
    /// The leaves of the schema that are encrypted in a row group, by their numbers.
    pub(crate) leaves: BTreeSet<usize>,
    /// The columns among them with keys of their own, by their names.
    pub(crate) names: BTreeSet<String>,
}

impl EncryptedLeaves {
    /// Of a footer. What comes before a damaged place counts.
    pub(crate) fn find(footer: &[u8]) -> Self {
        let mut found = Self::default();
        // The decoder reports damage.
        let _ = Compact(footer).fields(|file, field| match field {
            FieldHead { id: ROW_GROUPS, kind: LIST } => {
                let groups = file.list().filter(|groups| groups.kind == STRUCT)?;
                (0..groups.id).try_for_each(|_| found.add_group(file))
            }
            other => file.skip(other.kind),
        });
        found
    }

    fn add_group(&mut self, group: &mut Compact<'_>) -> Option<()> {
        group.fields(|group, field| match field {
            FieldHead { id: COLUMNS, kind: LIST } => {
                let columns = group.list().filter(|columns| columns.kind == STRUCT)?;
                (0..columns.id).try_for_each(|leaf| self.add_column(group, leaf as usize))
            }
            other => group.skip(other.kind),
        })
    }

    fn add_column(&mut self, column: &mut Compact<'_>, leaf: usize) -> Option<()> {
        column.fields(|column, field| match field {
            FieldHead { id: CRYPTO_METADATA, kind: STRUCT } => {
                self.leaves.insert(leaf);
                column.fields(|key, field| match field {
                    FieldHead { id: WITH_COLUMN_KEY, kind: STRUCT } => self.add_name(key),
                    other => key.skip(other.kind),
                })
            }
            other => column.skip(other.kind),
        })
    }

    fn add_name(&mut self, key: &mut Compact<'_>) -> Option<()> {
        key.fields(|key, field| match field {
            FieldHead { id: PATH, kind: LIST } => {
                let names = key.list().filter(|names| names.kind == TEXT)?;
                for number in 0..names.id {
                    let name = key.text()?;
                    if number == 0 {
                        self.names.insert(String::from_utf8_lossy(name).into_owned());
                    }
                }
                Some(())
            }
            other => key.skip(other.kind),
        })
    }
}

#[cfg(test)]
mod tests {
    use heddle_columns::typed::ColumnShape;

    use super::*;
    use crate::{FileError, Footer};

    /// Bytes of Thrift's compact protocol.
    #[derive(Default)]
    struct Thrift(Vec<u8>);

    impl Thrift {
        /// A field that comes `step` numbers after the last one.
        fn field(mut self, step: u8, kind: u8) -> Self {
            self.0.push(step << 4 | kind);
            self
        }

        /// A number below 64.
        fn number(mut self, number: u8) -> Self {
            self.0.push(number << 1);
            self
        }

        fn text(mut self, text: &str) -> Self {
            self.0.push(text.len() as u8);
            self.0.extend(text.as_bytes());
            self
        }

        fn list(self, items: u8, kind: u8) -> Self {
            self.field(items, kind)
        }

        fn join(mut self, other: &Self) -> Self {
            self.0.extend(&other.0);
            self
        }

        fn stop(mut self) -> Self {
            self.0.push(0);
            self
        }
    }

    fn thrift() -> Thrift {
        Thrift::default()
    }

    /// A column of 3 whole numbers, whose description is there or not.
    fn column(name: &str, is_described: bool, crypto: Option<&Thrift>) -> Thrift {
        // Type INT64, encodings, path, codec, values, lengths, offset of the page.
        let lists = |own: Thrift| {
            own.field(1, LIST).list(1, 5).number(0).field(1, LIST).list(1, TEXT).text(name)
        };
        let own = lists(thrift().field(1, 5).number(2)).field(1, 5).number(0).field(1, 6).number(3);
        let own = own.field(1, 6).number(40).field(1, 6).number(40).field(2, 6).number(4).stop();
        let column = thrift().field(2, 6).number(4);
        let column = if is_described { column.field(1, STRUCT).join(&own) } else { column };
        let step = if is_described { 5 } else { 6 };
        match crypto {
            Some(crypto) => column.field(step, STRUCT).join(crypto).stop(),
            None => column.stop(),
        }
    }

    /// A file with the columns `plain` and `secret`.
    fn parse(secret: &Thrift) -> Result<Footer, FileError> {
        let leaf = |name: &str| {
            let leaf = thrift().field(1, 5).number(2).field(2, 5).number(0);
            leaf.field(1, TEXT).text(name).stop()
        };
        let root = thrift().field(4, TEXT).text("m").field(1, 5).number(2).stop();
        let schema = root.join(&leaf("plain")).join(&leaf("secret"));
        let columns = column("plain", true, None).join(secret);
        let group = thrift().field(1, LIST).list(2, STRUCT).join(&columns);
        let group = group.field(1, 6).number(40).field(1, 6).number(3).stop();
        let file = thrift().field(1, 5).number(1).field(1, LIST).list(3, STRUCT).join(&schema);
        let file = file.field(1, 6).number(3).field(1, LIST).list(1, STRUCT).join(&group);
        // AES_GCM_V1.
        let mut footer = file.field(4, STRUCT).field(1, STRUCT).stop().stop().stop().0;
        footer.extend((footer.len() as u32).to_le_bytes());
        footer.extend(b"PAR1");
        let bytes = footer.len() as u64 + 100;
        Footer::parse(&footer, bytes)
    }

    fn own_key() -> Thrift {
        let path = thrift().field(1, LIST).list(1, TEXT).text("secret").stop();
        thrift().field(2, STRUCT).join(&path).stop()
    }

    #[test]
    fn encrypted_columns_are_not_read_and_the_others_are() {
        let of_footer = thrift().field(1, STRUCT).stop().stop();
        for key in [own_key(), of_footer] {
            let footer = parse(&column("secret", true, Some(&key))).expect("it is read");
            let shapes: Vec<_> = footer.columns.columns.iter().map(|own| own.shape).collect();
            assert_eq!(shapes, [ColumnShape::Value(0), ColumnShape::Other]);
            assert_eq!(footer.columns.columns[1].kind.name(), ENCRYPTED);
            assert_eq!(footer.rows(), 3);
        }
        let footer = parse(&column("secret", true, None)).expect("it is read");
        assert_eq!(footer.columns.columns[1].shape, ColumnShape::Value(1));
    }

    #[test]
    fn file_whose_encrypted_columns_are_not_described_is_named() {
        let error = parse(&column("secret", false, Some(&own_key()))).expect_err("encrypted");
        assert!(error.to_string().contains("are encrypted"), "{error}");
        assert!(error.to_string().contains("(\"secret\")"), "{error}");
        let error = parse(&column("secret", false, None)).expect_err("damaged");
        assert!(error.to_string().starts_with("its footer is damaged"), "{error}");
    }

    #[test]
    fn footers_that_end_early_end_the_search() {
        let group =
            thrift().field(1, LIST).list(1, STRUCT).join(&column("a", true, Some(&own_key())));
        let file = thrift().field(4, LIST).list(1, STRUCT).join(&group).stop().stop();
        let whole = EncryptedLeaves::find(&file.0);
        assert_eq!((whole.leaves.len(), whole.names.len()), (1, 1));
        for end in 0..file.0.len() {
            let found = EncryptedLeaves::find(&file.0[..end]);
            assert!(found == whole || found.names.is_empty());
        }
        // Lists within lists, and a list of any length.
        assert_eq!(EncryptedLeaves::find(&[0x19; 100_000]), EncryptedLeaves::default());
        let long = [0x49, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert_eq!(EncryptedLeaves::find(&long), EncryptedLeaves::default());
    }
}
