//! The C library: its functions, loaded once per process.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

/// Name of the library. Its major version is part of the name and has been 2 since MIT Kerberos 1.0.
pub const LIBRARY: &str = "libgssapi_krb5.so.2";

/// The library cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("cannot load {LIBRARY}: {cause}")]
pub struct LibraryMissing {
    /// The loader's text.
    pub cause: String,
}

/// Loads the library, if it is not loaded yet.
///
/// # Errors
/// The host has no library of that name, or it lacks a function.
pub fn load() -> Result<(), LibraryMissing> {
    library().map(|_| ())
}

/// `gss_buffer_desc`.
#[repr(C)]
pub(crate) struct GssBuffer {
    pub(crate) length: usize,
    pub(crate) value: *mut c_void,
}

/// `gss_OID_desc`.
#[repr(C)]
pub(crate) struct OidRef {
    length: u32,
    elements: *const u8,
}

// SAFETY: the value points to static bytes that are never written.
#[expect(unsafe_code, reason = "an object identifier is a pointer to constants")]
unsafe impl Sync for OidRef {}

/// 1.2.840.113554.1.2.2, the mechanism Kerberos 5 (RFC 4121).
static KERBEROS: OidRef =
    OidRef { length: 9, elements: b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02".as_ptr() };
/// 1.2.840.113554.1.2.2.1, the name type of a Kerberos principal. The library takes it literally, without DNS.
static PRINCIPAL: OidRef =
    OidRef { length: 10, elements: b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02\x01".as_ptr() };

impl OidRef {
    pub(crate) fn kerberos() -> *const Self {
        &raw const KERBEROS
    }

    pub(crate) fn principal() -> *const Self {
        &raw const PRINCIPAL
    }
}

/// `gss_OID_set_desc`.
#[repr(C)]
pub(crate) struct OidSet {
    pub(crate) count: usize,
    pub(crate) elements: *const OidRef,
}

/// `gss_key_value_element_desc`.
#[repr(C)]
pub(crate) struct StoreEntry {
    pub(crate) key: *const c_char,
    pub(crate) value: *const c_char,
}

/// `gss_key_value_set_desc`.
#[repr(C)]
pub(crate) struct StoreEntries {
    pub(crate) count: u32,
    pub(crate) elements: *const StoreEntry,
}

/// `gss_name_t`, `gss_cred_id_t`, `gss_ctx_id_t`: pointers to types of the library.
pub(crate) type Opaque = *mut c_void;

type ReleaseFn = unsafe extern "C" fn(*mut u32, *mut Opaque) -> u32;

/// Functions of RFC 2744 and of MIT's `gssapi_ext.h`.
pub(crate) struct Library {
    pub(crate) display_status:
        unsafe extern "C" fn(*mut u32, u32, c_int, *const OidRef, *mut u32, *mut GssBuffer) -> u32,
    release_buffer: unsafe extern "C" fn(*mut u32, *mut GssBuffer) -> u32,
    pub(crate) import_name:
        unsafe extern "C" fn(*mut u32, *const GssBuffer, *const OidRef, *mut Opaque) -> u32,
    pub(crate) display_name:
        unsafe extern "C" fn(*mut u32, Opaque, *mut GssBuffer, *mut *const OidRef) -> u32,
    pub(crate) release_name: ReleaseFn,
    pub(crate) acquire_cred_from: unsafe extern "C" fn(
        *mut u32,
        Opaque,
        u32,
        *const OidSet,
        c_int,
        *const StoreEntries,
        *mut Opaque,
        *mut Opaque,
        *mut u32,
    ) -> u32,
    pub(crate) inquire_cred: unsafe extern "C" fn(
        *mut u32,
        Opaque,
        *mut Opaque,
        *mut u32,
        *mut c_int,
        *mut Opaque,
    ) -> u32,
    pub(crate) release_cred: ReleaseFn,
    pub(crate) init_sec_context: unsafe extern "C" fn(
        *mut u32,
        Opaque,
        *mut Opaque,
        Opaque,
        *const OidRef,
        u32,
        u32,
        *const c_void,
        *const GssBuffer,
        *mut *const OidRef,
        *mut GssBuffer,
        *mut u32,
        *mut u32,
    ) -> u32,
    pub(crate) delete_sec_context:
        unsafe extern "C" fn(*mut u32, *mut Opaque, *mut GssBuffer) -> u32,
    pub(crate) wrap: unsafe extern "C" fn(
        *mut u32,
        Opaque,
        c_int,
        u32,
        *const GssBuffer,
        *mut c_int,
        *mut GssBuffer,
    ) -> u32,
    pub(crate) unwrap: unsafe extern "C" fn(
        *mut u32,
        Opaque,
        *const GssBuffer,
        *mut GssBuffer,
        *mut c_int,
        *mut u32,
    ) -> u32,
    pub(crate) wrap_size_limit:
        unsafe extern "C" fn(*mut u32, Opaque, c_int, u32, u32, *mut u32) -> u32,
    /// Keeps the functions loaded. The value is a static and is never dropped.
    _loaded: libloading::Library,
}

/// The library, loaded by the first call.
pub(crate) fn library() -> Result<&'static Library, LibraryMissing> {
    static LOADED: OnceLock<Result<Library, LibraryMissing>> = OnceLock::new();
    LOADED.get_or_init(Library::load).as_ref().map_err(Clone::clone)
}

/// The text of a loader's error.
pub(crate) fn missing(error: &libloading::Error) -> LibraryMissing {
    let cause =
        std::error::Error::source(error).map_or_else(|| error.to_string(), |s| s.to_string());
    LibraryMissing { cause }
}

impl Library {
    #[expect(unsafe_code, reason = "loads the C library")]
    fn load() -> Result<Self, LibraryMissing> {
        let wrong = |error: libloading::Error| missing(&error);
        // SAFETY: the initialisers of MIT's library have no preconditions. A file of this name in the loader's path has the
        // privileges of this program anyway.
        let loaded = unsafe { libloading::Library::new(LIBRARY) }.map_err(wrong)?;
        // SAFETY: each type is the prototype of the function in `gssapi.h` and `gssapi_ext.h` on Linux, where `OM_uint32`
        // is 32 bits and `size_t` is the pointer's size. The functions stay loaded as long as this value, see `_loaded`.
        unsafe {
            Ok(Self {
                display_status: *loaded.get(b"gss_display_status").map_err(wrong)?,
                release_buffer: *loaded.get(b"gss_release_buffer").map_err(wrong)?,
                import_name: *loaded.get(b"gss_import_name").map_err(wrong)?,
                display_name: *loaded.get(b"gss_display_name").map_err(wrong)?,
                release_name: *loaded.get(b"gss_release_name").map_err(wrong)?,
                acquire_cred_from: *loaded.get(b"gss_acquire_cred_from").map_err(wrong)?,
                inquire_cred: *loaded.get(b"gss_inquire_cred").map_err(wrong)?,
                release_cred: *loaded.get(b"gss_release_cred").map_err(wrong)?,
                init_sec_context: *loaded.get(b"gss_init_sec_context").map_err(wrong)?,
                delete_sec_context: *loaded.get(b"gss_delete_sec_context").map_err(wrong)?,
                wrap: *loaded.get(b"gss_wrap").map_err(wrong)?,
                unwrap: *loaded.get(b"gss_unwrap").map_err(wrong)?,
                wrap_size_limit: *loaded.get(b"gss_wrap_size_limit").map_err(wrong)?,
                _loaded: loaded,
            })
        }
    }

    /// Copies a buffer that the library allocated, and frees it.
    #[expect(unsafe_code, reason = "reads and frees memory of the C library")]
    pub(crate) fn take(&self, mut buffer: GssBuffer) -> Vec<u8> {
        if buffer.value.is_null() {
            return Vec::new();
        }
        // SAFETY: the library returned a pointer to `length` initialised bytes, which stay valid until the release below.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.value.cast::<u8>(), buffer.length) }
            .to_vec();
        let mut minor = 0;
        // SAFETY: the buffer comes from the library and is released once: this method takes it by value, and only results
        // of calls are passed to it.
        unsafe { (self.release_buffer)(&raw mut minor, &raw mut buffer) };
        bytes
    }
}

impl GssBuffer {
    /// No bytes; the library fills it.
    pub(crate) fn empty() -> Self {
        Self { length: 0, value: ptr::null_mut() }
    }

    /// A view of `bytes`, which the library only reads.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast() }
    }
}
