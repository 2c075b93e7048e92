//! The authentication to one server, and the protection of messages after it.

use std::ptr;

use crate::error::GssError;
use crate::handles::{Name, is_error};
use crate::library::{GssBuffer, Library, OidRef, Opaque};
use crate::ticket::TicketHandle;

/// Mutual authentication, replay and order detection, confidentiality, integrity. Never delegation: the server would
/// receive a ticket that acts as the user everywhere.
const FLAGS: u32 = MUTUAL | 4 | 8 | CONFIDENTIAL | INTEGRITY;
const MUTUAL: u32 = 2;
const CONFIDENTIAL: u32 = 16;
const INTEGRITY: u32 = 32;
/// `GSS_S_CONTINUE_NEEDED`.
const CONTINUE: u32 = 1;
/// Duplicate, old, out of order, gap (RFC 2744 §3.9.1).
const OUT_OF_ORDER: u32 = 2 | 4 | 8 | 16;

/// The result of one step.
#[derive(Debug, PartialEq, Eq)]
pub struct ContextStep {
    /// Bytes for the server; may be empty.
    pub output: Vec<u8>,
    /// Whether both sides are authenticated.
    pub is_complete: bool,
}

/// The security context with one server, as initiator.
pub struct SecurityContext {
    library: &'static Library,
    handle: Opaque,
    tickets: TicketHandle,
    target: Name,
}

// SAFETY: MIT's library may be called by any thread. A context may not be used by two at once, which `&mut self` of all
// methods excludes.
#[expect(unsafe_code, reason = "a context of the C library is a pointer")]
unsafe impl Send for SecurityContext {}

impl std::fmt::Debug for SecurityContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecurityContext").finish_non_exhaustive()
    }
}

impl SecurityContext {
    /// A context with the server of this principal, such as `nn/host@REALM`.
    ///
    /// # Errors
    /// The name is not a principal.
    pub fn new(tickets: TicketHandle, target: &str) -> Result<Self, GssError> {
        let library = tickets.library();
        let target = Name::principal(library, target)?;
        Ok(Self { library, handle: ptr::null_mut(), tickets, target })
    }

    /// Takes the server's bytes, none for the first step, and makes the next ones. The first step may ask the Key
    /// Distribution Center.
    ///
    /// # Errors
    /// The library fails, or the complete context lacks mutual authentication or protection.
    #[expect(unsafe_code, reason = "calls the C library")]
    pub fn step(&mut self, input: &[u8]) -> Result<ContextStep, GssError> {
        let (mut minor, mut flags, mut output) = (0, 0_u32, GssBuffer::empty());
        let input = GssBuffer::of(input);
        // SAFETY: tickets and target are live, as this value owns them. The context is null at the first step, and later
        // what the library stored there. The input is a view that outlives the call; a zero length is allowed. Results
        // that are not requested may be null (RFC 2744 §5.19).
        let major = unsafe {
            (self.library.init_sec_context)(
                &raw mut minor,
                self.tickets.handle(),
                &raw mut self.handle,
                self.target.handle(),
                OidRef::kerberos(),
                FLAGS,
                0,
                ptr::null(),
                &raw const input,
                ptr::null_mut(),
                &raw mut output,
                &raw mut flags,
                ptr::null_mut(),
            )
        };
        let output = self.library.take(output);
        if is_error(major) {
            return Err(GssError::new(self.library, "gss_init_sec_context", major, minor));
        }
        let is_complete = major & CONTINUE == 0;
        let required = MUTUAL | CONFIDENTIAL | INTEGRITY;
        if is_complete && flags & required != required {
            let text = "the server did not authenticate itself, or does not support protection";
            return Err(GssError::own("gss_init_sec_context", text));
        }
        Ok(ContextStep { output, is_complete })
    }

    /// Protects a message: with a checksum, and encrypted if `encrypt`.
    ///
    /// # Errors
    /// The context is not complete, or the library fails.
    #[expect(unsafe_code, reason = "calls the C library")]
    pub fn wrap(&mut self, encrypt: bool, message: &[u8]) -> Result<Vec<u8>, GssError> {
        let (mut minor, mut is_encrypted, mut output) = (0, 0, GssBuffer::empty());
        let message = GssBuffer::of(message);
        // SAFETY: the context is live or null, which the library refuses; the message is a view that outlives the call.
        let major = unsafe {
            (self.library.wrap)(
                &raw mut minor,
                self.handle,
                i32::from(encrypt),
                0,
                &raw const message,
                &raw mut is_encrypted,
                &raw mut output,
            )
        };
        let output = self.library.take(output);
        if is_error(major) {
            return Err(GssError::new(self.library, "gss_wrap", major, minor));
        }
        if encrypt && is_encrypted == 0 {
            return Err(GssError::own("gss_wrap", "the library did not encrypt a message"));
        }
        Ok(output)
    }

    /// Checks and opens the peer's next message; with `encrypted` it must be encrypted.
    ///
    /// # Errors
    /// The message was changed, repeated or is out of order, or lacks encryption.
    #[expect(unsafe_code, reason = "calls the C library")]
    pub fn unwrap(&mut self, encrypted: bool, token: &[u8]) -> Result<Vec<u8>, GssError> {
        let (mut minor, mut is_encrypted, mut output) = (0, 0, GssBuffer::empty());
        let token = GssBuffer::of(token);
        // SAFETY: the context is live or null, which the library refuses; the token is a view that outlives the call. The
        // quality of protection is not requested (null is allowed).
        let major = unsafe {
            (self.library.unwrap)(
                &raw mut minor,
                self.handle,
                &raw const token,
                &raw mut output,
                &raw mut is_encrypted,
                ptr::null_mut(),
            )
        };
        let output = self.library.take(output);
        if is_error(major) {
            return Err(GssError::new(self.library, "gss_unwrap", major, minor));
        }
        if major & OUT_OF_ORDER != 0 {
            return Err(GssError::own("gss_unwrap", "a message is repeated or out of order"));
        }
        if encrypted && is_encrypted == 0 {
            return Err(GssError::own("gss_unwrap", "a message is not encrypted"));
        }
        Ok(output)
    }

    /// Longest message in bytes whose protected form has at most `token_max` bytes.
    ///
    /// # Errors
    /// The context is not complete, or the library fails.
    #[expect(unsafe_code, reason = "calls the C library")]
    pub fn message_max(&mut self, encrypt: bool, token_max: u32) -> Result<u32, GssError> {
        let (mut minor, mut size) = (0, 0_u32);
        // SAFETY: the context is live or null, which the library refuses; the other pointers are to locals.
        let major = unsafe {
            (self.library.wrap_size_limit)(
                &raw mut minor,
                self.handle,
                i32::from(encrypt),
                0,
                token_max,
                &raw mut size,
            )
        };
        if is_error(major) {
            return Err(GssError::new(self.library, "gss_wrap_size_limit", major, minor));
        }
        Ok(size)
    }
}

impl Drop for SecurityContext {
    #[expect(unsafe_code, reason = "calls the C library")]
    fn drop(&mut self) {
        let mut minor = 0;
        if !self.handle.is_null() {
            // SAFETY: this value alone owns the context, and it is not used after this. No token is requested.
            unsafe {
                (self.library.delete_sec_context)(
                    &raw mut minor,
                    &raw mut self.handle,
                    ptr::null_mut(),
                )
            };
        }
    }
}
