//! Requests of one connection, some of them at once.

use std::io;

/// What a request names, and in which direction its values go.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Values are pushed, not pulled.
    pub is_push: bool,
    /// Rows of a sparse table: ascending positions, two words each. Empty: the rows of a dense table from 0 on.
    pub positions: &'a [u32],
}

/// These positions as a request names them: ascending, each once, two words each.
#[must_use]
pub fn position_words(mut positions: Vec<u64>) -> Vec<u32> {
    positions.sort_unstable();
    positions.dedup();
    positions.into_iter().flat_map(|p| [p as u32, (p >> 32) as u32]).collect()
}

/// An end of a connection that asks and is answered, in the order of its requests.
pub trait Requests {
    /// Sends a push of these values, or asks for as many.
    ///
    /// # Errors
    /// The connection breaks.
    fn request(&mut self, request: Request<'_>, values: &[f32]) -> io::Result<()>;

    /// Waits for the answer of the oldest request; fills the values of a pull.
    ///
    /// # Errors
    /// The connection breaks, or the request is refused.
    fn reply(&mut self, request: Request<'_>, values: &mut [f32]) -> io::Result<()>;

    /// `count` exchanges, of which at most `window` are in flight.
    ///
    /// # Errors
    /// See [`Self::request`] and [`Self::reply`].
    fn exchanges(
        &mut self,
        request: Request<'_>,
        values: &mut [f32],
        count: usize,
        window: usize,
    ) -> io::Result<()> {
        for n in 0..count + window {
            if n >= window {
                self.reply(request, values)?;
            }
            if n < count {
                self.request(request, values)?;
            }
        }
        Ok(())
    }
}
