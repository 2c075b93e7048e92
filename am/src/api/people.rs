//! What people and scrapers read: the page, the same as JSON, and figures as Prometheus text.
//!
//! Every path is one of a fixed list, compared whole: there is no file behind any of them, so there is nothing to
//! climb out of. All answers are made from one [`JobView`].

use heddle_protocol::view::JobView;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::{HeaderMap, StatusCode};
use serde::Serialize;

use super::{metrics, page};

/// An answer for a reader.
pub(super) struct Reading {
    pub(super) status: StatusCode,
    pub(super) kind: &'static str,
    pub(super) body: String,
}

/// The answer to GET of this path; the query is nobody's business.
pub(super) fn read(path: &str, view: &JobView) -> Reading {
    match path {
        "/" => Reading {
            status: StatusCode::OK,
            kind: "text/html; charset=utf-8",
            body: page::render(view),
        },
        "/metrics" => Reading {
            status: StatusCode::OK,
            kind: "text/plain; version=0.0.4; charset=utf-8",
            body: metrics::render(view),
        },
        "/api/v1/job" | "/api/v1/status" => json(view),
        "/api/v1/slots" => json(&view.slots),
        "/api/v1/checkpoints" => json(&view.checkpoints),
        "/api/v1/recoveries" => json(&view.recoveries),
        "/api/v1/evaluations" => json(&view.evaluations),
        "/api/v1/history" => json(&view.history),
        _ => Reading {
            status: StatusCode::NOT_FOUND,
            kind: "text/plain; charset=utf-8",
            body: "no such page\n".to_owned(),
        },
    }
}

fn json<T: Serialize + ?Sized>(value: &T) -> Reading {
    match serde_json::to_string(value) {
        Ok(body) => Reading {
            status: StatusCode::OK,
            kind: "application/json",
            body,
        },
        Err(error) => Reading {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            kind: "text/plain; charset=utf-8",
            body: format!("{error}\n"),
        },
    }
}

/// Headers of every answer to a reader: nothing is kept, run, framed elsewhere or guessed at, even if a text got
/// past the escaping.
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
