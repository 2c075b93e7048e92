//! Tickets: what a client authenticates with.

use std::ffi::{CString, NulError};
use std::path::Path;
use std::ptr;
use std::time::Duration;

use crate::LibraryMissing;
use crate::error::GssError;
use crate::handles::{Name, is_error};
use crate::library::{Library, OidRef, OidSet, Opaque, StoreEntries, StoreEntry, library};

/// `GSS_C_INITIATE`.
const INITIATE: i32 = 1;
/// `GSS_C_INDEFINITE`: as long as possible.
const INDEFINITE: u32 = u32::MAX;

/// Why tickets cannot be had.
type TicketResult<T> = Result<T, TicketFailure>;

/// The library is missing, or its call failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TicketFailure {
    /// The library cannot be loaded.
    #[error(transparent)]
    Library(#[from] LibraryMissing),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] GssError),
    /// A path or name contains a zero byte.
    #[error("a name contains a zero byte")]
    ZeroByte,
}

impl From<NulError> for TicketFailure {
    fn from(_: NulError) -> Self {
        Self::ZeroByte
    }
}

/// The owner of tickets and their remaining time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketState {
    /// The principal, with realm.
    pub principal: String,
    /// Time until the ticket ends; zero for an ended one.
    pub left: Duration,
}

/// A handle on the tickets of a cache. It sees the cache's state when it was made: make a new one for each login.
#[derive(Debug)]
pub struct TicketHandle {
    library: &'static Library,
    handle: Opaque,
}

// SAFETY: MIT's library may be called by any thread, and locks what a handle refers to. The handle has no thread-local
// state.
#[expect(unsafe_code, reason = "a handle of the C library is a pointer")]
unsafe impl Send for TicketHandle {}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Library")
    }
}

impl TicketHandle {
    /// The tickets of a cache, such as `FILE:/tmp/krb5cc_0`.
    ///
    /// The name is always given to the library: with its default, a corrupt cache crashes the process.
    ///
    /// # Errors
    /// The cache has no tickets, or the library fails.
    pub fn of_cache(cache: &str) -> TicketResult<Self> {
        Self::acquire(None, &[("ccache", CString::new(cache)?)])
    }

    /// Tickets by the key of `principal` in a keytab, kept in the cache `memory`, a name such as `MEMORY:x`. The library
    /// asks the Key Distribution Center when it needs to.
    ///
    /// # Errors
    /// The keytab lacks the principal, or the library fails.
    pub fn of_keytab(keytab: &Path, principal: &str, memory: &str) -> TicketResult<Self> {
        let path = std::os::unix::ffi::OsStrExt::as_bytes(keytab.as_os_str());
        let entries = [("client_keytab", CString::new(path)?), ("ccache", CString::new(memory)?)];
        Self::acquire(Some(principal), &entries)
    }

    #[expect(unsafe_code, reason = "calls the C library")]
    fn acquire(principal: Option<&str>, entries: &[(&str, CString)]) -> TicketResult<Self> {
        let library = library()?;
        let name = principal.map(|text| Name::principal(library, text)).transpose()?;
        let keys =
            entries.iter().map(|(key, _)| CString::new(*key)).collect::<Result<Vec<_>, _>>()?;
        let elements: Vec<StoreEntry> = keys
            .iter()
            .zip(entries)
            .map(|(key, (_, value))| StoreEntry { key: key.as_ptr(), value: value.as_ptr() })
            .collect();
        let count = u32::try_from(elements.len()).unwrap_or(0);
        let store = StoreEntries { count, elements: elements.as_ptr() };
        let mechanisms = OidSet { count: 1, elements: OidRef::kerberos() };
        let (mut minor, mut handle) = (0, ptr::null_mut());
        // SAFETY: name, store and mechanisms point to locals that outlive the call. The results that are not requested may
        // be null (RFC 2744 §5.2).
        let major = unsafe {
            (library.acquire_cred_from)(
                &raw mut minor,
                name.as_ref().map_or(ptr::null_mut(), Name::handle),
                INDEFINITE,
                &raw const mechanisms,
                INITIATE,
                &raw const store,
                &raw mut handle,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        if is_error(major) {
            return Err(GssError::new(library, "gss_acquire_cred", major, minor).into());
        }
        Ok(Self { library, handle })
    }

    /// Owner and remaining time. With a keytab it may ask the Key Distribution Center.
    ///
    /// # Errors
    /// The library fails; an ended ticket has the major code [`TicketHandle::ENDED`].
    #[expect(unsafe_code, reason = "calls the C library")]
    pub fn state(&self) -> Result<TicketState, GssError> {
        let (mut minor, mut name, mut left) = (0, ptr::null_mut(), 0_u32);
        // SAFETY: the handle is live, as this value owns it; usage and mechanisms are not requested (null is allowed).
        let major = unsafe {
            (self.library.inquire_cred)(
                &raw mut minor,
                self.handle,
                &raw mut name,
                &raw mut left,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        let name = Name::own(self.library, name);
        if is_error(major) {
            return Err(GssError::new(self.library, "gss_inquire_cred", major, minor));
        }
        Ok(TicketState { principal: name.text()?, left: Duration::from_secs(u64::from(left)) })
    }

    /// Major code of an ended ticket (`GSS_S_CREDENTIALS_EXPIRED`).
    pub const ENDED: u32 = 11 << 16;

    pub(crate) fn handle(&self) -> Opaque {
        self.handle
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.library
    }
}

impl Drop for TicketHandle {
    #[expect(unsafe_code, reason = "calls the C library")]
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: this value alone owns the handle, and it is not used after this.
        unsafe { (self.library.release_cred)(&raw mut minor, &raw mut self.handle) };
    }
}
