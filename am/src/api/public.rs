//! Public routes: the page, the same as JSON, and the metrics.
//!
//! Every path is compared with a fixed list. No file is behind any of them, so path traversal is impossible. All answers
//! are rendered from one [`JobView`].
//!
//! Unauthenticated clients may send requests at any rate, and rendering shares a thread with heartbeats. So answers are
//! cached: page and metrics for a second, JSON until the view changes, and any of them for twenty times as long as it
//! took to render. Answers that slow clients still hold are bounded too ([`HELD_BYTES_MAX`]).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use heddle_protocol::view::JobView;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::{HeaderMap, StatusCode};
use serde::Serialize;
use tokio::sync::watch;

use super::{metrics, page};

/// Shortest time between two renderings of the page and of the metrics.
const RENDER_EVERY: Duration = Duration::from_secs(1);
/// Rendering one path takes at most this fraction of the thread's time: 1 in 20.
const RENDER_SHARE: u32 = 20;
/// Most bytes of rendered answers in memory, including those that slow clients still receive.
const HELD_BYTES_MAX: usize = 32 << 20;

/// An answer to a client.
#[derive(Clone)]
pub(super) struct PageAnswer {
    pub(super) status: StatusCode,
    pub(super) kind: &'static str,
    pub(super) body: Bytes,
}

impl PageAnswer {
    fn text(status: StatusCode, body: String) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", body: body.into() }
    }
}

/// The pages of the job: cached answers from the latest view.
pub struct Pages {
    view: watch::Receiver<Arc<JobView>>,
    kept: Mutex<BTreeMap<&'static str, CachedAnswer>>,
    held: Arc<AtomicUsize>,
}

struct CachedAnswer {
    of: Arc<JobView>,
    at: Instant,
    cost: Duration,
    reading: PageAnswer,
}

/// A rendered body that is counted while it is in memory.
struct Counted {
    body: String,
    held: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        self.body.as_bytes()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.held.fetch_sub(self.body.len(), Ordering::Relaxed);
    }
}

impl Pages {
    /// Pages of this view.
    #[must_use]
    pub fn new(view: watch::Receiver<Arc<JobView>>) -> Self {
        Self { view, kept: Mutex::default(), held: Arc::default() }
    }

    /// The answer to GET of this path; the query is ignored.
    pub(super) fn read(&self, path: &str) -> PageAnswer {
        let Some(path) = PATHS.iter().find(|known| **known == path).copied() else {
            return PageAnswer::text(StatusCode::NOT_FOUND, "no such page\n".to_owned());
        };
        let view = Arc::clone(&self.view.borrow());
        let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = all.get(path) {
            let least = match path {
                "/" | "/metrics" => RENDER_EVERY,
                _ => Duration::ZERO,
            };
            let fresh = kept.at.elapsed() < least.max(kept.cost * RENDER_SHARE);
            let full = self.held.load(Ordering::Relaxed) >= HELD_BYTES_MAX;
            if fresh || full || Arc::ptr_eq(&kept.of, &view) {
                return kept.reading.clone();
            }
        } else if self.held.load(Ordering::Relaxed) >= HELD_BYTES_MAX {
            return PageAnswer::text(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many clients receive their answers slowly; retry later\n".to_owned(),
            );
        }
        let at = Instant::now();
        let (status, kind, body) = render(path, &view);
        self.held.fetch_add(body.len(), Ordering::Relaxed);
        let held = Arc::clone(&self.held);
        let reading = PageAnswer { status, kind, body: Bytes::from_owner(Counted { body, held }) };
        let kept = CachedAnswer { of: view, at, cost: at.elapsed(), reading: reading.clone() };
        all.insert(path, kept);
        reading
    }
}

/// All paths.
const PATHS: &[&str] = &[
    "/",
    "/metrics",
    "/api/v1/job",
    "/api/v1/status",
    "/api/v1/slots",
    "/api/v1/checkpoints",
    "/api/v1/recoveries",
    "/api/v1/evaluations",
    "/api/v1/history",
];

type Rendered = (StatusCode, &'static str, String);

fn render(path: &str, view: &Arc<JobView>) -> Rendered {
    match path {
        "/" => (StatusCode::OK, "text/html; charset=utf-8", page::render(view)),
        "/metrics" => (StatusCode::OK, metrics::CONTENT_TYPE, metrics::render(view)),
        "/api/v1/slots" => json(&view.slots),
        "/api/v1/checkpoints" => json(&view.checkpoints),
        "/api/v1/recoveries" => json(&view.recoveries),
        "/api/v1/evaluations" => json(&view.evaluations),
        "/api/v1/history" => json(&view.history),
        _ => json(view.as_ref()),
    }
}

fn json<T: Serialize + ?Sized>(value: &T) -> Rendered {
    match serde_json::to_string(value) {
        Ok(body) => (StatusCode::OK, "application/json", body),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", format!("{error}\n"))
        }
    }
}

/// Headers of every answer: nothing is cached, executed, framed elsewhere or sniffed, even if a text were not escaped.
pub(super) fn headers(headers: &mut HeaderMap, kind: &'static str) {
    let fixed = [
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, "no-store"),
        (
            CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
        ),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "SAMEORIGIN"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::samples::view;

    fn pages() -> (watch::Sender<Arc<JobView>>, Pages) {
        let (sender, receiver) = watch::channel(Arc::new(view()));
        (sender, Pages::new(receiver))
    }

    fn renew(sender: &watch::Sender<Arc<JobView>>, rows: u64) {
        let mut next = view();
        next.rows = rows;
        sender.send_replace(Arc::new(next));
    }

    #[test]
    fn metrics_are_rendered_once_a_second_and_json_once_a_view() {
        let (sender, pages) = pages();
        let first = pages.read("/metrics").body;
        let json = pages.read("/api/v1/job").body;
        assert_eq!(pages.read("/api/v1/job").body.as_ptr(), json.as_ptr());
        renew(&sender, 77_777);
        assert_eq!(pages.read("/metrics").body.as_ptr(), first.as_ptr());
        for kept in pages.kept.lock().expect("no panic").values_mut() {
            // As if a second had passed, and rendering had taken no time.
            kept.at -= RENDER_EVERY;
            kept.cost = Duration::ZERO;
        }
        for path in ["/metrics", "/api/v1/job"] {
            let body = pages.read(path).body;
            let text = String::from_utf8_lossy(&body);
            assert!(text.contains("77777"), "{path}: {text}");
        }
    }

    #[test]
    fn answers_to_slow_clients_are_bounded() {
        let (sender, pages) = pages();
        let mut slow = Vec::new();
        for rows in 0..u64::MAX {
            renew(&sender, rows);
            let reading = pages.read("/api/v1/job");
            if slow.last().is_some_and(|last: &Bytes| last.as_ptr() == reading.body.as_ptr()) {
                break;
            }
            slow.push(reading.body);
            if let Some(kept) = pages.kept.lock().expect("no panic").get_mut("/api/v1/job") {
                kept.cost = Duration::ZERO;
            }
        }
        let held: usize = slow.iter().map(Bytes::len).sum();
        assert!((HELD_BYTES_MAX..HELD_BYTES_MAX + (1 << 20)).contains(&held), "{held}");
        assert_eq!(pages.read("/").status, StatusCode::SERVICE_UNAVAILABLE);
        slow.clear();
        renew(&sender, 5);
        let body = pages.read("/api/v1/job").body;
        assert!(String::from_utf8_lossy(&body).contains("\"rows\":5,"));
        assert_eq!(pages.read("/").status, StatusCode::OK);
    }
}
