//! A login by Kerberos, and its first step before the connection.
//!
//! The ticket for the server is requested before the server is dialled: its principal is that of the configuration, and
//! the blocking call is out of the connection's way.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::engine::{KerberosContext, KerberosEngine, TicketSource};
use super::error::KerberosError;
use super::server_principal::ServerPrincipal;
use crate::address::HostPort;

/// Tickets, and the principal of the server that they are for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KerberosLogin {
    /// Where the tickets come from.
    pub source: TicketSource,
    /// The server's principal.
    pub server: ServerPrincipal,
}

/// A started context with the bytes that open it.
#[derive(Debug)]
pub struct KerberosTicket {
    /// The context.
    pub context: Box<dyn KerberosContext>,
    /// Its first bytes.
    pub first: Vec<u8>,
    /// The principal of the server.
    pub server: String,
}

/// Longest wait for the Key Distribution Center. The library would wait up to half a minute for each.
const WAIT: Duration = Duration::from_secs(10);

/// Requests a ticket for the server at `address` and starts the context with it.
///
/// The call runs on a thread of its own, which the end of the process does not wait for.
///
/// # Errors
/// See [`KerberosError`].
pub async fn prepare(
    engine: Arc<dyn KerberosEngine>,
    login: &KerberosLogin,
    address: &HostPort,
) -> Result<KerberosTicket, KerberosError> {
    let Some(server) = login.server.at(address) else {
        let key = login.server.key;
        return Err(KerberosError::NoServerPrincipal { key, server: address.to_string() });
    };
    prepare_for(engine, login, server).await
}

/// Prepares a login to a server whose principal is known; see [`prepare`].
pub(crate) async fn prepare_for(
    engine: Arc<dyn KerberosEngine>,
    login: &KerberosLogin,
    server: String,
) -> Result<KerberosTicket, KerberosError> {
    let (done, result) = oneshot::channel();
    let (source, target) = (login.source.clone(), server.clone());
    let thread = std::thread::Builder::new().name("kerberos".to_owned());
    let spawned = thread.spawn(move || {
        // The caller may have stopped waiting.
        let _ = done.send(engine.start(&source, &target));
    });
    if let Err(error) = spawned {
        let text = format!("cannot start a thread: {error}");
        return Err(KerberosError::Refused { code: 0, text, server: Some(server) });
    }
    match tokio::time::timeout(WAIT, result).await {
        Ok(Ok(started)) => {
            let (context, first) = started?;
            Ok(KerberosTicket { context, first, server })
        }
        // The thread panicked: another engine's defect.
        Ok(Err(_)) => {
            let text = "the Kerberos engine ended without a result".to_owned();
            Err(KerberosError::Refused { code: 0, text, server: Some(server) })
        }
        Err(_) => Err(KerberosError::Silent { waited: WAIT }),
    }
}
