//! The agent's configuration file: the same syntax, machinery and messages as a job file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::diagnostic::{Diagnostics, Sink, Span, shown};
use super::super::schema::{Field, Schema, Shape};
use super::super::tree::{Block, Body};
use super::super::units::parse_duration;
use super::super::{Format, hcl};
use super::grants::{GRANTS, grants};
use super::job::checked;
use super::trust::{REGISTRY, TRUST, digest_at, registries, source, trust};
use super::{Context, Reader};
use ostler_model::config::{
    AgentConfig, ConfigOrigin, FailurePolicy, GcConfig, LimitOverrides, PluginBlock, QuarantineFor,
    UpgradeMode,
};
use ostler_model::ids::PluginName;
use ostler_model::limits::{
    CONFIG_FILE_BYTES_MAX, GUEST_CORE_INSTANCES_MAX, GUEST_MEMORIES_MAX, GUEST_TABLES_MAX, MIB,
    PLUGIN_FILE_BYTES_MAX, PLUGIN_RING_CALLS_MAX, PLUGIN_STRIKES_KEPT_MAX, QUARANTINE_MAX,
};

/// Deadline of a call: below it no guest can answer, above it nobody waits for a plugin.
const CALL_WALL: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(120);
/// Processor time of a compile child: the kernel counts seconds.
const COMPILE_CPU: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(600);
/// Wall time of a compile child.
const COMPILE_WALL: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(900);
/// Below this the compiler itself does not start.
const COMPILE_MEMORY_MB: RangeInclusive<i64> = 256..=64 * 1_024;
/// Parts of a component: the pool of instances has a place for so many.
const INSTANCES: RangeInclusive<i64> = 1..=GUEST_CORE_INSTANCES_MAX as i64;
const MEMORIES: RangeInclusive<i64> = 1..=GUEST_MEMORIES_MAX as i64;
const TABLES: RangeInclusive<i64> = 1..=GUEST_TABLES_MAX as i64;
/// Files are read up to here.
const FILE_MB: RangeInclusive<i64> = 1..=(PLUGIN_FILE_BYTES_MAX / MIB) as i64;
/// Ranges of the other limits. The upper ends keep one plugin from taking the whole machine.
const HOST_CALL_KB: RangeInclusive<i64> = 1..=64 * 1_024;
const MEMORY_MB: RangeInclusive<i64> = 1..=4_096;
const TABLE_ELEMENTS: RangeInclusive<i64> = 1..=40_000;
const TRANSFER_KB: RangeInclusive<i64> = 1..=256 * 1_024;
const HOST_CALLS: RangeInclusive<i64> = 1..=100_000_000;
const ANSWER_KB: RangeInclusive<i64> = 1..=64 * 1_024;
const LOG_KB_PER_SECOND: RangeInclusive<i64> = 1..=64 * 1_024;
const HANDLES: RangeInclusive<i64> = 1..=100_000;
const RANDOM_KB: RangeInclusive<i64> = 1..=1_024;
const RECORDED_CALLS: RangeInclusive<i64> = 0..=PLUGIN_RING_CALLS_MAX as i64;
/// How often something may be done again and again.
const INTERVAL: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3_600);
/// Ranges of the failure policy: no plugin is asked without pause, and none is as good as given up.
const RETRY: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3_600);
const STRIKE_WINDOW: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 3_600);
/// Up to what is kept of them.
const STRIKES: RangeInclusive<i64> = 1..=PLUGIN_STRIKES_KEPT_MAX as i64;
const QUARANTINE: RangeInclusive<Duration> = Duration::from_secs(1)..=QUARANTINE_MAX;
/// Ranges of the garbage collection.
const PERCENT: RangeInclusive<i64> = 1..=100;
const GC_ALLOCS: RangeInclusive<i64> = 1..=100_000;
const GC_PARALLEL: RangeInclusive<i64> = 1..=64;

pub(super) const fn field(name: &'static str, shape: Shape) -> Field {
    Field { hcl: name, json: "", shape }
}

pub(super) const fn once(name: &'static str, schema: &'static Schema) -> Field {
    field(name, Shape::Block { schema, label: None, many: false })
}

pub(super) const fn labelled(name: &'static str, schema: &'static Schema) -> Field {
    field(name, Shape::Block { schema, label: Some("Name"), many: true })
}

const fn hinted(name: &'static str, hint: &'static str) -> Field {
    field(name, Shape::Unsupported { hint, neutral: &[], missed: None })
}

static AGENT: Schema = Schema {
    what: "the agent's configuration",
    fields: &[
        field("name", Shape::Text),
        field("datacenter", Shape::Text),
        field("host_ip", Shape::Text),
        field("data_dir", Shape::Text),
        field("plugin_dir", Shape::Text),
        field("jobs_dir", Shape::Text),
        field("device_stats_interval", Shape::Duration),
        once("gc", &GC),
        field("meta", Shape::TextMap),
        once("trust", &TRUST),
        labelled("registry", &REGISTRY),
        labelled("plugin", &PLUGIN),
        hinted("client", "write meta at the top; the agent is always a client"),
        hinted("bind_addr", "host_ip is the address lent with ports"),
        hinted("region", ""),
        hinted("server", ""),
        hinted("log_level", "use -v or OSTLER_LOG"),
        hinted("ports", ""),
        hinted("addresses", ""),
        hinted("advertise", ""),
        hinted("telemetry", ""),
        hinted("tls", ""),
        hinted("acl", ""),
        hinted("consul", ""),
        hinted("vault", ""),
        hinted("limits", "limits of a plugin stand in its plugin block"),
    ],
};

static GC: Schema = Schema {
    what: "gc",
    fields: &[
        field("interval", Shape::Duration),
        field("disk_usage_threshold", Shape::Integer),
        field("inode_usage_threshold", Shape::Integer),
        field("max_allocs", Shape::Integer),
        field("parallel_destroys", Shape::Integer),
    ],
};

static PLUGIN: Schema = Schema {
    what: "a plugin block",
    fields: &[
        field("file", Shape::Text),
        field("source", Shape::Text),
        field("digest", Shape::Text),
        field("require_signature", Shape::Bool),
        field("enabled", Shape::Bool),
        field("config", Shape::Free),
        once("grants", &GRANTS),
        once("limits", &LIMITS),
        once("failure", &FAILURE),
        field("upgrade", Shape::Text),
        hinted("args", "a plugin is no program; use config"),
    ],
};

static LIMITS: Schema = Schema {
    what: "limits",
    fields: &[
        field("call_wall", Shape::Duration),
        field("call_cpu", Shape::Duration),
        field("memory_mb", Shape::Integer),
        field("table_elements", Shape::Integer),
        field("instances", Shape::Integer),
        field("memories", Shape::Integer),
        field("tables", Shape::Integer),
        field("file_mb", Shape::Integer),
        field("compile_memory_mb", Shape::Integer),
        field("compile_cpu", Shape::Duration),
        field("compile_wall", Shape::Duration),
        field("host_call_kb", Shape::Integer),
        field("transfer_kb", Shape::Integer),
        field("host_calls", Shape::Integer),
        field("answer_kb", Shape::Integer),
        field("log_kb_per_second", Shape::Integer),
        field("handles", Shape::Integer),
        field("random_kb", Shape::Integer),
        field("recorded_calls", Shape::Integer),
    ],
};

static FAILURE: Schema = Schema {
    what: "failure",
    fields: &[
        field("retry_first", Shape::Duration),
        field("retry_max", Shape::Duration),
        field("strike_window", Shape::Duration),
        field("strikes_max", Shape::Integer),
        field("quarantine", Shape::Text),
        field("upgrade_strikes", Shape::Integer),
        field("upgrade_window", Shape::Duration),
    ],
};

/// Read an agent's configuration, paths as they are written. An empty file is the default.
///
/// # Errors
/// Everything that is wrong, with places; never empty.
pub fn agent_config(input: &[u8], file: &Path) -> Result<AgentConfig, Diagnostics> {
    let name = file.display().to_string();
    let mut sink = Sink::default();
    let text = match text_of(input, CONFIG_FILE_BYTES_MAX, "the configuration", &mut sink) {
        Ok(text) => text,
        Err(before) => return Err(sink.finish(before, &name)),
    };
    let config = hcl::read(text, &mut sink)
        .map(|body| agent(body, &mut Context::new(&mut sink, Format::Hcl)));
    match config {
        Some(mut config) if sink.is_empty() => {
            let origins = config.plugins.values_mut().filter_map(|block| block.origin.as_mut());
            origins.for_each(|origin| in_lines(origin, &name, text));
            Ok(config)
        }
        _ => {
            if sink.is_empty() {
                sink.error(Span::default(), "the configuration cannot be used");
            }
            Err(sink.finish(text, &name))
        }
    }
}

/// What makes of a position in the text its line.
pub(super) fn lines_of(text: &str) -> impl Fn(&mut u32) {
    let breaks: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    move |at: &mut u32| {
        let before = breaks.partition_point(|end| *end < *at as usize);
        *at = u32::try_from(before + 1).unwrap_or(u32::MAX);
    }
}

/// Positions in the text become lines of the file.
fn in_lines(origin: &mut ConfigOrigin, file: &str, text: &str) {
    let line = lines_of(text);
    file.clone_into(&mut origin.file);
    line(&mut origin.line);
    origin.lines.values_mut().for_each(line);
}

/// The text, or what of it stands before the reported problem.
pub(super) fn text_of<'a>(
    input: &'a [u8],
    max: u64,
    what: &str,
    sink: &mut Sink,
) -> Result<&'a str, &'a str> {
    if u64::try_from(input.len()).is_ok_and(|bytes| bytes > max) {
        let message = format!("{what} has {} bytes; at most {max} are read", input.len());
        sink.error(Span::default(), message);
        return Err("");
    }
    let text = std::str::from_utf8(input).map_err(|error| {
        let at = error.valid_up_to();
        sink.error(Span::new(at, at + 1), "not a text file: this byte is not UTF-8");
        let before = input.get(..at).and_then(|bytes| std::str::from_utf8(bytes).ok());
        before.unwrap_or_default()
    })?;
    if let Some(at) = text.find('\0') {
        sink.error(Span::new(at, at + 1), "not a text file: it contains the character NUL");
        return Err(text);
    }
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

fn agent(body: Body, cx: &mut Context<'_>) -> AgentConfig {
    let mut reader = Reader::new(body, &AGENT, cx);
    let node_name = not_empty("name", &mut reader, cx).map(|(name, _)| name);
    let datacenter = not_empty("datacenter", &mut reader, cx).map(|(name, _)| name);
    let host_ip = not_empty("host_ip", &mut reader, cx).and_then(|(text, at)| {
        let address = text.parse::<IpAddr>();
        let message =
            || format!("{} is no IP address; write for example \"127.0.0.1\"", shown(&text));
        address.map_err(|_| cx.error(at, message())).ok()
    });
    let data_dir = path("data_dir", &mut reader, cx);
    let plugin_dir = path("plugin_dir", &mut reader, cx);
    let jobs_dir = path("jobs_dir", &mut reader, cx);
    let device_stats_interval = duration("device_stats_interval", INTERVAL, &mut reader, cx);
    let gc = reader.block("gc").map(|block| gc(block, cx)).unwrap_or_default();
    let node_meta = reader.text_map("meta", cx);
    let trust = reader.block("trust").map(|block| trust(block, cx)).unwrap_or_default();
    let registries = registries(reader.blocks("registry"), cx);
    let plugins = plugins(reader.blocks("plugin"), cx);
    reader.finish();
    AgentConfig {
        data_dir,
        plugin_dir,
        jobs_dir,
        gc,
        device_stats_interval,
        node_name,
        datacenter,
        host_ip,
        node_meta,
        trust,
        registries,
        plugins,
    }
}

fn gc(block: Block, cx: &mut Context<'_>) -> GcConfig {
    let mut reader = Reader::new(block.body, &GC, cx);
    let interval = duration("interval", INTERVAL, &mut reader, cx);
    let config = GcConfig {
        interval,
        disk_usage_percent: reader.number("disk_usage_threshold", PERCENT, cx),
        inode_usage_percent: reader.number("inode_usage_threshold", PERCENT, cx),
        max_allocs: reader.number("max_allocs", GC_ALLOCS, cx),
        parallel: reader.number("parallel_destroys", GC_PARALLEL, cx),
    };
    reader.finish();
    config
}

fn plugins(blocks: Vec<Block>, cx: &mut Context<'_>) -> BTreeMap<String, PluginBlock> {
    let mut plugins = BTreeMap::new();
    let mut names = BTreeSet::new();
    for mut block in blocks {
        let Some(label) = block.labels.drain(..).next() else {
            continue;
        };
        if !names.insert(label.name.clone()) {
            cx.error(label.span, format!("a plugin {} is here already", shown(&label.name)));
        }
        let name = checked(PluginName::new(label.name), label.span, cx);
        let plugin = plugin(block, cx);
        if let Some(name) = name {
            plugins.entry(name.into()).or_insert(plugin);
        }
    }
    plugins
}

fn plugin(block: Block, cx: &mut Context<'_>) -> PluginBlock {
    let offset = |span: Span| u32::try_from(span.start).unwrap_or(u32::MAX);
    let line = offset(block.key.span);
    let mut reader = Reader::new(block.body, &PLUGIN, cx);
    let file = path("file", &mut reader, cx);
    let source = source(&mut reader, cx);
    let digest = digest_at("digest", &mut reader, cx);
    let require_signature = reader.boolean("require_signature", cx);
    let enabled = reader.boolean("enabled", cx);
    let configured = reader.was_given("config");
    let (config, places) = reader.free_with_places("config", cx);
    let granted = reader.block("grants").map(|block| grants(block, cx));
    let limited = reader.block("limits").map(|block| limits(block, cx));
    let failing = reader.block("failure").map(|block| failure(block, cx));
    let upgrade = upgrade(&mut reader, cx);
    reader.finish();
    let lines = places.into_iter().map(|(path, at)| (path, offset(at))).collect();
    PluginBlock {
        file,
        source,
        digest,
        require_signature,
        enabled,
        config: configured.then_some(config),
        grants: granted,
        limits: limited.unwrap_or_default(),
        failure: failing.unwrap_or_default(),
        upgrade,
        origin: Some(ConfigOrigin { file: String::new(), line, lines }),
    }
}

fn limits(block: Block, cx: &mut Context<'_>) -> LimitOverrides {
    let mut reader = Reader::new(block.body, &LIMITS, cx);
    let call_wall = duration("call_wall", CALL_WALL, &mut reader, cx);
    let limits = LimitOverrides {
        call_wall,
        call_cpu: duration("call_cpu", CALL_WALL, &mut reader, cx),
        instances: reader.number("instances", INSTANCES, cx),
        memories: reader.number("memories", MEMORIES, cx),
        tables: reader.number("tables", TABLES, cx),
        file_mb: reader.number("file_mb", FILE_MB, cx),
        compile_memory_mb: reader.number("compile_memory_mb", COMPILE_MEMORY_MB, cx),
        compile_cpu: duration("compile_cpu", COMPILE_CPU, &mut reader, cx),
        compile_wall: duration("compile_wall", COMPILE_WALL, &mut reader, cx),
        host_call_kb: reader.number("host_call_kb", HOST_CALL_KB, cx),
        memory_mb: reader.number("memory_mb", MEMORY_MB, cx),
        table_elements: reader.number("table_elements", TABLE_ELEMENTS, cx),
        transfer_kb: reader.number("transfer_kb", TRANSFER_KB, cx),
        host_calls: reader.number("host_calls", HOST_CALLS, cx),
        answer_kb: reader.number("answer_kb", ANSWER_KB, cx),
        log_kb_per_second: reader.number("log_kb_per_second", LOG_KB_PER_SECOND, cx),
        handles: reader.number("handles", HANDLES, cx),
        random_kb: reader.number("random_kb", RANDOM_KB, cx),
        recorded_calls: reader.number("recorded_calls", RECORDED_CALLS, cx),
    };
    reader.finish();
    limits
}

fn failure(block: Block, cx: &mut Context<'_>) -> FailurePolicy {
    let mut reader = Reader::new(block.body, &FAILURE, cx);
    let default = FailurePolicy::default();
    let mut given = |name, range| duration(name, range, &mut reader, cx);
    let retry_first = given("retry_first", RETRY).unwrap_or(default.retry_first);
    // A long first wait without a bound of its own is its own bound.
    let retry_max = given("retry_max", RETRY).unwrap_or(default.retry_max.max(retry_first));
    let strike_window = given("strike_window", STRIKE_WINDOW).unwrap_or(default.strike_window);
    if retry_max < retry_first {
        let shown = humantime::format_duration(retry_first);
        cx.error(block.key.span, format!("retry_max must be at least retry_first, {shown}"));
    }
    let strikes_max = reader.number("strikes_max", STRIKES, cx).unwrap_or(default.strikes_max);
    let quarantine = quarantine(&mut reader, cx).unwrap_or(default.quarantine);
    let upgrade_strikes =
        reader.number("upgrade_strikes", STRIKES, cx).unwrap_or(default.upgrade_strikes);
    let upgrade_window = duration("upgrade_window", STRIKE_WINDOW, &mut reader, cx)
        .unwrap_or(default.upgrade_window);
    reader.finish();
    FailurePolicy {
        retry_first,
        retry_max,
        strike_window,
        strikes_max,
        quarantine,
        upgrade_strikes,
        upgrade_window,
    }
}

/// `upgrade`: who does it.
fn upgrade(reader: &mut Reader, cx: &mut Context<'_>) -> UpgradeMode {
    match reader.text("upgrade", cx) {
        None => UpgradeMode::default(),
        Some((text, _)) if text == "manual" => UpgradeMode::Manual,
        Some((text, _)) if text == "auto" => UpgradeMode::Auto,
        Some((_, at)) => {
            cx.error(at, "upgrade must be \"manual\" or \"auto\"");
            UpgradeMode::default()
        }
    }
}

/// `quarantine`: a duration, or `manual`.
fn quarantine(reader: &mut Reader, cx: &mut Context<'_>) -> Option<QuarantineFor> {
    let (text, at) = reader.text("quarantine", cx)?;
    if text == "manual" {
        return Some(QuarantineFor::Manual);
    }
    let given = parse_duration(&text).ok().filter(|time| QUARANTINE.contains(time));
    if given.is_none() {
        let (least, most) = (
            humantime::format_duration(*QUARANTINE.start()),
            humantime::format_duration(*QUARANTINE.end()),
        );
        cx.error(at, format!("quarantine must be {least} to {most}, or \"manual\""));
    }
    given.map(QuarantineFor::Time)
}

/// A duration within `range`.
fn duration(
    name: &'static str,
    range: RangeInclusive<Duration>,
    reader: &mut Reader,
    cx: &mut Context<'_>,
) -> Option<Duration> {
    let (duration, at) = reader.duration(name, cx)?;
    if range.contains(&duration) {
        return Some(duration);
    }
    let (least, most) =
        (humantime::format_duration(*range.start()), humantime::format_duration(*range.end()));
    cx.error(at, format!("{name} must be {least} to {most}"));
    None
}

/// A text that must say something.
fn not_empty(
    name: &'static str,
    reader: &mut Reader,
    cx: &mut Context<'_>,
) -> Option<(String, Span)> {
    let (text, at) = reader.text(name, cx)?;
    if text.trim().is_empty() || text.contains('\0') {
        cx.error(at, format!("{name} must not be empty; leave it out for the default"));
        return None;
    }
    Some((text, at))
}

pub(super) fn path(
    name: &'static str,
    reader: &mut Reader,
    cx: &mut Context<'_>,
) -> Option<PathBuf> {
    not_empty(name, reader, cx).map(|(text, _)| PathBuf::from(text))
}
