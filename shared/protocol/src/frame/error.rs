//! Why bytes are not a frame.

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first four bytes are wrong: another program, or a stream that lost its place.
    #[error("frame begins with {}, expected HDLF", .0.escape_ascii())]
    Magic([u8; 4]),
    /// A version that this program does not speak.
    #[error("frame version {0}, which is not that of this program")]
    Version(u16),
    /// An unknown kind.
    #[error("unknown frame kind {0}")]
    Kind(u16),
    /// An unknown status.
    #[error("unknown frame status {0}")]
    Status(u16),
    /// A flag without meaning.
    #[error("unknown frame flags {0:#06x}")]
    Flags(u16),
    /// Bytes without meaning are not zero.
    #[error("frame has {0:#06x} in bytes that must be zero")]
    Reserved(u16),
    /// A length above its bound.
    #[error("frame announces {bytes} bytes of {what}, more than allowed")]
    TooLong {
        /// Keys or values.
        what: &'static str,
        /// The length announced.
        bytes: u32,
    },
    /// Key bytes do not fit the number of keys.
    #[error("frame announces {count} keys in {bytes} bytes")]
    Keys {
        /// Keys announced.
        count: u32,
        /// Bytes announced.
        bytes: u32,
    },
    /// Value bytes are not whole f32.
    #[error("frame announces {0} bytes of values, not a multiple of 4")]
    Values(u32),
}
