//! When the ticket of a cache file ends. The library reports that it has ended, and not when.
//!
//! Format: MIT "Credential cache file format", versions 3 and 4, whose numbers are big-endian. Other versions give no time.

/// The versions that are read, after the tag 5.
const VERSION_3: [u8; 2] = [5, 3];
const VERSION_4: [u8; 2] = [5, 4];
/// First name of the service that gives tickets.
const TICKET_GRANTING: &[u8] = b"krbtgt";

/// When the first ticket-granting ticket of the file ends, seconds since 1970; `None` if it has none or is incomplete.
pub(super) fn end_of_tickets(file: &[u8]) -> Option<u32> {
    let version = [*file.first()?, *file.get(1)?];
    let mut rest = CacheFields(file.get(2..)?);
    match version {
        VERSION_4 => {
            let header = rest.u16()?;
            rest.take(header.into())?;
        }
        VERSION_3 => {}
        _ => return None,
    }
    rest.principal()?;
    loop {
        rest.principal()?;
        let service = rest.principal()?;
        rest.u16()?;
        if version == VERSION_3 {
            rest.u16()?;
        }
        rest.data()?;
        let [_authenticated, _begin, end, _renewable] =
            [rest.u32()?, rest.u32()?, rest.u32()?, rest.u32()?];
        if service == TICKET_GRANTING {
            return Some(end);
        }
        rest.take(1 + 4)?;
        // Addresses, then authorisation data: each has a type.
        for _list in 0..2 {
            for _entry in 0..rest.u32()? {
                rest.u16()?;
                rest.data()?;
            }
        }
        // The ticket, and a second one.
        rest.data()?;
        rest.data()?;
    }
}

/// What is left of the file.
struct CacheFields<'f>(&'f [u8]);

impl<'f> CacheFields<'f> {
    fn take(&mut self, length: usize) -> Option<&'f [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(*self.take(2)?.first_chunk()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(*self.take(4)?.first_chunk()?))
    }

    fn data(&mut self) -> Option<&'f [u8]> {
        let length = self.u32()?;
        self.take(usize::try_from(length).ok()?)
    }

    /// A principal; returns its first name, empty if it has none.
    fn principal(&mut self) -> Option<&'f [u8]> {
        self.u32()?;
        let names = self.u32()?;
        self.data()?;
        let mut first = &b""[..];
        for n in 0..names {
            let name = self.data()?;
            if n == 0 {
                first = name;
            }
        }
        Some(first)
    }
}

/// A cache file of version 4 whose ticket-granting ticket ends at that time.
#[cfg(test)]
pub(super) fn sample(end: u32) -> Vec<u8> {
    tests::file(tests::VERSIONS[1], end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(super) const VERSIONS: [[u8; 2]; 2] = [VERSION_3, VERSION_4];

    fn data(bytes: &[u8]) -> Vec<u8> {
        [&u32::try_from(bytes.len()).expect("short").to_be_bytes()[..], bytes].concat()
    }

    fn principal(names: &[&str]) -> Vec<u8> {
        let count = u32::try_from(names.len()).expect("few").to_be_bytes();
        let mut all = [&1u32.to_be_bytes()[..], &count, &data(b"TEST.LOCAL")].concat();
        names.iter().for_each(|name| all.extend(data(name.as_bytes())));
        all
    }

    fn ticket(version: [u8; 2], service: &[&str], end: u32) -> Vec<u8> {
        let mut all = [principal(&["alice"]), principal(service)].concat();
        all.extend(18u16.to_be_bytes());
        if version == VERSION_3 {
            all.extend(18u16.to_be_bytes());
        }
        all.extend(data(&[7; 32]));
        for time in [1, 2, end, 4u32] {
            all.extend(time.to_be_bytes());
        }
        all.extend([0; 5]);
        // An address and no authorisation data.
        all.extend([0, 0, 0, 1, 0, 2]);
        all.extend(data(&[127, 0, 0, 1]));
        all.extend([0; 4]);
        all.extend(data(b"ticket"));
        all.extend(data(b""));
        all
    }

    pub(super) fn file(version: [u8; 2], end: u32) -> Vec<u8> {
        let header: &[u8] = match version {
            VERSION_4 => &[0, 12, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0],
            _ => &[],
        };
        [
            &version[..],
            header,
            &principal(&["alice"]),
            &ticket(version, &["X-CACHECONF:", "pa_type"], 0),
            &ticket(version, &["krbtgt", "TEST.LOCAL"], end),
            &ticket(version, &["nn", "localhost"], 99),
        ]
        .concat()
    }

    #[test]
    fn the_end_is_that_of_the_ticket_granting_ticket() {
        for version in VERSIONS {
            let file = file(version, 1_700_000_000);
            assert_eq!(end_of_tickets(&file), Some(1_700_000_000), "{version:?}");
        }
        assert_eq!(end_of_tickets(&[5, 2, 0, 0]), None);
    }

    #[test]
    fn a_truncated_file_has_no_end_or_the_right_one() {
        let whole = file(VERSION_4, 1_700_000_000);
        for length in 0..whole.len() {
            let end = end_of_tickets(&whole[..length]);
            assert!(matches!(end, None | Some(1_700_000_000)), "{length}: {end:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            version in 3u8..5,
        ) {
            let _any = end_of_tickets(&[&[5, version], &bytes[..]].concat());
        }
    }
}
