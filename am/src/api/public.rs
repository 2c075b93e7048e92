//! Public routes: the page, the same as JSON, and the metrics.
//!
//! Every path is compared with a fixed list. No file is behind any of them, so path traversal is impossible. Answers are
//! rendered from one [`JobView`], or are events that are JSON already.
//!
//! Unauthenticated clients may send requests at any rate, and rendering shares a thread with heartbeats. So answers are
//! cached: page and metrics for a second, JSON until the view changes, and any of them for twenty times as long as it
//! took to render. Answers that slow clients still hold are bounded too ([`HELD_BYTES_MAX`]).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use heddle_protocol::view::{JobView, RecoveryView};
use heddle_telemetry::recovery::RecoveryRow;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::{HeaderMap, StatusCode};
use serde::Serialize;
use tokio::sync::watch;

use super::{metrics, page};
use crate::event_log::EventLog;
use crate::report::format::phases;

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

/// The pages of the job: cached answers from the latest view, and its events.
pub struct Pages {
    view: watch::Receiver<Arc<JobView>>,
    events: EventLog,
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
    /// Pages of this view and these events.
    #[must_use]
    pub fn new(view: watch::Receiver<Arc<JobView>>, events: EventLog) -> Self {
        Self { view, events, kept: Mutex::default(), held: Arc::default() }
    }

    /// The answer to GET of this path. The query counts for [`EVENTS`] only.
    pub(super) fn read(&self, path: &str, query: Option<&str>) -> PageAnswer {
        match path {
            EVENTS => self.events(query.unwrap_or_default()),
            _ => self.rendered(path),
        }
    }

    /// The events from the number that the query names, `from=N`. Their JSON is ready, so an answer costs one copy.
    fn events(&self, query: &str) -> PageAnswer {
        let from = query.split('&').find_map(|pair| pair.strip_prefix("from="));
        let Ok(from) = from.unwrap_or("0").parse() else {
            let text = format!(
                "from must be the number of an event (got {:?})\n",
                from.unwrap_or_default()
            );
            return PageAnswer::text(StatusCode::BAD_REQUEST, text);
        };
        if self.is_full() {
            return slow_clients();
        }
        let body = self.counted(self.events.page(from));
        PageAnswer { status: StatusCode::OK, kind: "application/json", body }
    }

    fn is_full(&self) -> bool {
        self.held.load(Ordering::Relaxed) >= HELD_BYTES_MAX
    }

    fn counted(&self, body: String) -> Bytes {
        self.held.fetch_add(body.len(), Ordering::Relaxed);
        Bytes::from_owner(Counted { body, held: Arc::clone(&self.held) })
    }

    fn rendered(&self, path: &str) -> PageAnswer {
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
            if fresh || self.is_full() || Arc::ptr_eq(&kept.of, &view) {
                return kept.reading.clone();
            }
        } else if self.is_full() {
            return slow_clients();
        }
        let at = Instant::now();
        let (status, kind, body) = render(path, &view);
        let reading = PageAnswer { status, kind, body: self.counted(body) };
        let kept = CachedAnswer { of: view, at, cost: at.elapsed(), reading: reading.clone() };
        all.insert(path, kept);
        reading
    }
}

fn slow_clients() -> PageAnswer {
    PageAnswer::text(
        StatusCode::SERVICE_UNAVAILABLE,
        "too many clients receive their answers slowly; retry later\n".to_owned(),
    )
}

/// The path of the events.
pub(super) const EVENTS: &str = "/api/v1/events";

/// All other paths.
const PATHS: &[&str] = &[
    "/",
    "/metrics",
    "/api/v1/job",
    "/api/v1/status",
    "/api/v1/slots",
    "/api/v1/checkpoints",
    "/api/v1/recoveries",
    "/api/v1/passes",
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
        "/api/v1/recoveries" => {
            json(&view.recoveries.iter().map(RecoveryTable::new).collect::<Vec<_>>())
        }
        "/api/v1/passes" => json(&view.passes),
        "/api/v1/evaluations" => json(&view.evaluations),
        "/api/v1/history" => json(&view.history),
        _ => rendered(view.to_json()),
    }
}

/// A recovery with the five rows of its table.
#[derive(Serialize)]
struct RecoveryTable<'a> {
    #[serde(flatten)]
    view: &'a RecoveryView,
    rows: [RecoveryRow; 5],
}

impl<'a> RecoveryTable<'a> {
    fn new(view: &'a RecoveryView) -> Self {
        Self { view, rows: phases(view).rows() }
    }
}

fn json<T: Serialize + ?Sized>(value: &T) -> Rendered {
    rendered(serde_json::to_string(value))
}

fn rendered(json: Result<String, serde_json::Error>) -> Rendered {
    match json {
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
    use heddle_protocol::ids::Attempt;
    use heddle_protocol::view::{EventPage, WarningCode};

    use super::*;
    use crate::event_log::EventOutput;
    use crate::report::samples::view;

    fn pages() -> (watch::Sender<Arc<JobView>>, Pages) {
        let (sender, receiver) = watch::channel(Arc::new(view()));
        let log = EventLog::new(Attempt(1), EventOutput::LogOnly);
        (sender, Pages::new(receiver, log))
    }

    fn read(pages: &Pages, path: &str) -> PageAnswer {
        pages.read(path, None)
    }

    fn renew(sender: &watch::Sender<Arc<JobView>>, rows: u64) {
        let mut next = view();
        next.rows = rows;
        sender.send_replace(Arc::new(next));
    }

    #[test]
    fn recoveries_have_the_shares_of_their_phases() {
        let (_sender, pages) = pages();
        let body = read(&pages, "/api/v1/recoveries").body;
        let all: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        let recovery = &all[0];
        assert_eq!(recovery["kind"], "rollback", "the fields of the view");
        let rows = recovery["rows"].as_array().expect("rows");
        let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap_or("")).collect();
        assert_eq!(names, ["checkpoint", "notice", "restart", "load", "resume"]);
        assert_eq!(rows.iter().filter_map(|row| row["percent"].as_u64()).sum::<u64>(), 100);
        assert_eq!(rows[1]["ms"], recovery["notice_ms"]);
        let page = read(&pages, "/").body;
        let page = String::from_utf8_lossy(&page);
        let percent = rows[1]["percent"].as_u64().expect("a share");
        assert!(page.contains(&format!("({percent} %)")) && page.contains("rollback"), "{page}");
    }

    #[test]
    fn metrics_are_rendered_once_a_second_and_json_once_a_view() {
        let (sender, pages) = pages();
        let first = read(&pages, "/metrics").body;
        let json = read(&pages, "/api/v1/job").body;
        assert_eq!(read(&pages, "/api/v1/job").body.as_ptr(), json.as_ptr());
        renew(&sender, 77_777);
        assert_eq!(read(&pages, "/metrics").body.as_ptr(), first.as_ptr());
        for kept in pages.kept.lock().expect("no panic").values_mut() {
            // As if a second had passed, and rendering had taken no time.
            kept.at -= RENDER_EVERY;
            kept.cost = Duration::ZERO;
        }
        for path in ["/metrics", "/api/v1/job"] {
            let body = read(&pages, path).body;
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
            let reading = read(&pages, "/api/v1/job");
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
        assert_eq!(read(&pages, "/").status, StatusCode::SERVICE_UNAVAILABLE);
        slow.clear();
        renew(&sender, 5);
        let body = read(&pages, "/api/v1/job").body;
        assert!(String::from_utf8_lossy(&body).contains("\"rows\":5,"));
        assert_eq!(read(&pages, "/").status, StatusCode::OK);
    }

    #[test]
    fn events_are_read_from_the_number_that_the_query_names() {
        let (_sender, pages) = pages();
        for n in 0..3 {
            pages.events.warn(WarningCode::Unknown, n.to_string());
        }
        let numbers = |query| {
            let answer = pages.read(EVENTS, query);
            assert_eq!((answer.status, answer.kind), (StatusCode::OK, "application/json"));
            let page: EventPage = serde_json::from_slice(&answer.body).expect("a page of events");
            assert_eq!((page.attempt, page.first, page.next), (Attempt(1), 0, 3));
            page.events.iter().map(|event| event.seq).collect::<Vec<_>>()
        };
        assert_eq!(numbers(None), [0, 1, 2]);
        assert_eq!(numbers(Some("from=2")), [2]);
        assert_eq!(numbers(Some("a=b&from=7")), [0; 0]);
        for wrong in ["from=-1", "from=x", "from="] {
            let answer = pages.read(EVENTS, Some(wrong));
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{wrong}");
        }
    }

    #[test]
    fn events_for_slow_clients_are_bounded() {
        let (_sender, pages) = pages();
        for _ in 0..20 {
            pages.events.warn(WarningCode::Unknown, "x".repeat(64 << 10));
        }
        let mut slow = Vec::new();
        loop {
            let answer = pages.read(EVENTS, None);
            if answer.status == StatusCode::SERVICE_UNAVAILABLE {
                break;
            }
            slow.push(answer.body);
        }
        let held: usize = slow.iter().map(Bytes::len).sum();
        assert!((HELD_BYTES_MAX..HELD_BYTES_MAX + (2 << 20)).contains(&held), "{held}");
        slow.clear();
        assert_eq!(pages.read(EVENTS, None).status, StatusCode::OK);
    }
}
