//! Device plugin `files`: each regular file of a granted directory is a device. A stand-in for
//! real hardware in examples and tests, and the shortest device plugin to read.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::UNIX_EPOCH;

use ostler_sdk::device::prelude::*;
use plugin_support::groups;
use serde::Deserialize;

const SCHEMA: &str = r#"{
  "type": "object",
  "required": ["dir"],
  "additionalProperties": false,
  "properties": {
    "dir": {"type": "string", "minLength": 1, "description": "Granted directory, absolute."},
    "name": {"type": "string", "minLength": 1, "default": "files", "description": "Name of the device group."},
    "writable": {"type": "boolean", "default": false, "description": "Tasks may write the files they are assigned."},
    "task_dir": {
      "type": "string", "pattern": "^/", "default": "/local/devices",
      "description": "Where a task sees its files; the value of dir shows them to native tasks too."
    },
    "ignored_ids": {
      "type": "array", "items": {"type": "string", "minLength": 1},
      "description": "Files left out, by name."
    }
  }
}"#;

/// The `config` of the agent's `plugin` block.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    dir: String,
    #[serde(default = "default_name")]
    name: String,
    #[serde(default)]
    writable: bool,
    #[serde(default = "default_task_dir")]
    task_dir: String,
    #[serde(default)]
    ignored_ids: Vec<String>,
}

fn default_name() -> String {
    "files".to_owned()
}

fn default_task_dir() -> String {
    "/local/devices".to_owned()
}

struct Files;

impl DevicePlugin for Files {
    fn describe() -> DeviceInfo {
        DeviceInfo::new("files", env!("CARGO_PKG_VERSION")).config_schema(SCHEMA)
    }

    fn fingerprint() -> Result<Fingerprint> {
        let config: Config = host::config()?;
        let files = list(&config)?.into_iter().map(Instance::healthy);
        let group = Group::new("ostler", "file", config.name).instances(files);
        let group = group.attributes([NamedAttribute::new("writable", config.writable)]);
        let group = Some(group).filter(|group| !group.instances.is_empty());
        let found = Fingerprint::new(Health::healthy()).groups(group);
        Ok(found.check_after(5_000).watch_path(config.dir))
    }

    fn reserve(claim: Claim) -> Result<Reservation> {
        let config: Config = host::config()?;
        let Config { dir, task_dir, .. } = &config;
        let mut reservation = Reservation::empty();
        let mut paths = vec![];
        for id in claim.ids {
            if !fit(&id, &config.ignored_ids) || look(dir, id.clone()).is_none() {
                return Err(Error::not_found(format!("no file {id:?} in {dir}")));
            }
            let task_path = format!("{}/{id}", task_dir.trim_end_matches('/'));
            let mount = Mount::read_only(format!("{dir}/{id}"), &task_path);
            reservation = reservation.mount(Mount { read_only: !config.writable, ..mount });
            paths.push(task_path);
        }
        Ok(reservation.env("FILE_DEVICE_PATHS", paths.join(",")))
    }

    fn stats() -> Result<Vec<GroupStats>> {
        let config: Config = host::config()?;
        let measure = |file: File| {
            let size = StatValue::int(file.bytes, "B", "size");
            let stats = InstanceStats::new(file.id, Some(size.clone())).stat("size", size);
            match file.modified {
                Some(at) => stats.stat("modified", StatValue::int(at, "s", "changed, since 1970")),
                None => stats,
            }
        };
        let files = list(&config)?.into_iter().filter_map(|id| look(&config.dir, id));
        let instances: Vec<_> = files.map(measure).collect();
        let stats = GroupStats {
            vendor: "ostler".to_owned(),
            type_: "file".to_owned(),
            name: config.name,
            instances,
        };
        Ok(if stats.instances.is_empty() { vec![] } else { vec![stats] })
    }
}

struct File {
    id: String,
    bytes: i64,
    /// Seconds since 1970.
    modified: Option<i64>,
}

/// The devices of the directory, sorted; at most as many as the agent takes of a group. A
/// directory that is not there holds none.
fn list(config: &Config) -> Result<Vec<String>> {
    let Config { dir, ignored_ids, .. } = config;
    let cannot_read = |error| Error::recoverable(format!("cannot read {dir}: {error}"));
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.map_err(cannot_read)?,
    };
    let mut ids = vec![];
    for entry in entries {
        let entry = entry.map_err(cannot_read)?;
        // The entry tells the type: to ask of each file would be a call out of the sandbox each.
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            ids.extend(entry.file_name().into_string().ok().filter(|id| fit(id, ignored_ids)));
        }
    }
    ids.sort();
    let most = groups::INSTANCES_MAX;
    if ids.len() > most {
        log::warn(format!(
            "{dir} has {} files; only the first {most} are offered as devices",
            ids.len()
        ));
        ids.truncate(most);
    }
    Ok(ids)
}

/// Whether a name can be an id and a part of a list. Hidden files are being written, or somebody's
/// notes.
fn fit(id: &str, ignored: &[String]) -> bool {
    groups::name(id).as_deref() == Some(id)
        && !id.starts_with('.')
        && !id.contains(['/', ','])
        && !ignored.iter().any(|name| name == id)
}

/// A regular file; `None` when it went away in between. What a link points to is no device.
fn look(dir: &str, id: String) -> Option<File> {
    let about = fs::symlink_metadata(Path::new(dir).join(&id)).ok().filter(|it| it.is_file())?;
    let age = about.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    Some(File {
        id,
        bytes: i64::try_from(about.len()).unwrap_or(i64::MAX),
        modified: age.and_then(|age| i64::try_from(age.as_secs()).ok()),
    })
}

ostler_sdk::export_device!(Files);

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests;
