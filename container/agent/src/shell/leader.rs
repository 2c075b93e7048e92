//! Reads the address of the ApplicationMaster.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use heddle_protocol::environment::AmAddress;

use crate::environment::AmPlace;

/// Reads the file of the highest attempt in the directory with this URL; `Ok(None)` if there is none yet. It runs on the
/// control thread and must not block it.
pub type ReadHighest = Arc<dyn Fn(String) -> AddressLookup + Send + Sync>;

/// A look-up in progress.
pub type AddressLookup = Pin<Box<dyn Future<Output = Result<Option<Vec<u8>>, String>> + Send>>;

/// Longest time for a look-up. The next one follows seconds later.
const LOOK_LIMIT: Duration = Duration::from_secs(15);
/// An address is some hundred bytes.
const ADDRESS_BYTES_MAX: usize = 4096;

/// Why the address is not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaderError {
    #[error("cannot read the ApplicationMaster's address from {place}: {source}")]
    File { place: String, source: std::io::Error },
    #[error("cannot read the ApplicationMaster's address from {place}: {error}")]
    Directory { place: String, error: String },
    #[error("{place} is not an address: {source}")]
    Format { place: String, source: serde_json::Error },
    #[error("the ApplicationMaster's address is not known yet")]
    NotYet,
}

/// Reads the present address of the ApplicationMaster.
pub(crate) async fn look(
    place: &AmPlace,
    read_highest: Option<ReadHighest>,
) -> Result<AmAddress, LeaderError> {
    match place {
        AmPlace::File(path) => read_file(path).await,
        AmPlace::Directory { url, .. } => {
            let failed = |error: String| LeaderError::Directory { place: url.clone(), error };
            let read = read_highest
                .ok_or_else(|| failed("this program cannot read directories".to_owned()))?;
            let text = tokio::time::timeout(LOOK_LIMIT, read(url.clone()))
                .await
                .map_err(|_| failed(format!("no response within {} s", LOOK_LIMIT.as_secs())))?
                .map_err(failed)?
                .ok_or(LeaderError::NotYet)?;
            parse(&text, url)
        }
    }
}

async fn read_file(path: &Path) -> Result<AmAddress, LeaderError> {
    let place = path.display().to_string();
    let text = tokio::fs::read(path)
        .await
        .map_err(|source| LeaderError::File { place: place.clone(), source })?;
    parse(&text, &place)
}

/// A file that is being written does not parse; the next look-up finds it complete.
fn parse(text: &[u8], place: &str) -> Result<AmAddress, LeaderError> {
    let text = text.get(..ADDRESS_BYTES_MAX).unwrap_or(text);
    serde_json::from_slice(text)
        .map_err(|source| LeaderError::Format { place: place.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_protocol::ids::Attempt;

    fn reading(answer: Result<Option<&'static str>, &'static str>) -> ReadHighest {
        Arc::new(move |_| {
            Box::pin(async move {
                let text = answer.map_err(str::to_owned)?;
                Ok(text.map(|text| text.as_bytes().to_vec()))
            })
        })
    }

    async fn found(
        answer: Result<Option<&'static str>, &'static str>,
    ) -> Result<AmAddress, String> {
        let place = AmPlace::Directory { first: None, url: "hdfs:///am".to_owned() };
        look(&place, Some(reading(answer))).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn file_of_the_highest_attempt_holds_the_address() {
        let whole = r#"{"address":"10.0.0.1:4000","attempt":3,"pid":7}"#;
        let address = found(Ok(Some(whole))).await.expect("found");
        assert_eq!(address.attempt, Attempt(3));
    }

    #[tokio::test]
    async fn missing_partial_and_unreachable_files_are_errors() {
        for (answer, names) in [
            (Ok(None), "not known yet"),
            (Ok(Some("")), "hdfs:///am"),
            (Ok(Some("{\"address\":")), "hdfs:///am"),
            (Err("no NameNode"), "no NameNode"),
        ] {
            let error = found(answer).await.expect_err("no address");
            assert!(error.contains(names), "{error}");
        }
    }
}
