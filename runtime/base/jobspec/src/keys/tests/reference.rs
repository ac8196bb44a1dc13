//! The reference pages, made from the descriptions.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::Value as Json;

use super::super::{BlockForm, BlockSchema, Field, FieldBounds, FieldShape, Keys as _, MOST};
use super::{AgentKeys, Described, JobKeys, TrustFileKeys, blocks};
use ostler_model::config::{GcConfig, LimitOverrides, WasmConfig};
use ostler_model::isolation::USER_DEFAULT;
use ostler_model::job::HealthPolicy;
use ostler_model::limits::{
    DEVICE_STATS_INTERVAL_DEFAULT, DYNAMIC_USERS, GC_DISK_PERCENT_DEFAULT,
    GC_INODE_PERCENT_DEFAULT, GC_INTERVAL_DEFAULT, GC_MAX_ALLOCS_DEFAULT, GC_PARALLEL_DEFAULT, KIB,
    MIB, PluginLimits, TASK_PROCESSES_MAX,
};
use ostler_testing::golden::has_text;

/// What holds where a `gc` block says nothing.
pub(crate) fn gc_defaults() -> GcConfig {
    GcConfig {
        interval: Some(GC_INTERVAL_DEFAULT),
        disk_usage_percent: Some(GC_DISK_PERCENT_DEFAULT),
        inode_usage_percent: Some(GC_INODE_PERCENT_DEFAULT),
        max_allocs: Some(GC_MAX_ALLOCS_DEFAULT),
        parallel: Some(GC_PARALLEL_DEFAULT),
    }
}

/// What holds where a `wasm` block says nothing.
pub(crate) fn wasm_defaults() -> WasmConfig {
    WasmConfig { tasks_max: None, dense: Some(false) }
}

/// What holds where a `limits` block says nothing.
pub(crate) fn limit_defaults() -> LimitOverrides {
    let default = PluginLimits::default();
    LimitOverrides {
        call_wall: Some(default.call_wall_max),
        call_cpu: Some(default.call_cpu_max),
        memory_mb: Some(default.memory_bytes_max / MIB),
        table_elements: Some(default.table_elements_max),
        instances: Some(default.instances_max),
        memories: Some(default.memories_max),
        tables: Some(default.tables_max),
        file_mb: Some(default.compile.file_bytes_max / MIB),
        compile_memory_mb: Some(default.compile.address_space_bytes_max / MIB),
        compile_cpu: Some(default.compile.cpu_max),
        compile_wall: Some(default.compile.wall_max),
        host_call_kb: Some(default.host_call_bytes_max / KIB),
        transfer_kb: Some(default.transfer_bytes_max / KIB),
        host_calls: Some(default.host_calls_max),
        answer_kb: Some(default.answer_bytes_max / KIB),
        log_kb_per_second: Some(default.log_bytes_per_second / KIB),
        handles: Some(default.handles_max),
        random_kb: Some(default.random_bytes_max / KIB),
        recorded_calls: Some(default.recorded_calls_max),
    }
}

#[test]
fn defaults_in_words_are_those_of_the_limits() {
    let words = |schema: &BlockSchema, key: &str| {
        schema.fields.iter().find(|field| field.hcl == key).unwrap().doc.unless.to_owned()
    };
    let time = |time: Duration| format!("`{}`", humantime::format_duration(time));
    let stats = words(AgentKeys::SCHEMA, "device_stats_interval");
    assert_eq!(stats, time(DEVICE_STATS_INTERVAL_DEFAULT));
    let all = blocks(AgentKeys::SCHEMA);
    let isolation = all.iter().find(|block| block.names == ["isolation"]).unwrap();
    assert_eq!(words(isolation.schema, "processes_max"), format!("`{TASK_PROCESSES_MAX}`"));
    let user = words(isolation.schema, "user");
    assert!(user.contains(&format!("`{USER_DEFAULT}`")), "{user}");
    let users = all.iter().find(|block| block.names == ["users"]).unwrap().schema;
    assert_eq!(words(users, "dynamic_user_min"), format!("`{}`", DYNAMIC_USERS.start()));
    assert_eq!(words(users, "dynamic_user_max"), format!("`{}`", DYNAMIC_USERS.end()));
    let all = blocks(JobKeys::SCHEMA);
    let update = all.iter().find(|block| block.names == ["update"]).unwrap().schema;
    let health = HealthPolicy::default();
    for (key, default) in [
        ("health_check", "`checks`".to_owned()),
        ("min_healthy_time", time(health.min_healthy_time)),
        ("healthy_deadline", time(health.healthy_deadline)),
    ] {
        assert_eq!(words(update, key), format!("the job's; {default}"));
    }
}

#[test]
fn what_a_plugin_may_use_by_default_is_what_the_limits_say() {
    let default = PluginLimits::default();
    assert_eq!(limit_defaults().apply(default.clone()), default);
}

/// What stands in the reference for the default of a key.
pub(super) fn default(schema: &BlockSchema, index: usize) -> Option<String> {
    let field = &schema.fields[index];
    if !field.doc.unless.is_empty() {
        return Some(field.doc.unless.to_owned());
    }
    let of_block = || (schema.defaults)().into_iter().nth(index).flatten();
    match (field.doc.default)().or_else(of_block) {
        Some(value) => Some(shown(field, &value)),
        None => field.needs.map(|_| "needed".to_owned()),
    }
}

fn shown(field: &Field, value: &Json) -> String {
    match (field.shape, value) {
        (FieldShape::Duration, value) => {
            let time = Duration::from_nanos(value.as_u64().unwrap());
            format!("`{}`", humantime::format_duration(time))
        }
        (_, Json::String(text)) => format!("`{text}`"),
        (_, value) => format!("`{value}`"),
    }
}

fn words(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

fn shape(field: &Field, all: &[Described]) -> String {
    let times = |least, most| {
        let [least, most] = [least, most].map(humantime::format_duration);
        format!("duration, `{least}` to `{most}`")
    };
    match (field.shape, field.bounds) {
        (FieldShape::Text, _) => "text".to_owned(),
        (FieldShape::Word(known), _) => words(known),
        (
            FieldShape::Integer,
            FieldBounds::Whole(least, MOST) | FieldBounds::NotZero(least, MOST),
        ) => {
            format!("whole number from {least}")
        }
        (
            FieldShape::Integer,
            FieldBounds::Whole(least, most) | FieldBounds::NotZero(least, most),
        ) => {
            format!("whole number, {least} to {most}")
        }
        (FieldShape::Integer, _) => panic!("{} is not bounded", field.hcl),
        (FieldShape::Bool, _) => "`true`, `false`".to_owned(),
        (FieldShape::Duration, FieldBounds::Time(least, most)) => times(least, most),
        (FieldShape::Duration, _) => "duration".to_owned(),
        (FieldShape::TextList, _) => "list of texts".to_owned(),
        (FieldShape::TextLists, _) => "list of lists of texts".to_owned(),
        (FieldShape::TextMap, _) => "names and texts".to_owned(),
        (FieldShape::TextListMap, _) => "names and lists of texts".to_owned(),
        (FieldShape::Free, _) => "anything".to_owned(),
        (FieldShape::Any, _) => "value".to_owned(),
        (FieldShape::Block { schema, form }, _) => {
            let what = if form != BlockForm::One { "blocks" } else { "block" };
            let label = if schema.label.is_some() { " with a label" } else { "" };
            let name = all.iter().find(|block| block.schema.what == schema.what).unwrap();
            format!("[{what}](#{}){label}", name.title().replace(", ", "-"))
        }
        (FieldShape::Unsupported { .. } | FieldShape::Served, _) => {
            panic!("{} is not there", field.hcl)
        }
    }
}

/// The section of one block.
fn section(out: &mut String, block: &Described, all: &[Described], root: &str, json: bool) {
    let schema = block.schema;
    if block.names.is_empty() {
        writeln!(out, "\n## {root}\n").unwrap();
    } else {
        let label = if schema.label.is_some() { " \"…\"" } else { "" };
        let outer = block.around.iter().map(|outer| {
            let title = all.iter().find(|block| block.schema.what == outer.what).unwrap().title();
            if title.is_empty() { root.to_owned() } else { title }
        });
        let outer: Vec<String> = outer.map(|title| format!("*{title}*")).collect();
        let names = block.names.iter().map(|name| format!("`{name}{label} {{ … }}`"));
        let names = names.collect::<Vec<_>>().join(" and ");
        writeln!(out, "\n## {}\n\n{names} in {}.\n", block.title(), outer.join(", ")).unwrap();
    }
    let (head, line) = if json { (" in JSON |", "---|") } else { ("", "") };
    writeln!(out, "| key |{head} value | without it | what it does |\n|---|{line}---|---|---|")
        .unwrap();
    for (index, field) in schema.fields.iter().enumerate() {
        if matches!(field.shape, FieldShape::Unsupported { .. } | FieldShape::Served) {
            continue;
        }
        let name =
            |name: &str| if name.is_empty() { "–".to_owned() } else { format!("`{name}`") };
        let second = if json { format!(" {} |", name(field.json)) } else { String::new() };
        let default = default(schema, index).unwrap_or_else(|| "none".to_owned());
        let (key, shape, doc) = (name(field.hcl), shape(field, all), sentences(field.doc.text));
        writeln!(out, "| {key} |{second} {shape} | {default} | {doc} |").unwrap();
    }
    let later: Vec<String> = schema.fields.iter().filter_map(unsupported).collect();
    if !later.is_empty() {
        writeln!(out, "\nNot supported: {}.", later.join(", ")).unwrap();
    }
    let served = schema.fields.iter().filter(|field| matches!(field.shape, FieldShape::Served));
    let served: Vec<&str> = served.map(|field| field.json).collect();
    if !served.is_empty() {
        writeln!(out, "\nIn JSON, read by servers and skipped: {}.", words(&served)).unwrap();
    }
}

/// Lines of a description as one, of which some go on with a comma or a semicolon.
fn sentences(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.replace(" ,", ",").replace(" ;", ";")
}

#[test]
fn a_line_that_goes_on_with_a_comma_has_no_blank_before_it() {
    assert_eq!(sentences(" `a`\n, `b`.\n What with\n; or not.\n"), "`a`, `b`. What with; or not.");
}

/// A key that Nomad has: what of it is accepted, and the next step.
fn unsupported(field: &Field) -> Option<String> {
    let FieldShape::Unsupported { hint, neutral, missed, .. } = field.shape else { return None };
    let name = if field.hcl.is_empty() { field.json } else { field.hcl };
    let scalar = |value: &&&str| !value.starts_with('{');
    let known = neutral.iter().chain(missed.iter().flat_map(|missed| missed.values));
    let known: Vec<&str> = known.filter(scalar).copied().collect();
    let only = (!known.is_empty()).then(|| format!("only {}", words(&known)));
    let instead = missed.map(|missed| missed.instead.to_owned());
    let said = [only, instead, Some(hint.to_owned()).filter(|hint| !hint.is_empty())];
    let said: Vec<String> = said.into_iter().flatten().collect();
    let json = if field.hcl.is_empty() { " in JSON" } else { "" };
    let said = if said.is_empty() { String::new() } else { format!(" ({})", said.join("; ")) };
    Some(format!("`{name}`{json}{said}"))
}

fn page(intro: &str, roots: &[(&str, &'static BlockSchema)]) -> String {
    let mut out = intro.trim_start().to_owned();
    for (root, schema) in roots {
        let json = schema.fields.iter().any(|field| !field.json.is_empty());
        let all = blocks(schema);
        for block in &all {
            section(&mut out, block, &all, root, json);
        }
    }
    out
}

const JOB_FILE: &str = r#"
# The keys of a job file

A job file is HCL as Nomad has it, or the JSON of Nomad's API. This page has every key; it is written from
what the agent reads by (`OSTLER_BLESS=1 cargo test -p ostler-jobspec`). What is here is there since 0.1.
`ostler job validate FILE` says everything that is wrong with a file.

```hcl
job "hello" {
  type = "batch"
  group "main" {
    task "say" {
      driver = "exec"
      config {
        command = "/bin/echo"
        args    = ["hello"]
      }
    }
  }
}
```

A *duration* is a text such as `"15s"` or `"1h30m"`; in JSON, nanoseconds too. A key that Nomad has and Ostler
does not is an error that says so, unless its value means the same as leaving it out. Variables, loops, functions and
`dynamic` blocks are in [the language of job files](job-language.md).
"#;

const AGENT_CONFIG: &str = r#"
# The keys of the agent's configuration

The file that `--config` names, in HCL. This page has every key of it, and of the trust file; it is written
from what the agent reads by (`OSTLER_BLESS=1 cargo test -p ostler-jobspec`). What is here is there since
0.1. Relative paths are relative to the file. Nothing has to be there: an empty file is the default.

```hcl
name       = "edge-7"
plugin_dir = "plugins"

gc {
  interval = "1m"
}

plugin "nvidia" {
  config {
    program = "/opt/nvidia/bin/nvidia-smi"
  }
  grants {
    command "/opt/nvidia/bin/nvidia-smi" { args = [["--query-gpu=*", "--format=csv,noheader,nounits"]] }
    files "/proc/driver/nvidia" {}
    files "/sys" {}
  }
  limits { call_wall = "15s" }
}
```

[What a plugin may do](grants.md) says what each grant gives and what it never does, [whom an agent
trusts](trust.md) what the trust file is for, and [plugins that fail](plugins.md) what `failure` and
`upgrade` are about. A *duration* is a text such as `"15s"` or `"1h30m"`.
"#;

#[test]
fn the_reference_pages_are_those_of_the_descriptions() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs");
    let roots =
        [("The agent's file", AgentKeys::SCHEMA), ("The trust file", TrustFileKeys::SCHEMA)];
    for (name, page) in [
        ("job-file.md", page(JOB_FILE, &[("job", JobKeys::SCHEMA)])),
        ("agent-config.md", page(AGENT_CONFIG, &roots)),
    ] {
        let current = has_text(&docs.join(name), &page).unwrap();
        assert!(current, "docs/{name} is old; OSTLER_BLESS=1 writes it anew");
    }
}
