//! The JSON of the large messages, compiled once.
//!
//! serde's code of a type is generic over the format: each crate that reads or writes a message would compile the code of all types in
//! it again. Here it stands for all of them.

use crate::control::{Command, CommandEnvelope, ReportEnvelope};
use crate::view::{EventPage, JobEvent, JobView, NumberedEvent};

macro_rules! json {
    ($($message:ty),+ $(,)?) => {$(
        impl $message {
            /// Reads it from JSON.
            ///
            /// # Errors
            /// The bytes are not JSON, or JSON of another shape.
            pub fn from_json(bytes: &[u8]) -> Result<Self, serde_json::Error> {
                serde_json::from_slice(bytes)
            }

            /// The JSON of it, on one line without its end.
            ///
            /// # Errors
            /// It has no JSON form, which holds for no message here.
            pub fn to_json(&self) -> Result<String, serde_json::Error> {
                serde_json::to_string(self)
            }
        }
    )+};
}

json!(Command, CommandEnvelope, EventPage, JobEvent, JobView, NumberedEvent, ReportEnvelope);
