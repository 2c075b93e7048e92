//! Owned pointers to the library's names, tickets and contexts: each is released once.

use std::ptr;

use crate::error::GssError;
use crate::library::{GssBuffer, Library, OidRef, Opaque};

/// Whether a major status is a failure. The lower 16 bits are information, such as "continue needed".
pub(crate) fn is_error(major: u32) -> bool {
    major >> 16 != 0
}

/// A name of the library.
pub(crate) struct Name {
    library: &'static Library,
    handle: Opaque,
}

impl Name {
    /// A Kerberos principal, taken literally. Without realm it is one of the default realm.
    #[expect(unsafe_code, reason = "calls the C library")]
    pub(crate) fn principal(library: &'static Library, text: &str) -> Result<Self, GssError> {
        let (mut minor, mut handle) = (0, ptr::null_mut());
        let buffer = GssBuffer::of(text.as_bytes());
        // SAFETY: the buffer is a view of `text`, which outlives the call; the other pointers are to locals and a static.
        let major = unsafe {
            (library.import_name)(
                &raw mut minor,
                &raw const buffer,
                OidRef::principal(),
                &raw mut handle,
            )
        };
        if is_error(major) {
            return Err(GssError::new(library, "gss_import_name", major, minor));
        }
        Ok(Self { library, handle })
    }

    /// Takes ownership of a handle that the library returned.
    pub(crate) fn own(library: &'static Library, handle: Opaque) -> Self {
        Self { library, handle }
    }

    /// The handle, for calls during this value's life.
    pub(crate) fn handle(&self) -> Opaque {
        self.handle
    }

    /// The name as text.
    #[expect(unsafe_code, reason = "calls the C library")]
    pub(crate) fn text(&self) -> Result<String, GssError> {
        let (mut minor, mut buffer) = (0, GssBuffer::empty());
        // SAFETY: the handle is a live name, as this value owns it; the type is not requested (null is allowed).
        let major = unsafe {
            (self.library.display_name)(
                &raw mut minor,
                self.handle,
                &raw mut buffer,
                ptr::null_mut(),
            )
        };
        if is_error(major) {
            return Err(GssError::new(self.library, "gss_display_name", major, minor));
        }
        Ok(String::from_utf8_lossy(&self.library.take(buffer)).into_owned())
    }
}

impl Drop for Name {
    #[expect(unsafe_code, reason = "calls the C library")]
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the handle is a name, or null, that nothing else owns; it is not used after this.
        unsafe { (self.library.release_name)(&raw mut minor, &raw mut self.handle) };
    }
}
