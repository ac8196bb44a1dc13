//! The agent's own log, for clients that follow it from elsewhere.
//!
//! ```text
//! event ─ wanted by a follower? ─ no ─► nothing is made of it
//!             └─ yes ─► LogLine ─► ring (bounded) ─► each follower, by its level; what it missed is counted
//! ```
//! When followers come and go, the log is told which events to turn into lines, so that a detailed
//! log that nobody follows costs nothing. The last lines of [`KEPT_LEVEL`] and above are kept for
//! clients that ask later.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use serde_json::{Map, Value};
use tokio::sync::broadcast::{self, error::RecvError};
use tracing::Level;
use tracing::level_filters::LevelFilter;

use ostler_model::limits::{AGENT_LOG_KEPT_MAX, AGENT_LOG_LINES_MAX};
use ostler_model::time::Timestamp;

/// One event of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct LogLine {
    /// The time of the event.
    pub at: Timestamp,
    /// The level of the event.
    pub level: Level,
    /// The module of the agent that logged it.
    pub module: String,
    /// The message of the event.
    pub message: String,
    /// The names and values of its fields.
    pub fields: Vec<(String, Value)>,
}

impl LogLine {
    /// The line for people: time, level, module, message and fields.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { at, level, module, message, .. } = self;
        let mut text = format!("{} [{level}] {module}: {message}", time(*at));
        for (name, value) in &self.fields {
            let joined = match value {
                Value::String(value) => write!(text, " {name}={value:?}"),
                value => write!(text, " {name}={value}"),
            };
            // Writing to a string does not fail.
            joined.unwrap_or_default();
        }
        text.push('\n');
        text
    }

    /// The line for programs, as JSON with the names of Nomad's own log.
    #[must_use]
    pub fn json(&self) -> String {
        let own = [
            ("@level", self.level.as_str().to_lowercase()),
            ("@message", self.message.clone()),
            ("@module", self.module.clone()),
            ("@timestamp", time(self.at)),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value.into()));
        let line: Map<String, Value> = self.fields.iter().cloned().chain(own).collect();
        format!("{}\n", Value::Object(line))
    }
}

fn time(at: Timestamp) -> String {
    let since = std::time::Duration::from_nanos(at.nanos());
    humantime::format_rfc3339_micros(std::time::UNIX_EPOCH + since).to_string()
}

/// Lines of this level and above are kept, because an agent logs few of them.
pub const KEPT_LEVEL: LevelFilter = LevelFilter::INFO;

/// Makes the process turn events of this level and above into lines; none if the level is off.
pub type LevelTuner = Box<dyn Fn(LevelFilter) + Send + Sync>;

/// The lines that are kept, and who follows the log. See the module.
pub struct AgentLog {
    lines: broadcast::Sender<Arc<LogLine>>,
    /// The last lines, oldest first.
    kept: Mutex<VecDeque<Arc<LogLine>>>,
    /// The level that each follower asked for.
    wanted: Mutex<Vec<LevelFilter>>,
    tune: OnceLock<LevelTuner>,
}

impl Default for AgentLog {
    fn default() -> Self {
        let (lines, _) = broadcast::channel(AGENT_LOG_LINES_MAX);
        let (kept, wanted) = (Mutex::default(), Mutex::default());
        Self { lines, kept, wanted, tune: OnceLock::new() }
    }
}

impl AgentLog {
    /// The log of this process; there is one for each process, as for its events.
    #[must_use]
    pub fn for_process() -> Arc<Self> {
        static LOG: LazyLock<Arc<AgentLog>> = LazyLock::new(Arc::default);
        Arc::clone(&LOG)
    }

    /// Set the function that chooses which events become lines. Only the first one is kept.
    pub fn set_tuner(&self, tune: LevelTuner) {
        let _there_already = self.tune.set(tune);
        self.change(|_| {});
    }

    /// Add a line that was logged, and give it to all followers.
    pub fn tell(&self, line: LogLine) {
        let line = Arc::new(line);
        if line.level <= KEPT_LEVEL {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() >= AGENT_LOG_KEPT_MAX {
                kept.pop_front();
            }
            kept.push_back(Arc::clone(&line));
        }
        // An error means that nobody follows.
        let _nobody = self.lines.send(line);
    }

    /// The last lines that are kept, oldest first; at most `most`.
    #[must_use]
    pub fn last_lines(&self, most: usize) -> Vec<Arc<LogLine>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().skip(kept.len().saturating_sub(most)).cloned().collect()
    }

    /// Follow the log from now on: lines of this level and above.
    #[must_use]
    pub fn follow(self: &Arc<Self>, level: LevelFilter) -> LogFollower {
        let lines = self.lines.subscribe();
        self.change(|wanted| wanted.push(level));
        LogFollower { log: Arc::clone(self), level, lines }
    }

    fn change(&self, change: impl FnOnce(&mut Vec<LevelFilter>)) {
        // The level is set under the lock, so that the later one of two changes wins.
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut wanted);
        let most = wanted.iter().copied().fold(KEPT_LEVEL, LevelFilter::max);
        if let Some(tune) = self.tune.get() {
            tune(most);
        }
    }
}

/// What a follower of the log receives.
#[derive(Clone, Debug, PartialEq)]
pub enum LogItem {
    /// One line of the log.
    Line(Arc<LogLine>),
    /// This many lines were dropped, because they came faster than they were read.
    Missed(u64),
}

/// Follows the log; see [`AgentLog::follow`].
pub struct LogFollower {
    log: Arc<AgentLog>,
    level: LevelFilter,
    lines: broadcast::Receiver<Arc<LogLine>>,
}

impl LogFollower {
    /// The next item; none when there is no log any more.
    pub async fn next(&mut self) -> Option<LogItem> {
        loop {
            match self.lines.recv().await {
                Ok(line) if line.level <= self.level => return Some(LogItem::Line(line)),
                Ok(_) => {}
                Err(RecvError::Lagged(count)) => return Some(LogItem::Missed(count)),
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

impl Drop for LogFollower {
    fn drop(&mut self) {
        let level = self.level;
        self.log.change(|wanted| {
            if let Some(at) = wanted.iter().position(|one| *one == level) {
                wanted.swap_remove(at);
            }
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use super::*;

    fn line(level: Level, message: &str) -> LogLine {
        LogLine {
            at: Timestamp::from_nanos(1_500_000_000),
            level,
            module: "ostler_agent".to_owned(),
            message: message.to_owned(),
            fields: vec![("task".to_owned(), "web".into()), ("count".to_owned(), 3.into())],
        }
    }

    #[test]
    fn a_line_has_a_form_for_people_and_one_for_programs() {
        let line = line(Level::WARN, "it is late");
        assert_eq!(
            line.text(),
            "1970-01-01T00:00:01.500000Z [WARN] ostler_agent: it is late task=\"web\" count=3\n"
        );
        let json: Value = serde_json::from_str(&line.json()).unwrap();
        assert_eq!(json["@level"], "warn");
        assert_eq!(json["@message"], "it is late");
        assert_eq!((&json["task"], &json["count"]), (&"web".into(), &3.into()));
    }

    #[tokio::test]
    async fn each_follower_hears_what_it_asked_for_and_how_much_it_missed() {
        let log = Arc::new(AgentLog::default());
        log.tell(line(Level::ERROR, "before"));
        let (mut some, mut all) = (log.follow(LevelFilter::WARN), log.follow(LevelFilter::TRACE));
        log.tell(line(Level::DEBUG, "one"));
        log.tell(line(Level::WARN, "two"));
        let said = |heard| match heard {
            Some(LogItem::Line(line)) => line.message.clone(),
            other => format!("{other:?}"),
        };
        assert_eq!(said(some.next().await), "two");
        assert_eq!(said(all.next().await), "one");
        for _ in 0..AGENT_LOG_LINES_MAX + 5 {
            log.tell(line(Level::ERROR, "many"));
        }
        assert_eq!(some.next().await, Some(LogItem::Missed(5)));
        assert_eq!(said(some.next().await), "many");
    }

    #[test]
    fn the_last_lines_that_matter_are_kept() {
        let log = AgentLog::default();
        log.tell(line(Level::DEBUG, "small"));
        for count in 0..AGENT_LOG_KEPT_MAX + 2 {
            log.tell(line(Level::INFO, &count.to_string()));
        }
        let said = |most| -> Vec<String> {
            log.last_lines(most).iter().map(|line| line.message.clone()).collect()
        };
        assert_eq!(
            (said(usize::MAX).len(), said(usize::MAX)[0].as_str()),
            (AGENT_LOG_KEPT_MAX, "2")
        );
        assert_eq!(said(1), [(AGENT_LOG_KEPT_MAX + 1).to_string()]);
    }

    #[test]
    fn what_is_made_into_lines_is_what_somebody_wants() {
        let log = Arc::new(AgentLog::default());
        let tuned = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&tuned);
        log.set_tuner(Box::new(move |level| tell.lock().unwrap().push(level)));
        let info = log.follow(LevelFilter::INFO);
        let trace = log.follow(LevelFilter::TRACE);
        drop(trace);
        drop(info);
        let (kept, trace) = (KEPT_LEVEL, LevelFilter::TRACE);
        assert_eq!(*tuned.lock().unwrap(), [kept, kept, trace, kept, kept]);
    }
}
