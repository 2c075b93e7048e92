//! The built-in engine: MIT's library through `heddle-gssapi`.

use std::sync::{Mutex, PoisonError};

use heddle_gssapi::{GssError, SecurityContext, TicketFailure, TicketHandle, default_cache_name};

use super::engine::{ContextReply, KerberosContext, KerberosEngine, TicketOwner, TicketSource};
use super::error::KerberosError;
use super::krb5_conf::{MalformedLine, malformed_line};
use super::{cache, keytab};

/// The engine over `libgssapi_krb5.so.2`, which is loaded at the first login.
#[derive(Clone, Copy, Debug, Default)]
pub struct GssapiEngine;

/// Logins from keytabs, one at a time: with an empty memory cache, each concurrent one would ask the Key Distribution
/// Center for the same tickets. The number is a part of the cache's name: after an ended ticket another cache is used. The
/// library keeps an ended ticket for up to 30 s after it could not renew it, and does not report why it could not.
static KEYTAB_LOGIN: Mutex<u64> = Mutex::new(0);

/// `KRB5_CC_NOTFOUND`, `KRB5_FCC_NOFILE`: no cache, or no ticket in it. The library reports the latter as
/// `KG_EMPTY_CCACHE` too, which is a number of another table.
const NOT_FOUND: [i32; 2] = [KerberosError::code_of(141), KerberosError::code_of(195)];
/// `KRB5KRB_AP_ERR_TKT_EXPIRED`.
const EXPIRED: i32 = KerberosError::code_of(32);
/// `KRB5_CONFIG_BADFORMAT`.
const BAD_FORMAT: i32 = KerberosError::code_of(136);
/// `GSS_S_NO_CRED`.
const NO_TICKET: u32 = 7 << 16;

impl KerberosEngine for GssapiEngine {
    fn owner(&self, source: &TicketSource) -> Result<TicketOwner, KerberosError> {
        match source {
            TicketSource::Keytab { path, principal } => {
                let principal = keytab::principal(path, principal.as_deref())?;
                Ok(TicketOwner { principal, left: None })
            }
            TicketSource::Cache(name) => {
                let name = cache_name(name.as_deref())?;
                let (_, owner) = open_cache(&name)?;
                Ok(owner)
            }
        }
    }

    fn start(
        &self,
        source: &TicketSource,
        server: &str,
    ) -> Result<(Box<dyn KerberosContext>, Vec<u8>), KerberosError> {
        let begin = |tickets: TicketHandle| {
            let failed = |error: &GssError| refused(error, Some(server));
            let mut context = SecurityContext::new(tickets, server).map_err(|e| failed(&e))?;
            let first = context.step(&[]).map_err(|e| failed(&e))?.output;
            let context: Box<dyn KerberosContext> = Box::new(GssapiContext(context));
            Ok((context, first))
        };
        match source {
            TicketSource::Keytab { path, principal } => {
                let principal = keytab::principal(path, principal.as_deref())?;
                // One cache for each keytab and principal. A handle on it renews the ticket when half of its life is over.
                let mut number = KEYTAB_LOGIN.lock().unwrap_or_else(PoisonError::into_inner);
                let memory =
                    format!("MEMORY:heddle-hadoop:{}:{principal}:{number}", path.display());
                let begun = TicketHandle::of_keytab(path, &principal, &memory)
                    .map_err(|error| failed_ticket(error, &memory))
                    .and_then(begin);
                if begun.as_ref().is_err_and(has_ended) {
                    *number += 1;
                }
                begun
            }
            TicketSource::Cache(name) => {
                let name = cache_name(name.as_deref())?;
                let (tickets, owner) = open_cache(&name)?;
                if owner.left.is_some_and(|left| left.is_zero()) {
                    return Err(cache::ended(name));
                }
                begin(tickets)
            }
        }
    }
}

/// Whether the ticket has ended.
fn has_ended(error: &KerberosError) -> bool {
    match error {
        KerberosError::Refused { code, .. } => *code == EXPIRED,
        other => matches!(other, KerberosError::TicketEnded { .. }),
    }
}

fn cache_name(name: Option<&str>) -> Result<String, KerberosError> {
    match name {
        Some(name) => Ok(name.to_owned()),
        None => default_cache_name(nix::unistd::getuid().as_raw())
            .map_err(|missing| KerberosError::Library { cause: missing.to_string() }),
    }
}

fn open_cache(name: &str) -> Result<(TicketHandle, TicketOwner), KerberosError> {
    cache::check(name)?;
    let tickets = TicketHandle::of_cache(name).map_err(|error| failed_ticket(error, name))?;
    let state = tickets.state().map_err(|error| failed_ticket(error.into(), name))?;
    Ok((tickets, TicketOwner { principal: state.principal, left: Some(state.left) }))
}

fn failed_ticket(failure: TicketFailure, cache: &str) -> KerberosError {
    match failure {
        TicketFailure::Library(missing) => KerberosError::Library { cause: missing.to_string() },
        TicketFailure::Call(error)
            if NOT_FOUND.contains(&error.minor)
                || (error.major == NO_TICKET
                    && error.minor != EXPIRED
                    && !is_kerberos(error.minor)) =>
        {
            KerberosError::NoTicket { cache: cache.to_owned() }
        }
        TicketFailure::Call(error) if error.major == TicketHandle::ENDED => {
            cache::ended(cache.to_owned())
        }
        TicketFailure::Call(error) => refused(&error, None),
        TicketFailure::ZeroByte => {
            KerberosError::Refused { code: 0, text: failure.to_string(), server: None }
        }
    }
}

/// Whether a code is of Kerberos' own table.
fn is_kerberos(code: i32) -> bool {
    (0..256).contains(&code.wrapping_sub(KerberosError::code_of(0)))
}

fn refused(error: &GssError, server: Option<&str>) -> KerberosError {
    if error.minor == BAD_FORMAT
        && let Some(MalformedLine { path, line, fault }) = malformed_line()
    {
        return KerberosError::MalformedConfiguration { path, line, fault };
    }
    KerberosError::Refused {
        code: error.minor,
        text: error.to_string(),
        server: server.map(str::to_owned),
    }
}

#[derive(Debug)]
struct GssapiContext(SecurityContext);

impl KerberosContext for GssapiContext {
    fn step(&mut self, input: &[u8]) -> Result<ContextReply, KerberosError> {
        let step = self.0.step(input).map_err(|error| refused(&error, None))?;
        Ok(ContextReply { output: step.output, is_complete: step.is_complete })
    }

    fn wrap(&mut self, encrypt: bool, message: &[u8]) -> Result<Vec<u8>, KerberosError> {
        self.0.wrap(encrypt, message).map_err(|error| refused(&error, None))
    }

    fn unwrap(&mut self, encrypted: bool, token: &[u8]) -> Result<Vec<u8>, KerberosError> {
        self.0.unwrap(encrypted, token).map_err(|error| refused(&error, None))
    }

    fn message_max(&mut self, encrypt: bool, token_max: u32) -> Result<usize, KerberosError> {
        let max = self.0.message_max(encrypt, token_max).map_err(|error| refused(&error, None))?;
        Ok(usize::try_from(max).unwrap_or(usize::MAX))
    }
}
