//! One table for each section of the job file.
//!
//! A row of [`section!`] states all that there is to know of a key: name and type of its field, path in the job file,
//! default, resume rule, how it is read (or the range of a number), and its documentation. The macro makes from it
//!
//! - the struct of the spec, with its JSON form,
//! - `GROUP`, from which `config template`, the reference page and the resume check are made,
//! - `read`, which takes each value with its position and notes each problem,
//! - the check of the ranges, for specs that come as JSON.
//!
//! ```text
//! /// Documentation, for users.
//! #[note = "documentation of the field, for developers"]
//! #[serde(…)]
//! key FIELD: TYPE = "section.key", FALLBACK("default as TOML"), RESUME RULE, range(MIN, MAX);
//! key FIELD: TYPE = "section.key", FALLBACK("…"), RESUME RULE, range_or_auto(MIN, MAX);
//! key FIELD: TYPE = "section.key", FALLBACK("…"), RESUME RULE + site, read(EXPRESSION);
//! stub "section.key" = "the only value that is accepted", "documentation";
//! ```
//!
//! `+ site` marks the keys that the site's defaults may set. A number of `range_or_auto` may be `"auto"`: see
//! [`JobSpec::undecided`](crate::job_spec::JobSpec::undecided).
//!
//! An expression of `read` sees the two names that the table begins with (the reader and the key), the inputs beside them,
//! and as `Option`s the fields above its row.

use super::key::Group;
use crate::job_spec::limits::SpecError;

/// A section of the job file.
pub(in crate::job_spec) trait SpecSection {
    /// Its name, its documentation and its keys.
    const GROUP: Group;

    /// Whether all numbers are within the ranges of the table.
    ///
    /// # Errors
    /// The first that is not.
    fn check_ranges(&self) -> Result<(), SpecError>;
}

/// The text of lines of documentation, of which each begins with a space.
pub(in crate::job_spec) const fn text_of(lines: &'static str) -> &'static str {
    match lines.as_bytes() {
        [b' ', ..] => lines.split_at(1).1,
        _ => lines,
    }
}

macro_rules! section {
    (@by_site) => {
        false
    };
    (@by_site site) => {
        true
    };
    (
        ($take:ident, $key:ident $(, $input:ident: $input_type:ty)?)
        $(#[$attribute:meta])*
        pub struct $spec:ident = [$name:literal] $about:literal {
            $(
                $(#[doc = $doc:expr])+
                $(#[note = $note:literal])*
                $(#[serde($($serde:tt)*)])?
                key $field:ident: $type:ty = $path:literal,
                    $fallback:ident($text:literal), $resume:ident $(+ $site:ident)?,
                    $(range($min:expr, $max:expr))?
                    $(range_or_auto($auto_min:expr, $auto_max:expr))?
                    $(read($read:expr))?;
                $( stub $stub_path:literal = $stub_text:literal, $stub_doc:literal; )*
            )+
        }
    ) => {
        #[doc = concat!("`[", $name, "]`: ", $about)]
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "kebab-case")]
        $(#[$attribute])*
        pub struct $spec {
            $(
                #[doc = concat!("Key `", $path, "` of the job file.")]
                $(#[doc = concat!(" ", $note)])*
                $(#[serde($($serde)*)])?
                pub $field: $type,
            )+
        }

        impl $crate::job_spec::file::section::SpecSection for $spec {
            const GROUP: $crate::job_spec::file::key::Group = $crate::job_spec::file::key::Group {
                name: $name,
                doc: $about,
                keys: &[$(
                    $crate::job_spec::file::key::Key {
                        path: $path,
                        doc: $crate::job_spec::file::section::text_of(concat!($($doc),+)),
                        fallback: $crate::job_spec::file::key::Fallback::$fallback($text),
                        resume: $crate::job_spec::file::key::ResumeRule::$resume,
                        by_site: $crate::job_spec::file::section::section!(@by_site $($site)?),
                    },
                    $(
                        $crate::job_spec::file::key::Key {
                            path: $stub_path,
                            doc: $stub_doc,
                            fallback: $crate::job_spec::file::key::Fallback::NotYet($stub_text),
                            resume: $crate::job_spec::file::key::ResumeRule::Never,
                            by_site: false,
                        },
                    )*
                )+],
            };

            fn check_ranges(&self) -> Result<(), $crate::job_spec::limits::SpecError> {
                $(
                    $( $crate::job_spec::limits::within($path, self.$field, $min, $max)?; )?
                    $( $crate::job_spec::limits::within(
                            $path, self.$field, $auto_min, $auto_max
                        )?; )?
                )+
                Ok(())
            }
        }

        impl $spec {
            /// Takes the keys of the section. `None` where a problem was noted.
            pub(in crate::job_spec) fn read(
                $take: &mut $crate::job_spec::file::take::Take<'_>,
                $($input: $input_type,)?
            ) -> Option<Self> {
                $(
                    let $field = {
                        use $crate::job_spec::file::key;
                        const KEY: key::Key = key::Key {
                            path: $path,
                            doc: $crate::job_spec::file::section::text_of(concat!($($doc),+)),
                            fallback: key::Fallback::$fallback($text),
                            resume: key::ResumeRule::$resume,
                            by_site: $crate::job_spec::file::section::section!(@by_site $($site)?),
                        };
                        let $key: &'static key::Key = &KEY;
                        $( $take.number($key, $min, $max) )?
                        $( $take.number_or_auto($key, $auto_min, $auto_max) )?
                        $( $read )?
                    };
                )+
                Some(Self { $( $field: $field?, )+ })
            }
        }
    };
}

pub(in crate::job_spec) use section;
