//! Defaults of krb5.conf: the realm, and the ticket cache that Kerberos' tools use where `KRB5CCNAME` is not set.
//!
//! The library's own default reads `KRB5CCNAME` again, and a process may have replaced it to hide its tickets from other
//! libraries. So the value of krb5.conf is read, by the library's parser. Source: MIT `ccdefname.c`, `expand_path.c`.

use std::ffi::{CStr, CString, c_char, c_long, c_void};
use std::ptr;

use crate::library::{LibraryMissing, missing};

const KRB5: &str = "libkrb5.so.3";
/// Built-in value of most distributions.
const BUILT_IN: &str = "FILE:/tmp/krb5cc_%{uid}";

/// `default_ccache_name` of krb5.conf, else `FILE:/tmp/krb5cc_<user id>`.
///
/// # Errors
/// The library is missing. A malformed krb5.conf yields the built-in value: the login reports it.
pub fn default_cache_name(user_id: u32) -> Result<String, LibraryMissing> {
    let found = libdefaults("default_ccache_name")?;
    Ok(expanded(found.as_deref().unwrap_or(BUILT_IN), user_id))
}

/// `default_realm` of krb5.conf; `None` if it is not set or the file is malformed.
///
/// # Errors
/// The library is missing.
pub fn default_realm() -> Result<Option<String>, LibraryMissing> {
    libdefaults("default_realm")
}

/// A value of the section `[libdefaults]`.
#[expect(unsafe_code, reason = "calls the C library")]
fn libdefaults(key: &str) -> Result<Option<String>, LibraryMissing> {
    type InitFn = unsafe extern "C" fn(*mut *mut c_void) -> i32;
    type ProfileFn = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> i32;
    type GetFn = unsafe extern "C" fn(
        *mut c_void,
        *const c_char,
        *const c_char,
        *const c_char,
        *const c_char,
        *mut *mut c_char,
    ) -> c_long;
    type FreeTextFn = unsafe extern "C" fn(*mut c_char);
    type ReleaseFn = unsafe extern "C" fn(*mut c_void);

    let wrong = |error: libloading::Error| missing(&error);
    let (section, key) = (text("libdefaults"), text(key));
    // SAFETY: the types are the prototypes in `krb5.h` and `profile.h`. Each pointer is used only after the call that makes
    // it succeeded, and is freed once by the matching function. `loaded` outlives all calls.
    unsafe {
        let loaded = libloading::Library::new(KRB5).map_err(wrong)?;
        let init = loaded.get::<InitFn>(b"krb5_init_context").map_err(wrong)?;
        let profile_of = loaded.get::<ProfileFn>(b"krb5_get_profile").map_err(wrong)?;
        let get = loaded.get::<GetFn>(b"profile_get_string").map_err(wrong)?;
        let free_text = loaded.get::<FreeTextFn>(b"profile_release_string").map_err(wrong)?;
        let release = loaded.get::<ReleaseFn>(b"profile_release").map_err(wrong)?;
        let free_context = loaded.get::<ReleaseFn>(b"krb5_free_context").map_err(wrong)?;
        let mut found = None;
        let (mut context, mut profile) = (ptr::null_mut(), ptr::null_mut());
        if init(&raw mut context) == 0 {
            if profile_of(context, &raw mut profile) == 0 {
                let mut value = ptr::null_mut();
                let failed = get(
                    profile,
                    section.as_ptr(),
                    key.as_ptr(),
                    ptr::null(),
                    ptr::null(),
                    &raw mut value,
                );
                if failed == 0 && !value.is_null() {
                    found = Some(CStr::from_ptr(value).to_string_lossy().into_owned());
                    free_text(value);
                }
                release(profile);
            }
            free_context(context);
        }
        Ok(found)
    }
}

fn text(constant: &str) -> CString {
    CString::new(constant).expect("the constant has no zero byte")
}

/// Replaces the tokens of Unix (`expand_path.c`).
fn expanded(name: &str, user_id: u32) -> String {
    let id = user_id.to_string();
    ["%{uid}", "%{euid}", "%{USERID}"]
        .iter()
        .fold(name.to_owned(), |name, token| name.replace(token, &id))
        .replace("%{TEMP}", "/tmp")
        .replace("%{null}", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_the_name_are_replaced() {
        assert_eq!(expanded(BUILT_IN, 7), "FILE:/tmp/krb5cc_7");
        assert_eq!(expanded("KEYRING:persistent:%{uid}", 7), "KEYRING:persistent:7");
        assert_eq!(expanded("KCM:", 7), "KCM:");
    }
}
