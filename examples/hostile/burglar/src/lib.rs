//! A device plugin that tries every door. It has grants for some files and commands, and its
//! configuration says what else to try:
//!
//! - `mode = "paths"`: open, list, write, link what `paths` names and what every burglar knows.
//! - `mode = "race"`: read `paths[0]` again and again while somebody swaps what is there.
//! - `mode = "commands"`: run each of `commands`, program first.
//! - `mode = "command-flood"`: run `commands[0]` for ever.
//! - `mode = "open-files"`: open `paths[0]` for ever and close nothing.
//!
//! `fingerprint` answers with an error whose text lists what succeeded, one to a line.

use std::fs;
use std::path::Path;

use ostler_sdk::device::prelude::*;
use serde::Deserialize;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Config {
    mode: String,
    paths: Vec<String>,
    commands: Vec<Vec<String>>,
}

struct Burglar;

/// What everybody tries.
const KNOWN: [&str; 26] = [
    "/",
    "/.",
    "/..",
    ".",
    "..",
    "",
    "/etc/passwd",
    "/etc/passwd/",
    "/etc/shadow",
    "/proc/self/environ",
    "/proc/self/exe",
    "/proc/self/root/etc/passwd",
    "/proc/self/cwd",
    "/proc/self/fd/0",
    "/proc/1/environ",
    "/dev/null",
    "/dev/zero",
    "/dev/mem",
    "/dev/kvm",
    "/dev/sda",
    "/dev/vda",
    "/sys/kernel",
    "/run",
    "/var/run/docker.sock",
    "/root/.ssh",
    "/tmp",
];

impl DevicePlugin for Burglar {
    fn describe() -> DeviceInfo {
        DeviceInfo::new("burglar", env!("CARGO_PKG_VERSION")).config_schema(r#"{"type": "object"}"#)
    }

    fn fingerprint() -> Result<Fingerprint> {
        let config = host::config::<Config>()?;
        let mut open = Vec::new();
        match config.mode.as_str() {
            "paths" => {
                let all = config.paths.iter().map(String::as_str).chain(KNOWN);
                all.for_each(|path| try_path(path, &mut open));
            }
            "race" => race(config.paths.first().map_or("", String::as_str), &mut open),
            "commands" => config.commands.iter().for_each(|words| try_command(words, &mut open)),
            "refused-commands" => {
                for (program, args) in
                    config.commands.iter().filter_map(|words| words.split_first())
                {
                    let done = command::run(program, args, 60_000);
                    open.push(format!("{program}: {:?}", done.map(|output| output.exit_code)));
                }
            }
            "command-flood" => loop {
                try_command(config.commands.first().map_or(&[], Vec::as_slice), &mut open);
                open.clear();
            },
            "open-files" => {
                let path = config.paths.first().map_or("", String::as_str);
                while let Ok(file) = fs::File::open(path) {
                    std::mem::forget(file);
                }
                open.push("no more files".to_owned());
            }
            _ => {}
        }
        Err(Error::fatal(open.join("\n")))
    }

    fn reserve(_claim: Claim) -> Result<Reservation> {
        Ok(Reservation::empty())
    }
}

fn try_path(path: &str, open: &mut Vec<String>) {
    let mut note = |what: &str, worked: bool| {
        if worked {
            open.push(format!("{what} {path}"));
        }
    };
    note(
        "read",
        fs::File::open(path).is_ok_and(|mut file| {
            use std::io::Read as _;
            file.read(&mut [0; 1]).is_ok()
        }),
    );
    note("list", fs::read_dir(path).is_ok());
    note("stat", fs::metadata(path).is_ok());
    note("write", fs::OpenOptions::new().write(true).open(path).is_ok());
    note("create", fs::write(Path::new(path).join("burglar"), "was here").is_ok());
    note("make", fs::create_dir(Path::new(path).join("burglar.d")).is_ok());
    note("move", fs::rename(path, format!("{path}.moved")).is_ok());
    note("link", fs::hard_link(path, format!("{path}.link")).is_ok());
    note("remove", fs::remove_file(path).is_ok());
}

fn race(path: &str, open: &mut Vec<String>) {
    let mut reads = 0;
    for _ in 0..1_200 {
        if let Ok(text) = fs::read_to_string(path) {
            reads += 1;
            if text.contains("secret") {
                open.push(format!("read {path}"));
                return;
            }
        }
    }
    open.push(format!("{reads} honest reads"));
}

fn try_command(words: &[String], open: &mut Vec<String>) {
    let Some((program, args)) = words.split_first() else { return };
    if let Ok(output) = command::run(program, args, 60_000) {
        let said = String::from_utf8_lossy(&output.stdout);
        open.push(format!("{program} said {}", said.trim_end()));
    }
}

ostler_sdk::export_device!(Burglar);
