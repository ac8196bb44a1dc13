//! A device plugin that misbehaves as its configuration says: `{"mode": "spin"}` for
//! `fingerprint`, and `reserve`, `release` and `stats` likewise by their own names.
//!
//! One mode behaves: `cards` answers eight devices with four attributes each, for measurements.
//!
//! Modes of every function: those of [`misbehave`]. Modes of `fingerprint` besides:
//! `long-answer`, `huge-string`, `duplicate-ids`, `duplicate-groups`, `empty-names`, `empty-id`,
//! `nan`, `bad-unit`, `unit-on-text`, `error`, `forged-error`, `forged-texts`, `forged-name`, `endless-error`, `moody` (another answer each time), and those of
//! [`lies`]. Of `reserve`: `long-answer`, `empty-paths`, `bad-permissions`, `error`. Of `stats`:
//! `nan`, `foreign-ids`, `deep`. Of `describe`: `bad-version`, `bad-name`, `deep-schema`,
//! `endless-schema`, `exploding-schema`, `pattern-schema`, `large-pattern-schema`.
//!
//! What `answer` has is answered besides, as it is: `groups` of [vendor, type, name] with one
//! instance `a`, and of a reservation `env` of [name, value], `mounts` of [path on the node, path in
//! the task], writable, `nodes` of [path, permissions]. `name` and `version` are those it gives itself.

use misbehave::{gigabyte, misbehave};
use ostler_sdk::device::prelude::*;
use serde::Deserialize;

mod lies;
mod misbehave;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Config {
    mode: String,
    describe: String,
    reserve: String,
    release: String,
    stats: String,
    name: Option<String>,
    version: Option<String>,
    answer: Answer,
}

/// What the host is to be made to do.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Answer {
    groups: Vec<[String; 3]>,
    env: Vec<[String; 2]>,
    mounts: Vec<[String; 2]>,
    nodes: Vec<[String; 2]>,
}

struct Hostile;

/// Name and version, one behind the other: tests find both in the file and write others.
const WHO: &str = concat!("hostile-device", env!("CARGO_PKG_VERSION"));

/// A device in a group of its own, because attributes belong to groups.
fn card(number: u32) -> Group {
    Group::new("bench", "gpu", format!("card-{number}"))
        .instances([Instance::healthy(format!("GPU-{number}"))])
        .attributes([
            NamedAttribute::new("memory", 81_920_i64).unit("MiB"),
            NamedAttribute::new("clock", 1_980_i64).unit("MHz"),
            NamedAttribute::new("driver_version", "570.86.15"),
            NamedAttribute::new("display", false),
        ])
}

impl DevicePlugin for Hostile {
    fn describe() -> DeviceInfo {
        let config = host::config::<Config>().unwrap_or_default();
        let mode = config.describe;
        misbehave(&mode);
        let (name, version) = WHO.split_at("hostile-device".len());
        let name = config.name.unwrap_or_else(|| name.to_owned());
        let version = config.version.unwrap_or_else(|| version.to_owned());
        let schema = |text: &str| DeviceInfo::new(&name, &version).config_schema(text);
        match mode.as_str() {
            "bad-version" => DeviceInfo::new(name, "9".repeat(1_000)),
            "bad-name" => DeviceInfo::new("../../etc/passwd", "1.0.0"),
            "deep-schema" => schema(&format!("{}{}", r#"{"not":"#.repeat(5_000), "{}")),
            "endless-schema" => schema(r##"{"allOf": [{"$ref": "#"}]}"##),
            "exploding-schema" => schema(&lies::exploding_schema(40)),
            "pattern-schema" => schema(&lies::pattern_schema(1_000)),
            "large-pattern-schema" => schema(&lies::pattern_schema(40)),
            _ => schema(r#"{"type": "object"}"#),
        }
    }

    fn fingerprint() -> Result<Fingerprint> {
        let Config { mode, answer, .. } = host::config()?;
        misbehave(&mode);
        if !answer.groups.is_empty() {
            let group = |[vendor, kind, name]: [String; 3]| {
                Group::new(vendor, kind, name).instances([Instance::healthy("a")])
            };
            let groups = answer.groups.into_iter().map(group);
            return Ok(Fingerprint::new(Health::healthy()).groups(groups).check_after(100));
        }
        let group = Group::new("hostile", "thing", "one");
        let two = group.clone().instances(["a", "b"].map(Instance::healthy));
        let with = |name: &str, attribute: NamedAttribute| {
            Group { name: name.to_owned(), ..two.clone() }.attributes([attribute])
        };
        let groups = match mode.as_str() {
            "long-answer" => {
                vec![group.instances((0..1_000_000_u32).map(|n| Instance::healthy(n.to_string())))]
            }
            "huge-string" => vec![group.instances([Instance::healthy("x".repeat(16 << 20))])],
            "duplicate-ids" => vec![group.instances(["a", "a"].map(Instance::healthy))],
            "duplicate-groups" => vec![two.clone(), two.clone()],
            "empty-names" => vec![Group { vendor: String::new(), ..two.clone() }],
            "empty-id" => vec![group.instances([Instance::healthy("")])],
            "nan" => vec![with("nan", NamedAttribute::new("x", f64::NAN))],
            "bad-unit" => vec![with("unit", NamedAttribute::new("x", 1_i64).unit("parsec"))],
            "unit-on-text" => vec![with("unit", NamedAttribute::new("x", "much").unit("GiB"))],
            "error" => return Err(Error::fatal("as asked")),
            "forged-error" => {
                host::log::error(lies::FORGED);
                return Err(Error::recoverable(lies::FORGED));
            }
            "forged-texts" => {
                let ill = Instance::unhealthy("a", lies::FORGED);
                vec![group.instances([ill]).attributes([NamedAttribute::new("x", lies::FORGED)])]
            }
            "forged-name" => {
                let name = NamedAttribute::new("\u{202e}eman", true);
                vec![two.clone().attributes([name])]
            }
            "endless-error" => return Err(Error::recoverable("x".repeat(512 << 10))),
            "bad-utf8" | "overlapping" | "gigabyte" | "gigabyte-list" => {
                vec![group.instances(lies::instances(&mode, gigabyte()))]
            }
            "moody" => {
                let n = clock::monotonic() % 7;
                (0..n)
                    .map(|n| Group { name: format!("{n}-{}", clock::monotonic()), ..two.clone() })
                    .collect()
            }
            "cards" => (0..8).map(card).collect(),
            _ => vec![two.clone()],
        };
        Ok(Fingerprint::new(Health::healthy()).groups(groups).check_after(100))
    }

    fn reserve(claim: Claim) -> Result<Reservation> {
        let Config { reserve: mode, answer, .. } = host::config()?;
        misbehave(&mode);
        let empty = answered(answer);
        Ok(match mode.as_str() {
            "long-answer" => {
                (0..1_000_000_u32).fold(empty, |so_far, n| so_far.env(format!("VARIABLE_{n}"), "x"))
            }
            "empty-paths" => empty.mount(Mount::read_only("", "")),
            "bad-permissions" => empty.device_node(DeviceNode {
                host_path: "/dev/null".to_owned(),
                task_path: "/dev/null".to_owned(),
                permissions: "rwx".to_owned(),
            }),
            "error" => return Err(Error::recoverable("as asked")),
            _ => empty.env("HOSTILE_IDS", claim.ids.join(",")),
        })
    }

    fn release(_claim: Claim) -> Result<()> {
        misbehave(&host::config::<Config>()?.release);
        Ok(())
    }

    fn stats() -> Result<Vec<GroupStats>> {
        let mode = host::config::<Config>()?.stats;
        misbehave(&mode);
        let ids: &[&str] = if mode == "foreign-ids" { &["zz"] } else { &["a", "b"] };
        let value = if mode == "nan" { f64::NAN } else { 1.5 };
        let value = StatValue { float_numerator: Some(value), ..StatValue::empty() };
        if mode == "deep" {
            let path = (0..100_000).map(|n: u32| n.to_string()).collect();
            let stats = vec![StatEntry { path, value: value.clone() }];
            let deep = InstanceStats { stats, ..InstanceStats::new("a", None) };
            return Ok(vec![lies::measured(vec![deep])]);
        }
        let instances = ids.iter().map(|id| InstanceStats::new(*id, Some(value.clone())));
        Ok(vec![lies::measured(instances.collect())])
    }
}

fn answered(answer: Answer) -> Reservation {
    let env = answer.env.into_iter();
    let given = env.fold(Reservation::empty(), |given, [name, value]| given.env(name, value));
    let mounts = answer.mounts.into_iter();
    let given = mounts.fold(given, |given, [host_path, task_path]| {
        given.mount(Mount { host_path, task_path, read_only: false })
    });
    answer.nodes.into_iter().fold(given, |given, [path, permissions]| {
        let node = DeviceNode { host_path: path.clone(), task_path: path, permissions };
        given.device_node(node)
    })
}

ostler_sdk::export_device!(Hostile);
