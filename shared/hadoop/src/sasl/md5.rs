//! MD5 over several pieces, as RFC 2831 writes `H({a, b})`.

use md5::{Digest as _, Md5};

/// MD5 of the concatenated pieces.
pub(super) fn md5(pieces: &[&[u8]]) -> [u8; 16] {
    let mut hash = Md5::new();
    for piece in pieces {
        hash.update(piece);
    }
    hash.finalize().into()
}
