//! Applications for tests.

use heddle_yarn::{ApplicationReport, proto};

/// The application `application_1_<number>` in that state, as the ResourceManager reports it.
pub fn report(number: i32, state: proto::YarnApplicationStateProto) -> ApplicationReport {
    let message = proto::ApplicationReportProto {
        application_id: Some(proto::ApplicationIdProto {
            id: Some(number),
            cluster_timestamp: Some(1),
        }),
        yarn_application_state: Some(state.into()),
        ..Default::default()
    };
    ApplicationReport::try_from(&message).expect("it has an id")
}
