//! The control port of the ApplicationMaster.

use std::net::{IpAddr, SocketAddr};

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::JobSpec;
use heddle_telemetry::descriptors::{Limit, TooFew};
use tokio::net::TcpListener;

use super::start_failure::StartFailure;
use crate::api;

/// Whether an ApplicationMaster with this limit of open files can hold a connection of every container.
///
/// # Errors
/// It cannot.
pub fn check_files(spec: &JobSpec, limit: Limit) -> Result<(), TooFew> {
    let containers = u64::from(spec.pservers.slots()) + u64::from(spec.trainers.slots());
    limit.check(&format!("the ApplicationMaster of {containers} containers"), containers)
}

/// Binds the control port on `host`, to one of the job's ports.
pub(super) async fn bind(
    host: IpAddr,
    spec: &JobSpec,
) -> Result<(TcpListener, SocketAddr), StartFailure> {
    check_files(spec, Limit::now())
        .map_err(|error| StartFailure::new(ExitCode::Input, error.to_string()))?;
    let ports: Vec<u16> = spec.network.ports.map_or_else(Vec::new, |range| range.ports().collect());
    let listener = api::bind(host, &ports).await.map_err(|error| {
        StartFailure::new(
            ExitCode::Input,
            format!("cannot listen on any port of network.ports: {error}"),
        )
    })?;
    let address = listener.local_addr().map_err(|error| {
        StartFailure::new(
            ExitCode::Internal,
            format!("cannot determine the address of the listening port: {error}"),
        )
    })?;
    Ok((listener, address))
}
