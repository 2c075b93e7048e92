//! Quantities as the job file writes them: sizes, durations, intervals, port ranges.
//!
//! Each parses from the text of a job file and prints back as the shortest text that parses to the
//! same value. In JSON they are strings too, so that a spec reads the same everywhere.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What was expected instead of a text, with an example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {0}")]
pub struct ValueError(pub String);

fn expected<T>(what: &str) -> Result<T, ValueError> {
    Err(ValueError(what.to_owned()))
}

/// Serialises by `Display` and deserialises by `FromStr`.
macro_rules! serde_as_text {
    ($name:ty) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use serde_as_text;

/// Splits `12.5MiB` into the number and the unit; the number has digits and at most one point.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    // Twenty digits hold every u64; longer texts are mistakes.
    if number.is_empty() || number.len() > 20 {
        return None;
    }
    let number: f64 = number.parse().ok()?;
    Some((number, unit.trim()))
}

/// The product as a whole number, or nothing when it exceeds what f64 counts exactly (2⁵³).
fn whole(number: f64, factor: f64) -> Option<u64> {
    let product = (number * factor).round();
    (product <= 9_007_199_254_740_992.0).then_some(product as u64)
}

/// Permission bits of files, as octal digits: `0640`. Directories of such files also have the
/// execute bit for each read bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions(pub u32);

impl FromStr for Permissions {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let octal = (3..=4).contains(&text.len()) && text.bytes().all(|b| matches!(b, b'0'..=b'7'));
        match u32::from_str_radix(text, 8) {
            // The owner must be able to replace and to read its own files.
            Ok(bits) if octal && bits & !0o666 == 0 && bits & 0o600 == 0o600 => Ok(Self(bits)),
            _ => expected("octal permissions of files such as \"0640\", at least \"0600\""),
        }
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}
serde_as_text!(Permissions);

/// A size in bytes. Written `512KiB`, `2GiB`, `64m` (k, m, g, t alone are binary, as for Spark and
/// YARN), `10MB` (decimal), or a plain number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Mebibytes.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
}

impl FromStr for Bytes {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        const EXPECTED: &str = "a size such as \"512MiB\" or \"2GiB\"";
        let Some((number, unit)) = number_and_unit(text) else {
            return expected(EXPECTED);
        };
        let factor: u64 = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return expected(EXPECTED),
        };
        match whole(number, factor as f64) {
            Some(bytes) => Ok(Self(bytes)),
            None => expected("a size below 8 PiB"),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

serde_as_text!(Bytes);

/// Bytes a second. Written as a size, with `/s` behind it or not: `100MiB/s`, `100MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytesPerSecond(pub Bytes);

impl FromStr for BytesPerSecond {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let text = text.trim();
        let size = text.strip_suffix("/s").unwrap_or(text);
        size.parse().map(Self).or_else(|_| expected("a rate such as \"100MiB/s\""))
    }
}

/// A length of time in milliseconds. Written `500ms`, `30s`, `10min`, `2h`, `1d`; the unit is required.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DurationMs(pub u64);

impl DurationMs {
    /// Whole seconds.
    #[must_use]
    pub const fn secs(n: u64) -> Self {
        Self(n * 1000)
    }

    /// For the clocks of the standard library.
    #[must_use]
    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl FromStr for DurationMs {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        const EXPECTED: &str = "a duration such as \"30s\", \"10min\" or \"2h\"";
        let Some((number, unit)) = number_and_unit(text) else {
            return expected(EXPECTED);
        };
        let factor: u64 = match unit {
            "ms" => 1,
            "s" | "sec" | "second" | "seconds" => 1_000,
            "m" | "min" | "minute" | "minutes" => 60_000,
            "h" | "hour" | "hours" => 3_600_000,
            "d" | "day" | "days" => 86_400_000,
            _ => return expected(EXPECTED),
        };
        match whole(number, factor as f64) {
            // More than a year is a mistake in the unit; the bound keeps sums of deadlines far from overflow.
            Some(ms) if ms <= 366 * 86_400_000 => Ok(Self(ms)),
            _ => expected("a duration of at most 366 days"),
        }
    }
}

impl fmt::Display for DurationMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (ms, unit) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")] {
            if self.0 != 0 && self.0.is_multiple_of(ms) {
                return write!(f, "{}{unit}", self.0 / ms);
            }
        }
        write!(f, "{}ms", self.0)
    }
}

serde_as_text!(DurationMs);

/// How often something happens. Written `auto`, `10min`, `2 passes`, `500 steps`; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Every {
    /// As often as costs and failures make best.
    Auto,
    /// Whenever this much time has gone by since the last one.
    Time(DurationMs),
    /// At the end of every n-th pass.
    Passes(u32),
    /// Every n steps: in BSP job steps, in ASP steps of all trainers together.
    Steps(u64),
}

impl FromStr for Every {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        const EXPECTED: &str = "\"auto\", or a duration, a number of passes or of steps above 0, \
                                such as \"10min\", \"2 passes\" or \"500 steps\"";
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let Some((number, unit)) = number_and_unit(text) else {
            return expected(EXPECTED);
        };
        let every = match unit {
            "pass" | "passes" if number.fract() == 0.0 && number <= f64::from(u32::MAX) => {
                Self::Passes(number as u32)
            }
            "step" | "steps" if number.fract() == 0.0 => match whole(number, 1.0) {
                Some(steps) => Self::Steps(steps),
                None => return expected(EXPECTED),
            },
            _ => match text.parse() {
                Ok(duration) => Self::Time(duration),
                Err(_) => return expected(EXPECTED),
            },
        };
        match every {
            Self::Time(DurationMs(0)) | Self::Passes(0) | Self::Steps(0) => expected(EXPECTED),
            every => Ok(every),
        }
    }
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Time(duration) => duration.fmt(f),
            Self::Passes(1) => f.write_str("1 pass"),
            Self::Passes(n) => write!(f, "{n} passes"),
            Self::Steps(1) => f.write_str("1 step"),
            Self::Steps(n) => write!(f, "{n} steps"),
        }
    }
}

serde_as_text!(Every);

/// A part of a memory size: a percentage of it (`25%`, 1 to 100) or a number of bytes (`512MiB`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Share {
    /// Of the whole, 1 to 100.
    Percent(u8),
    /// Independent of the whole.
    Bytes(Bytes),
}

impl Share {
    /// The share of `whole` in bytes, never more than `whole`.
    #[must_use]
    pub fn of(self, whole: Bytes) -> Bytes {
        match self {
            // Divided first: sizes are far above 100 bytes and the product could overflow.
            Self::Percent(percent) => Bytes(whole.0 / 100 * u64::from(percent.min(100))),
            Self::Bytes(bytes) => bytes.min(whole),
        }
    }
}

impl FromStr for Share {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        const EXPECTED: &str = "a percentage from 1% to 100% or a size such as \"512MiB\"";
        if let Some(percent) = text.trim().strip_suffix('%') {
            return match percent.trim().parse() {
                Ok(percent @ 1..=100) => Ok(Self::Percent(percent)),
                _ => expected(EXPECTED),
            };
        }
        match text.parse() {
            Ok(bytes) => Ok(Self::Bytes(bytes)),
            Err(_) => expected(EXPECTED),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Bytes(bytes) => bytes.fmt(f),
        }
    }
}

serde_as_text!(Share);

/// How many tasks of a pass may be left out: a percentage of them, 0 to 100, written `5%`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TaskShare(pub u8);

impl TaskShare {
    /// Whether this number of tasks, of all that a pass has, is within the share.
    #[must_use]
    pub fn allows(self, tasks: usize, all: usize) -> bool {
        tasks.saturating_mul(100) <= all.saturating_mul(usize::from(self.0))
    }
}

impl FromStr for TaskShare {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.trim().strip_suffix('%').map(|percent| percent.trim().parse()) {
            Some(Ok(percent @ 0..=100)) => Ok(Self(percent)),
            _ => expected("a whole percentage from \"0%\" to \"100%\""),
        }
    }
}

impl fmt::Display for TaskShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

serde_as_text!(TaskShare);

/// Ports a process may listen on, both ends included, none of them 0. Written `7000-7100` or `7000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    /// The lowest.
    pub first: u16,
    /// The highest.
    pub last: u16,
}

impl PortRange {
    /// All ports of the range, ascending.
    pub fn ports(self) -> impl Iterator<Item = u16> {
        self.first..=self.last
    }
}

impl FromStr for PortRange {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
            (Ok(first), Ok(last)) if first > 0 && first <= last => Ok(Self { first, last }),
            _ => expected("ports such as \"7000-7100\" or \"7000\", from 1 to 65535, lowest first"),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            return write!(f, "{}", self.first);
        }
        write!(f, "{}-{}", self.first, self.last)
    }
}

serde_as_text!(PortRange);

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_read_as_written() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("1k", 1024),
            ("2GiB", 2 << 30),
            ("1.5m", 1_572_864),
            ("10 MB", 10_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "GiB", "2 GiBs", "-1", "1e9", "9999999999999999999g", "1.2.3", "\u{0663}k"]
        {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn rates_may_say_a_second_or_leave_it() {
        let rate = Ok(BytesPerSecond(Bytes::mib(100)));
        assert_eq!("100MiB/s".parse(), rate);
        assert_eq!("100 MiB".parse(), rate);
        for text in ["", "/s", "100MiB/min", "fast"] {
            assert!(text.parse::<BytesPerSecond>().is_err(), "{text}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!("10min".parse(), Ok(DurationMs(600_000)));
        assert_eq!("1.5s".parse(), Ok(DurationMs(1_500)));
        for text in ["10", "", "min", "10 fortnights", "400d"] {
            assert!(text.parse::<DurationMs>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_interval_is_time_passes_or_steps_and_never_zero() {
        assert_eq!("2 passes".parse(), Ok(Every::Passes(2)));
        assert_eq!("1 pass".parse(), Ok(Every::Passes(1)));
        assert_eq!("500steps".parse(), Ok(Every::Steps(500)));
        assert_eq!("10min".parse(), Ok(Every::Time(DurationMs::secs(600))));
        for text in ["0 passes", "0s", "0 steps", "1.5 passes", "often", "5"] {
            assert!(text.parse::<Every>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_share_of_tasks_is_a_whole_percentage() {
        assert_eq!("5%".parse(), Ok(TaskShare(5)));
        assert_eq!(TaskShare(100).to_string(), "100%");
        for text in ["5", "101%", "-1%", "2.5%", "%"] {
            assert!(text.parse::<TaskShare>().is_err(), "{text}");
        }
        assert!(!TaskShare(0).allows(1, 1_000_000) && TaskShare(0).allows(0, 0));
        assert!(TaskShare(5).allows(1, 20) && !TaskShare(5).allows(1, 19));
    }

    #[test]
    fn a_share_never_exceeds_the_whole() {
        assert_eq!("25%".parse::<Share>().unwrap().of(Bytes(400)), Bytes(100));
        assert_eq!("1GiB".parse::<Share>().unwrap().of(Bytes(400)), Bytes(400));
        for text in ["0%", "101%", "%", "25 percent"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }

    #[test]
    fn port_ranges_are_ordered() {
        assert_eq!("7000-7002".parse::<PortRange>().unwrap().ports().count(), 3);
        for text in ["0", "7002-7000", "70000", "a-b", "-"] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_prints_parses_to_the_same(
            bytes in 0u64..1 << 53,
            ms in 1u64..86_400_000,
            n in 1u32..,
        ) {
            prop_assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
            prop_assert_eq!(DurationMs(ms).to_string().parse(), Ok(DurationMs(ms)));
            let steps = Every::Steps(u64::from(n));
            for every in [Every::Auto, Every::Time(DurationMs(ms)), Every::Passes(n), steps] {
                prop_assert_eq!(every.to_string().parse(), Ok(every));
            }
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = text.parse::<Bytes>();
            let _ = text.parse::<DurationMs>();
            let _ = text.parse::<Every>();
            let _ = text.parse::<Share>();
            let _ = text.parse::<PortRange>();
        }
    }
}
