//! The compression function of MD5 over eight streams in lock-step: each instruction of AVX2 works on one word of every stream.
//!
//! Written with the functions of these instructions. What a compiler makes of loops over arrays differs from one version to
//! the next: 1.9 GB/s with one, and 0.9 with another, which left most of the loops scalar. This has 3.9 where one stream has 0.6.

use std::arch::x86_64::*;
use std::array::from_fn;

use crate::{BLOCK_BYTES, Block, LANES_MAX, Md5Stream};

/// The integer part of 2³² · |sin(i + 1)|.
const SINES: [u32; 64] = [
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
];

/// Appends blocks to at most [`LANES_MAX`] streams. Unused lanes repeat the work of the first stream.
#[target_feature(enable = "avx2")]
pub(crate) fn update(streams: &mut [(&mut Md5Stream, &[Block])]) {
    let lane = |lane: usize| if lane < streams.len() { lane } else { 0 };
    let word = |word: usize| from_fn::<u32, LANES_MAX, _>(|l| streams[lane(l)].0.state[word]);
    let mut state: [__m256i; 4] = from_fn(|n| bytemuck::cast(word(n)));
    compress(&mut state, from_fn(|l| streams[lane(l)].1));
    let state: [[u32; LANES_MAX]; 4] = state.map(bytemuck::cast);
    for (lane, (stream, blocks)) in streams.iter_mut().enumerate() {
        stream.state = state.map(|word| word[lane]);
        stream.bytes += (blocks.len() * BLOCK_BYTES) as u64;
    }
}

/// The four rounds, block after block, in all lanes.
#[target_feature(enable = "avx2")]
fn compress(state: &mut [__m256i; 4], blocks: [&[Block]; LANES_MAX]) {
    let ones = _mm256_set1_epi32(-1);
    #[expect(clippy::needless_range_loop, reason = "the index selects the block in every lane")]
    for block in 0..blocks[0].len() {
        let words = words(from_fn(|lane| &blocks[lane][block]));
        let [mut a, mut b, mut c, mut d] = *state;
        // Unrolled, so that every shift distance is a constant. What does not depend on the step before is added early.
        macro_rules! round {
            ($mix:expr, $word:expr, $shifts:expr, $($step:literal)*) => {$({
                let constant = _mm256_set1_epi32(SINES[$step] as i32);
                let added = _mm256_add_epi32(constant, words[$word($step) % 16]);
                let early = _mm256_add_epi32(a, added);
                let sum = $mix(b, c, d, early);
                let shift = $shifts[$step % 4];
                let high = _mm256_sllv_epi32(sum, _mm256_set1_epi32(shift));
                let low = _mm256_srlv_epi32(sum, _mm256_set1_epi32(32 - shift));
                let next = _mm256_add_epi32(b, _mm256_or_si256(high, low));
                (a, d, c, b) = (d, c, b, next);
            })*};
        }
        round!(
            |x, y, z, early| {
                let chosen = _mm256_xor_si256(z, _mm256_and_si256(x, _mm256_xor_si256(y, z)));
                _mm256_add_epi32(early, chosen)
            },
            |step: usize| step, [7, 12, 17, 22],
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15
        );
        // The two terms of the second round share no bit, so their sum is their union.
        round!(
            |x, y, z, early| {
                let early = _mm256_add_epi32(early, _mm256_andnot_si256(z, y));
                _mm256_add_epi32(early, _mm256_and_si256(x, z))
            },
            |step: usize| 5 * step + 1, [5, 9, 14, 20],
            16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
        );
        round!(
            |x, y, z, early| {
                _mm256_add_epi32(early, _mm256_xor_si256(x, _mm256_xor_si256(y, z)))
            },
            |step: usize| 3 * step + 5, [4, 11, 16, 23],
            32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47
        );
        round!(
            |x, y, z, early| {
                let either = _mm256_or_si256(x, _mm256_xor_si256(z, ones));
                _mm256_add_epi32(early, _mm256_xor_si256(y, either))
            },
            |step: usize| 7 * step, [6, 10, 15, 21],
            48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
        );
        for (word, add) in state.iter_mut().zip([a, b, c, d]) {
            *word = _mm256_add_epi32(*word, add);
        }
    }
}

/// The words of one block of each lane: a transposition in three rounds of shuffles.
#[target_feature(enable = "avx2")]
fn words(blocks: [&Block; LANES_MAX]) -> [__m256i; 16] {
    let half = |from: usize| -> [__m256i; 8] {
        let row =
            |lane: usize| bytemuck::pod_read_unaligned::<__m256i>(&blocks[lane][from..from + 32]);
        let pairs = |n: usize| {
            let (one, two) = (row(n), row(n + 1));
            [_mm256_unpacklo_epi32(one, two), _mm256_unpackhi_epi32(one, two)]
        };
        let fours = |n: usize| {
            let ([a, b], [c, d]) = (pairs(n), pairs(n + 2));
            [
                _mm256_unpacklo_epi64(a, c),
                _mm256_unpackhi_epi64(a, c),
                _mm256_unpacklo_epi64(b, d),
                _mm256_unpackhi_epi64(b, d),
            ]
        };
        let (low, high) = (fours(0), fours(4));
        from_fn(|n| match n {
            0..4 => _mm256_permute2x128_si256::<0x20>(low[n], high[n]),
            _ => _mm256_permute2x128_si256::<0x31>(low[n - 4], high[n - 4]),
        })
    };
    let (low, high) = (half(0), half(32));
    from_fn(|n| if n < 8 { low[n] } else { high[n - 8] })
}
