//! `ostler debug bundle`: one file with all that a person needs who helps with a problem.
//!
//! ```text
//! parts: answers of the API, one after the other, each within its bounds
//!   ─► without secrets (redact) ─► archive ─► NAME, or NAME.error.txt with why it is not there
//! ```

mod archive;
mod redact;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::answer;
use super::args::debug::{BundleArgs, DebugCommand};
use super::connect::{self, CliError, in_all_namespaces};
use super::exit::Exit;
use super::explain;
use super::lines::LineReader;
use super::terminal::TerminalInfo;
use archive::Archive;
use ostler_api::client::ApiClient;
use ostler_api::request::{ApiRequest, encode_part};
use ostler_api::routes::{QueryKey, endpoints as routes};
use ostler_model::clock::{self, Clock, Stopwatch};
use ostler_model::limits::{
    BUNDLE_JOBS_MAX, BUNDLE_PART_BYTES_MAX, BUNDLE_PART_WALL_MAX, BUNDLE_WALL_MAX,
};
use ostler_model::time::Timestamp;

/// A function that makes a request.
type MakeRequest = fn() -> ApiRequest<(), Value>;

/// Answers of the API that the bundle has as JSON, each with the name of its file.
const ANSWERS: [(&str, MakeRequest); 21] = [
    ("agent.json", || routes::ReadAgent::request([]).read_as()),
    ("readiness.json", || routes::ReadReadiness::request([]).read_as()),
    ("node.json", || routes::ReadNodeView::request([]).read_as()),
    ("node-as-listed.json", || {
        routes::ListNodes::request([]).with(QueryKey::Resources, true).read_as()
    }),
    ("node-use.json", || routes::ReadNodeUsage::request([]).read_as()),
    ("devices.json", || routes::ListDevices::request([]).read_as()),
    ("plugins.json", || routes::ListPlugins::request([]).read_as()),
    ("plugins-status.json", || routes::ListPluginStates::request([]).read_as()),
    ("watches.json", || routes::ListWatches::request([]).read_as()),
    ("state.json", || routes::ReadState::request([]).read_as()),
    ("runs.json", || routes::ListHeldRuns::request([]).read_as()),
    ("jobs-dir.json", || routes::ReadJobsDir::request([]).read_as()),
    ("namespaces.json", || routes::ListNamespaces::request([]).read_as()),
    ("jobs.json", || in_all_namespaces(routes::ListJobs::request([])).read_as()),
    ("allocations.json", || {
        in_all_namespaces(routes::ListAllocs::request([]).with(QueryKey::Resources, true)).read_as()
    }),
    ("evaluations.json", || in_all_namespaces(routes::ListEvaluations::request([])).read_as()),
    ("deployments.json", || in_all_namespaces(routes::ListDeployments::request([])).read_as()),
    ("services.json", || in_all_namespaces(routes::ListServices::request([])).read_as()),
    ("events.json", || in_all_namespaces(routes::ListNodeEvents::request([])).read_as()),
    ("metrics.json", || routes::ReadMetrics::request([]).read_as()),
    ("members.json", || routes::ListMembers::request([]).read_as()),
];
/// Answers of the API that the bundle has as text, each with the name of its file.
const TEXTS: [(&str, MakeRequest); 2] = [
    ("log.txt", || routes::ReadAgentLog::request([]).read_as()),
    ("metrics.prom", || {
        routes::ReadMetrics::request([]).with(QueryKey::Format, "prometheus").read_as()
    }),
];

/// One file of the archive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct BundlePart {
    name: String,
    bytes: usize,
    millis: u64,
    /// How many bytes were cut off at the end.
    #[serde(skip_serializing_if = "is_zero")]
    cut: usize,
    /// Why the file is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The bundle that was written, for `--json`.
#[derive(Debug, Serialize)]
struct BundleReport {
    file: PathBuf,
    parts: Vec<BundlePart>,
}

/// Run one of the commands.
pub(super) async fn run(command: &DebugCommand, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    match command {
        DebugCommand::Bundle(args) => bundle(args, terminal).await,
    }
}

async fn bundle(args: &BundleArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.agent)?;
    let now = Clock::system().now();
    let stamp: String = now.to_string().chars().filter(char::is_ascii_alphanumeric).collect();
    let below = format!("ostler-debug-{stamp}");
    let file = args.out.clone().unwrap_or_else(|| format!("{below}.tar.gz").into());
    // This request comes first: without an agent no file is left behind.
    let _there = client.send(&routes::ReadAgent::request([]).read_as::<Value>()).await?;
    let failed = |error: std::io::Error| {
        CliError::Cannot(format!("cannot write {}: {error}", file.display()))
    };
    let archive = Archive::create(&file, &below, now).map_err(failed)?;
    let mut bundle = Bundle { archive, parts: Vec::new(), began: Stopwatch::start() };
    let gathered =
        connect::run_until_interrupted("the archive is incomplete", bundle.gather(&client, now))
            .await;
    let Bundle { archive, parts, .. } = bundle;
    let finished = gathered.and_then(|()| archive.finish().map_err(failed));
    if let Err(stop) = finished {
        // Half of an archive helps nobody.
        let _gone = std::fs::remove_file(&file);
        return Err(stop);
    }
    let written = BundleReport { file, parts };
    answer::show(&written, || text(&written), terminal)
}

fn text(written: &BundleReport) -> String {
    let failed: Vec<_> = written.parts.iter().filter(|part| part.error.is_some()).collect();
    let mut text = format!("wrote {}: {} files\n", written.file.display(), written.parts.len());
    for part in failed {
        text.push_str(&format!(
            "missing: {}: {}\n",
            part.name,
            part.error.as_deref().unwrap_or_default()
        ));
    }
    text + "secrets are left out as far as they can be recognised; review it before you pass it on\n"
}

struct Bundle {
    archive: Archive,
    parts: Vec<BundlePart>,
    began: Stopwatch,
}

impl Bundle {
    async fn gather(&mut self, client: &ApiClient, now: Timestamp) -> Result<(), CliError> {
        let versions = serde_json::json!({
            "command_line": env!("CARGO_PKG_VERSION"), "gathered": now.to_string(),
        });
        self.put("versions.json", Duration::ZERO, Ok(json(&versions)))?;
        for (name, request) in ANSWERS {
            self.part(name, async {
                Ok(json(&redact::redact_value(client.send(&request()).await?)))
            })
            .await?;
        }
        for (name, request) in TEXTS {
            self.part(name, lines(client, &request())).await?;
        }
        // Without the list no single job is asked for. The part with the list says why.
        let request = in_all_namespaces(routes::ListJobs::request([]));
        let jobs = client.send(&request).await.unwrap_or_default();
        for job in jobs.iter().take(BUNDLE_JOBS_MAX) {
            let of = client.clone().in_namespace(&job.namespace);
            let name = encode_part(&format!("{}.{}", job.namespace, job.id));
            let request = routes::ReadJob::request([&job.id]).read_as::<Value>();
            let asked = async { Ok(json(&redact::redact_value(of.send(&request).await?))) };
            self.part(&format!("jobs/{name}.json"), asked).await?;
            let why =
                async { Ok(redact::strip_users(&explain::explain_job(&of, &job.id, now).await?)) };
            self.part(&format!("why/{name}.txt"), why).await?;
        }
        let parts = json(&serde_json::to_value(&self.parts).unwrap_or_default());
        self.put("parts.json", Duration::ZERO, Ok(parts))
    }

    /// Ask for a part, within its time, and add it to the archive.
    async fn part(
        &mut self,
        name: &str,
        asked: impl Future<Output = Result<String, CliError>>,
    ) -> Result<(), CliError> {
        let left = BUNDLE_WALL_MAX.saturating_sub(self.began.elapsed()).min(BUNDLE_PART_WALL_MAX);
        let watch = Stopwatch::start();
        let found = match clock::timeout(left, asked).await {
            Some(Ok(text)) => Ok(text),
            Some(Err(CliError::Client(error))) => Err(error.to_string()),
            Some(Err(other)) => return Err(other),
            None => Err(format!("it took longer than {} s", left.as_secs())),
        };
        self.put(name, watch.elapsed(), found)
    }

    fn put(
        &mut self,
        name: &str,
        took: Duration,
        found: Result<String, String>,
    ) -> Result<(), CliError> {
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let mut part = BundlePart { name: name.to_owned(), millis, ..BundlePart::default() };
        let (name, text) = match found {
            Ok(text) => (name.to_owned(), text),
            Err(error) => {
                part.error = Some(error.clone());
                (format!("{name}.error.txt"), format!("{error}\n"))
            }
        };
        let whole = text.as_bytes();
        let bytes = whole.get(..whole.len().min(BUNDLE_PART_BYTES_MAX)).unwrap_or_default();
        (part.bytes, part.cut) = (bytes.len(), whole.len() - bytes.len());
        let added = self.archive.add(&name, bytes);
        added.map_err(|error| CliError::Cannot(format!("cannot write the archive: {error}")))?;
        self.parts.push(part);
        Ok(())
    }
}

fn json(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// Read a text up to its bound, without secrets.
async fn lines(client: &ApiClient, request: &ApiRequest<(), Value>) -> Result<String, CliError> {
    let mut lines = LineReader::new(client.read_pieces(request).await?);
    let mut text = String::new();
    while let Some(line) = lines.next().await? {
        if text.len() > BUNDLE_PART_BYTES_MAX {
            break;
        }
        text.push_str(&redact::strip_users(&String::from_utf8_lossy(&line)));
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::io::Read as _;

    use super::*;

    #[tokio::test]
    async fn a_part_that_fails_is_a_file_that_says_why_and_a_long_one_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tar.gz");
        let archive = Archive::create(&path, "top", Timestamp::default()).unwrap();
        let mut bundle = Bundle { archive, parts: Vec::new(), began: Stopwatch::start() };
        bundle.part("whole.txt", async { Ok("all\n".to_owned()) }).await.unwrap();
        bundle.put("lost.json", Duration::ZERO, Err("no answer".to_owned())).unwrap();
        let long = "x".repeat(BUNDLE_PART_BYTES_MAX + 3);
        bundle.put("long.txt", Duration::ZERO, Ok(long)).unwrap();
        let Bundle { archive, parts, .. } = bundle;
        archive.finish().unwrap();
        let seen: Vec<_> =
            parts.iter().map(|part| (part.bytes, part.cut, part.error.as_deref())).collect();
        assert_eq!(
            seen,
            [(4, 0, None), (10, 0, Some("no answer")), (BUNDLE_PART_BYTES_MAX, 3, None)]
        );
        let packed = std::fs::File::open(&path).unwrap();
        let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(packed));
        let mut entries = tar.entries().unwrap();
        let mut next = || {
            let mut entry = entries.next().unwrap().unwrap();
            let mut text = String::new();
            let name = entry.path().unwrap().display().to_string();
            entry.read_to_string(&mut text).unwrap();
            (name, text.len())
        };
        assert_eq!(next(), ("top/whole.txt".to_owned(), 4));
        assert_eq!(next(), ("top/lost.json.error.txt".to_owned(), 10));
    }
}
