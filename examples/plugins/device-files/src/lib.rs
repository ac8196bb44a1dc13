//! Device plugin `files`: each regular file of a granted directory is a device. A stand-in for
//! real hardware in examples and tests, and the shortest device plugin to read.

use std::fs;
use std::io::ErrorKind;
use std::time::UNIX_EPOCH;

use ostler_sdk::device::prelude::*;
use serde::Deserialize;

const SCHEMA: &str = r#"{
  "type": "object",
  "required": ["dir"],
  "additionalProperties": false,
  "properties": {
    "dir": {"type": "string", "minLength": 1, "description": "Granted directory, absolute."},
    "name": {"type": "string", "minLength": 1, "description": "Name of the device group."}
  }
}"#;

/// The `config` of the agent's `plugin` block.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    dir: String,
    #[serde(default = "default_name")]
    name: String,
}

fn default_name() -> String {
    "files".to_owned()
}

struct Files;

impl DevicePlugin for Files {
    fn describe() -> DeviceInfo {
        DeviceInfo::new("files", env!("CARGO_PKG_VERSION")).config_schema(SCHEMA)
    }

    fn fingerprint() -> Result<Fingerprint> {
        let Config { dir, name } = host::config()?;
        let files = list(&dir)?.into_iter().map(|file| Instance::healthy(file.id));
        let group = Group::new("ostler", "file", name).instances(files);
        let groups = if group.instances.is_empty() { vec![] } else { vec![group] };
        Ok(Fingerprint::new(groups).check_after(5_000).watch_path(dir))
    }

    fn reserve(claim: Claim) -> Result<Reservation> {
        let Config { dir, .. } = host::config()?;
        let there = list(&dir)?;
        let mut reservation = Reservation::empty();
        let mut paths = vec![];
        for id in claim.ids {
            if !there.iter().any(|file| file.id == id) {
                return Err(Error::not_found(format!("no file {id:?} in {dir}")));
            }
            let task_path = format!("/local/devices/{id}");
            reservation = reservation.mount(Mount::read_only(format!("{dir}/{id}"), &task_path));
            paths.push(task_path);
        }
        Ok(reservation.env("FILE_DEVICE_PATHS", paths.join(",")))
    }

    fn stats() -> Result<Vec<GroupStats>> {
        let Config { dir, name } = host::config()?;
        let measure = |file: File| {
            let size = StatValue::int(file.bytes, "", "size in bytes");
            let stats = InstanceStats::new(file.id, Some(size.clone())).stat("size", size);
            match file.modified {
                Some(at) => stats.stat("modified", StatValue::int(at, "", "seconds since 1970")),
                None => stats,
            }
        };
        let instances = list(&dir)?.into_iter().map(measure).collect();
        Ok(vec![GroupStats {
            vendor: "ostler".to_owned(),
            type_: "file".to_owned(),
            name,
            instances,
        }])
    }
}

struct File {
    id: String,
    bytes: i64,
    /// Seconds since 1970.
    modified: Option<i64>,
}

/// Regular files with a UTF-8 name, sorted. A directory that is not there holds no devices.
fn list(dir: &str) -> Result<Vec<File>> {
    let cannot_read = |error| Error::recoverable(format!("cannot read {dir}: {error}"));
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.map_err(cannot_read)?,
    };
    let mut files = vec![];
    for entry in entries {
        let entry = entry.map_err(cannot_read)?;
        // A file that went away in between is no device.
        let (Ok(about), Ok(id)) = (entry.metadata(), entry.file_name().into_string()) else {
            continue;
        };
        if about.is_file() && !id.contains(',') {
            let age = about.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
            files.push(File {
                id,
                bytes: i64::try_from(about.len()).unwrap_or(i64::MAX),
                modified: age.and_then(|age| i64::try_from(age.as_secs()).ok()),
            });
        }
    }
    files.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(files)
}

ostler_sdk::export_device!(Files);

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests;
