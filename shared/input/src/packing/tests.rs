use std::io::Write as _;

use proptest::prelude::*;

use super::unpacker::TEXT_STEP;
use super::*;

/// Packed in one part.
pub(crate) fn pack(compression: Compression, text: &[u8]) -> Vec<u8> {
    match compression {
        Compression::None => text.to_vec(),
        Compression::Gzip => {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            encoder.write_all(text).expect("packed");
            encoder.finish().expect("packed")
        }
        Compression::Bzip2 => {
            let best = ::bzip2::Compression::best();
            let mut encoder = ::bzip2::write::BzEncoder::new(Vec::new(), best);
            encoder.write_all(text).expect("packed");
            encoder.finish().expect("packed")
        }
        Compression::Zstd => {
            let mut encoder = ::zstd::Encoder::new(Vec::new(), 3).expect("made");
            encoder.include_checksum(true).expect("made");
            encoder.write_all(text).expect("packed");
            encoder.finish().expect("packed")
        }
        // One block of two chunks, as Hadoop writes them where its buffer was filled twice.
        Compression::Snappy => {
            let mut packed = (text.len() as u32).to_be_bytes().to_vec();
            let (first, second) = text.split_at(text.len() / 2);
            for chunk in [first, second].into_iter().filter(|chunk| !chunk.is_empty()) {
                let chunk = snap::raw::Encoder::new().compress_vec(chunk).expect("packed");
                packed.extend((chunk.len() as u32).to_be_bytes());
                packed.extend(chunk);
            }
            packed
        }
    }
}

fn in_pieces(packing: &Packing, packed: &[u8], len: usize) -> Result<String, UnpackError> {
    let (mut unpacker, mut text) = ((packing.unpacker)(), Vec::new());
    for mut piece in packed.chunks(len) {
        loop {
            let before = text.len();
            let needs_more = unpacker.step(&mut piece, &mut text)?;
            assert!(text.len() - before <= TEXT_STEP, "{} in a step", text.len() - before);
            if needs_more {
                break;
            }
        }
        assert!(piece.is_empty(), "a step left {} bytes", piece.len());
    }
    unpacker.finish()?;
    Ok(String::from_utf8(text).expect("text"))
}

/// In pieces of each length up to 30 bytes.
fn unpack(packing: &Packing, packed: &[u8]) -> Result<String, UnpackError> {
    let whole: Vec<_> = (1..30).map(|len| in_pieces(packing, packed, len)).collect();
    assert!(whole.windows(2).all(|pair| pair[0] == pair[1]), "{whole:?}");
    whole.into_iter().next().expect("tried")
}

fn zstd() -> &'static Packing {
    packing_of(Compression::Zstd).expect("a row")
}

fn damage(result: Result<String, UnpackError>) -> String {
    result.expect_err("damaged").to_string()
}

#[test]
fn parts_and_zeros_between_and_after_are_one_text() {
    for packing in &PACKINGS {
        let pack = |text: &str| pack(packing.compression, text.as_bytes());
        let two = [pack("one "), pack(""), pack("two")].concat();
        let padded = [&two[..], &[0; 511]].concat();
        let between = [pack("one "), vec![0; 12], pack("two"), vec![0; 7]].concat();
        for packed in [two, padded, between] {
            assert_eq!(unpack(packing, &packed).as_deref(), Ok("one two"), "{}", packing.name);
        }
        for empty in [vec![], pack(""), [pack(""), pack("")].concat()] {
            assert_eq!(unpack(packing, &empty).as_deref(), Ok(""), "{}", packing.name);
        }
    }
}

#[test]
fn files_of_other_programs_are_read() {
    let line = |n: u32| {
        let value = f64::from(n * n % 1000) / 8.0;
        let point = if value.fract() == 0.0 { ".0" } else { "" };
        format!("{} {}:{value}{point} {}:1\n", n % 2, n % 97 + 1, n % 89 + 100)
    };
    let text: String = (0..700).map(line).collect();
    let files: [(&str, &[u8]); 2] = [
        ("lines.libsvm.zst", include_bytes!("../../testdata/lines.libsvm.zst")),
        ("lines.libsvm.bz2", include_bytes!("../../testdata/lines.libsvm.bz2")),
    ];
    for (name, packed) in files {
        let packing = packing_of_name(name).expect("a packing");
        assert!((packing.begins)(packed), "{name}");
        assert!(unpack(packing, packed) == Ok(text.clone()), "{name}");
        for at in (12..packed.len()).step_by(97) {
            let mut damaged = packed.to_vec();
            damaged[at] ^= 4;
            let error = damage(in_pieces(packing, &damaged, 1000));
            assert!(error.starts_with("not a sound "), "{name}, byte {at}: {error}");
        }
    }
}

#[test]
fn other_bytes_and_cuts_are_placed() {
    for packing in &PACKINGS {
        let part = pack(packing.compression, b"some text");
        for cut in 1..part.len() {
            let error = damage(unpack(packing, &part[..cut]));
            let place =
                format!("not a sound {} file: the file ends within it (in the", packing.name);
            assert!(error.starts_with(&place) && error.ends_with(" at byte 0)"), "{error}");
        }
        let second = [&part[..], &part[..part.len() - 3]].concat();
        let error = damage(unpack(packing, &second));
        assert!(error.ends_with(&format!(" at byte {})", part.len())), "{error}");
        let has_magic = (packing.begins)(&part);
        let rests: [(&[u8], usize); 3] = [(b"rubbish", 0), (b"x", 0), (b"\0\0\0\0x\0", 4)];
        for (rest, zeros) in rests.into_iter().filter(|(rest, _)| has_magic || rest.len() < 7) {
            let error = unpack(packing, &[&part[..], rest].concat()).expect_err("rubbish");
            let expected = (part.len() + zeros) as u64;
            let is_placed = matches!(error, UnpackError::Trailing { at, .. } if at == expected);
            assert!(is_placed, "{}: {rest:?}: {error}", packing.name);
        }
        if has_magic {
            assert!(damage(unpack(packing, &[0; 40])).ends_with(" at byte 0)"));
        }
    }
}

#[test]
fn lengths_of_snappy_above_the_limit_are_refused() {
    let packing = packing_of(Compression::Snappy).expect("a row");
    let error = damage(unpack(packing, b"1 1:1 2:1\n"));
    assert!(error.contains("have 824193338 bytes, at most 67108864 are read"), "{error}");
    let long_chunk = [&9u32.to_be_bytes()[..], &u32::MAX.to_be_bytes()].concat();
    assert!(damage(unpack(packing, &long_chunk)).contains("a chunk of 4294967295 bytes"));
    let chunk = |packed: &[u8]| {
        let length = (packed.len() as u32).to_be_bytes();
        unpack(packing, &[&9u32.to_be_bytes()[..], &length, packed].concat())
    };
    let ten = snap::raw::Encoder::new().compress_vec(b"0123456789").expect("packed");
    assert!(damage(chunk(&ten)).contains("its chunks are longer than it"));
    for hostile in [&b""[..], b"\xff\xff\xff\xff\x0f", b"\x09", b"\x09\xfe\xff\xff"] {
        assert!(damage(chunk(hostile)).contains("(in the block at byte 0)"), "{hostile:?}");
    }
}

/// A frame with a window byte, and blocks without their header.
fn frame(window: u8, blocks: &[(u32, &[u8])]) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, window];
    for (header, content) in blocks {
        frame.extend_from_slice(&header.to_le_bytes()[..3]);
        frame.extend_from_slice(content);
    }
    frame
}

#[test]
fn frames_of_zstd_with_wide_windows_are_refused_by_name() {
    let last: [(u32, &[u8]); 1] = [(3 << 3 | 1, b"abc")];
    assert_eq!(unpack(zstd(), &frame(17 << 3, &last)).as_deref(), Ok("abc"));
    let error = damage(unpack(zstd(), &frame(17 << 3 | 1, &last)));
    assert!(error.contains("its window is larger than 128 MiB"), "{error}");
    assert!(error.contains("--long"), "{error}");
}

#[test]
fn special_frames_of_zstd_are_read() {
    let skipped = [&[0x5f, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"any"].concat();
    let empty = [0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0];
    let blocks: [(u32, &[u8]); 4] = [(0, b""), (2 << 3 | 2, b"x"), (1 << 3, b"y"), (1, b"")];
    let all = [&skipped[..], &frame(0, &blocks), &empty, &frame(0, &[(1, b"")]), &skipped].concat();
    assert!((zstd().begins)(&all));
    assert_eq!(unpack(zstd(), &all).as_deref(), Ok("xxy"));
    let dictionary = [0x28, 0xb5, 0x2f, 0xfd, 1, 0, 7, 1, 0, 0];
    assert!(damage(unpack(zstd(), &dictionary)).contains("Dictionary mismatch"));
    let reserved = frame(0, &[(1 << 3 | 7, b"z")]);
    assert!(damage(unpack(zstd(), &reserved)).contains("(in the frame at byte 0)"));
}

#[test]
fn a_step_is_short_in_hostile_files_too() {
    let zeros = vec![0; 8 << 20];
    for packing in PACKINGS.iter().filter(|packing| packing.name != snappy::NAME) {
        let packed = pack(packing.compression, &zeros);
        let text = in_pieces(packing, &packed, 1 << 20).expect("text");
        assert!(text.as_bytes() == zeros, "{}", packing.name);
        let beginning = unpack_beginning(packing.compression, &[&packed[..], &packed].concat());
        assert!(beginning.len() <= BEGINNING_BYTES_MAX + TEXT_STEP, "{}", packing.name);
    }
    let run: (u32, &[u8]) = (128 << 10 << 3 | 2, b"\0");
    let packed = frame(17 << 3, &[run; 1000]);
    assert_eq!(unpack_beginning(Compression::Zstd, &packed).len(), BEGINNING_BYTES_MAX);
}

#[test]
fn the_beginning_of_a_packed_file_is_text() {
    let text: String =
        (0..300_000).map(|n: u64| format!("1 {}:1\n", n * n * n % 999_983)).collect();
    for packing in &PACKINGS {
        let packed = match packing.compression {
            // Blocks as short as Hadoop's.
            Compression::Snappy => {
                let blocks = text.as_bytes().chunks(1 << 16);
                blocks.flat_map(|block| pack(Compression::Snappy, block)).collect()
            }
            other => pack(other, text.as_bytes()),
        };
        let beginning = unpack_beginning(packing.compression, &packed[..packed.len() * 3 / 4]);
        assert!(beginning.len() > text.len() / 4, "{}: {}", packing.name, beginning.len());
        assert!(text.as_bytes().starts_with(&beginning), "{}", packing.name);
    }
    assert_eq!(unpack_beginning(Compression::None, b"1 1:1"), b"1 1:1");
}

proptest! {
    #[test]
    fn damaged_files_never_panic(
        row in 0..PACKINGS.len(),
        changes in proptest::collection::vec((0usize..4000, any::<u8>()), 1..4),
        len in 1usize..5000,
    ) {
        let text: String = (0..900).map(|n| format!("1 {}:1\n", n * n % 997)).collect();
        let mut packed = pack(PACKINGS[row].compression, text.as_bytes());
        for (at, byte) in changes {
            let at = at % packed.len();
            packed[at] = byte;
        }
        let mut unpacker = (PACKINGS[row].unpacker)();
        let mut unpacked = Vec::new();
        let whole = packed.chunks(len).try_for_each(|mut piece| {
            while !unpacker.step(&mut piece, &mut unpacked)? {}
            Ok::<_, UnpackError>(())
        });
        prop_assert!(whole.is_err() || unpacker.finish().is_err() || !unpacked.is_empty());
    }
}
