//! `GET /v1/agent/monitor`: the agent's own log as it grows.

use std::io;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream;
use tokio_util::sync::CancellationToken;
use tracing::level_filters::LevelFilter;

use super::error::RequestFailure;
use super::json::REGION;
use super::logs::take_place;
use super::params::Params;
use super::shares::Share;
use super::state::ApiState;
use crate::agent_log::{LogFollower, LogItem};
use ostler_model::clock;
use ostler_model::limits::API_HEARTBEAT;
use ostler_wire as wire;

/// The `FileEvent` of each frame.
const LOG: &str = "log";
/// One of Nomad's names for the one server, which is this agent.
const LEADER: &str = "leader";

/// `GET /v1/agent/monitor`
pub(super) async fn read(State(api): ApiState, params: Params) -> Result<Response, RequestFailure> {
    let level = level(params.text("log_level"))?;
    let (json, plain) = (params.flag("log_json")?, params.flag("plain")?);
    let node = api.agent.node();
    let (own, name) = (node.id.to_string(), node.name.as_str());
    // Nomad's command line sends only the beginning of an id.
    if params.text("node_id").is_some_and(|id| !own.starts_with(id)) {
        return Err(RequestFailure::NotThere("node"));
    }
    let server = params.text("server_id");
    let is_this = |server: &str| {
        let named = server.strip_suffix(&format!(".{REGION}")).unwrap_or(server);
        [LEADER, name].contains(&named) || own.starts_with(server)
    };
    if server.is_some_and(|server| !is_this(server)) {
        return Err(RequestFailure::NotThere("server"));
    }
    let place = take_place(&api, &params)?;
    let monitor = Monitor {
        follower: api.log.follow(level),
        json,
        plain,
        offset: 0,
        leaving: api.leaving.clone(),
        _place: place,
    };
    let kind = if plain { "text/plain; charset=utf-8" } else { "application/json" };
    let body = Body::from_stream(stream::unfold(monitor, |mut monitor| async {
        Some((monitor.next_piece().await?, monitor))
    }));
    Ok(([(CONTENT_TYPE, kind), (X_CONTENT_TYPE_OPTIONS, "nosniff")], body).into_response())
}

/// `GET /v1/ostler/log`: the last lines of the log that are kept, as text or, with `log_json`, as JSON.
pub(super) async fn last_lines(
    State(api): ApiState,
    params: Params,
) -> Result<Response, RequestFailure> {
    let json = params.flag("log_json")?;
    let most: Option<usize> = params.number("lines")?;
    let lines = api.log.last_lines(most.unwrap_or(usize::MAX));
    let text: String =
        lines.iter().map(|line| if json { line.json() } else { line.text() }).collect();
    let kind = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    Ok((kind, text).into_response())
}

fn level(given: Option<&str>) -> Result<LevelFilter, RequestFailure> {
    let Some(given) = given else { return Ok(LevelFilter::INFO) };
    match given.to_lowercase().as_str() {
        "error" | "err" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => {
            Err(RequestFailure::bad_param("log_level", given, "trace, debug, info, warn or error"))
        }
    }
}

struct Monitor {
    follower: LogFollower,
    json: bool,
    plain: bool,
    offset: u64,
    leaving: CancellationToken,
    /// Its place, which is free again when the stream is dropped.
    _place: Share,
}

impl Monitor {
    /// Wait for the next line, or a sign of life; none when the agent leaves.
    async fn next_piece(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            let next = clock::timeout(API_HEARTBEAT, self.follower.next());
            match self.leaving.run_until_cancelled(next).await? {
                Some(heard) => return Some(self.frame(&heard?)),
                None if self.plain => {}
                None => return Some(Ok(Bytes::from_static(b"{}"))),
            }
        }
    }

    fn frame(&mut self, heard: &LogItem) -> io::Result<Bytes> {
        let text = match heard {
            LogItem::Line(line) if self.json => line.json(),
            LogItem::Line(line) => line.text(),
            LogItem::Missed(count) if self.json => {
                format!(
                    "{}\n",
                    serde_json::json!({ "@level": "warn", "@message": missed_text(*count) })
                )
            }
            LogItem::Missed(count) => format!("[WARN] {}\n", missed_text(*count)),
        };
        if self.plain {
            return Ok(text.into());
        }
        self.offset = self.offset.saturating_add(text.len() as u64);
        let frame = wire::Frame {
            data: STANDARD.encode(text).into(),
            file: "".into(),
            offset: self.offset,
            file_event: LOG.into(),
            skipped: 0,
        };
        serde_json::to_vec(&frame).map(Bytes::from).map_err(io::Error::other)
    }
}

fn missed_text(count: u64) -> String {
    format!("{count} lines of the log came faster than they were read, and are not shown")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::agent_log::{AgentLog, LogLine};
    use ostler_model::time::Timestamp;

    fn monitor(log: &Arc<AgentLog>, plain: bool) -> Monitor {
        Monitor {
            follower: log.follow(LevelFilter::INFO),
            json: false,
            plain,
            offset: 0,
            leaving: CancellationToken::new(),
            _place: Share::of_test(),
        }
    }

    fn line() -> LogLine {
        LogLine {
            at: Timestamp::from_nanos(0),
            level: tracing::Level::INFO,
            module: "m".to_owned(),
            message: "said".to_owned(),
            fields: Vec::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lines_are_frames_or_plain_and_silence_has_signs_of_life_until_the_agent_leaves() {
        let log = Arc::new(AgentLog::default());
        let (mut frames, mut plain) = (monitor(&log, false), monitor(&log, true));
        log.tell(line());
        let bytes = frames.next_piece().await.unwrap().unwrap();
        let frame: wire::Frame<'_> = serde_json::from_slice(&bytes).unwrap();
        let text = STANDARD.decode(frame.data.as_bytes()).unwrap();
        assert!(text.ends_with(b"[INFO] m: said\n") && frame.file_event == LOG);
        assert_eq!(frame.offset, text.len() as u64);
        assert_eq!(plain.next_piece().await.unwrap().unwrap(), text);
        assert_eq!(frames.next_piece().await.unwrap().unwrap(), "{}");
        frames.leaving.cancel();
        assert!(frames.next_piece().await.is_none());
    }

    #[test]
    fn levels_are_named_as_nomad_names_them() {
        assert_eq!(level(None).ok(), Some(LevelFilter::INFO));
        assert_eq!(level(Some("TRACE")).ok(), Some(LevelFilter::TRACE));
        assert!(level(Some("loud")).is_err());
    }
}
