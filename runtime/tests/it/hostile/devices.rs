//! Attacks by device plugins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ostler_guests::fixtures::{HOSTILE_BURGLAR, HOSTILE_DEVICE, HOSTILE_WANTS_SOCKETS};
use ostler_model::clock::Stopwatch;
use ostler_model::config::AnswerGrants;
use ostler_model::device::GroupKey;
use ostler_model::grants::{CommandGrant, FileGrant, Grants};
use ostler_model::limits::PluginLimits;
use ostler_model::resources::AllocatedDevice;
use ostler_plugin::Plugin;
use ostler_plugin::device::LoadedDevice;
use serde_json::{Value, json};

use super::arena::{Arena, Outcome, load, spec};

/// The deadline of attacks that end by one.
const WALL: Duration = Duration::from_millis(400);

/// Deadlines far away: what stops the attack is another limit.
pub fn patient() -> PluginLimits {
    let far = Duration::from_secs(60);
    PluginLimits { call_wall_max: far, call_cpu_max: far, ..PluginLimits::default() }
}

async fn hostile(
    arena: &Arena,
    config: Value,
    limits: PluginLimits,
) -> Result<LoadedDevice, Outcome> {
    let spec = spec("hostile", config, Grants::default(), limits);
    match load(&arena.plugins, spec, HOSTILE_DEVICE).await {
        Ok(Plugin::Device(plugin)) => Ok(plugin),
        Ok(Plugin::Driver(_)) => Err(Outcome::of("it is a driver")),
        Err(error) => Err(Outcome::of(error)),
    }
}

fn claim() -> AllocatedDevice {
    let group = GroupKey { vendor: "hostile".into(), kind: "thing".into(), name: "one".into() };
    AllocatedDevice { group, ids: vec!["a".to_owned()] }
}

/// Call the function of this name; what it failed with.
async fn ask(plugin: &LoadedDevice, function: &str) -> String {
    let done = match function {
        "mode" => plugin.fingerprint().await.map(drop),
        "reserve" => plugin.reserve(&claim()).await.map(drop),
        "release" => plugin.release(&claim()).await,
        "stats" => plugin.stats().await.map(drop),
        _ => Ok(()),
    };
    done.map_or_else(|error| error.to_string(), |()| "it answered".to_owned())
}

pub async fn call(arena: &Arena, function: &str, mode: &str) -> Outcome {
    match hostile(arena, json!({ function: mode }), patient()).await {
        Ok(plugin) => Outcome::of(ask(&plugin, function).await),
        Err(refused) => refused,
    }
}

/// Ends by the deadline; how long after it.
async fn late(arena: &Arena, mode: &str, limits: PluginLimits) -> Outcome {
    let deadline = limits.call_wall_max;
    let plugin = match hostile(arena, json!({ "mode": mode }), limits).await {
        Ok(plugin) => plugin,
        Err(refused) => return refused,
    };
    let watch = Stopwatch::start();
    let said = ask(&plugin, "mode").await;
    Outcome { past: Some(watch.elapsed().saturating_sub(deadline)), ..Outcome::of(said) }
}

pub async fn spin_until_wall(arena: &Arena) -> Outcome {
    late(arena, "spin", PluginLimits { call_wall_max: WALL, ..patient() }).await
}

pub async fn sleep(arena: &Arena) -> Outcome {
    late(arena, "sleep", PluginLimits { call_wall_max: WALL, ..patient() }).await
}

/// Past its deadline is what it computed beyond its processor time.
pub async fn spin_until_cpu(arena: &Arena) -> Outcome {
    let limits = PluginLimits { call_cpu_max: Duration::from_millis(100), ..patient() };
    let plugin = match hostile(arena, json!({ "mode": "spin" }), limits.clone()).await {
        Ok(plugin) => plugin,
        Err(refused) => return refused,
    };
    let before = plugin.meter().report().cpu_nanos;
    let said = ask(&plugin, "mode").await;
    let used = Duration::from_nanos(plugin.meter().report().cpu_nanos - before);
    Outcome { past: Some(used.saturating_sub(limits.call_cpu_max)), ..Outcome::of(said) }
}

pub async fn trap_everywhere(arena: &Arena) -> Outcome {
    let mut trapped = 0;
    for function in ["describe", "mode", "reserve", "release", "stats"] {
        let said = call(arena, function, "trap").await.said;
        trapped += u32::from(said.contains("trapped"));
    }
    Outcome::of(format!("{trapped} of 5 trapped"))
}

/// The plugin's answer is well formed; that the devices are not its own is for the manager to see,
/// which `devices::` tests with an agent. Here: it is the answer of this plugin alone.
pub async fn foreign(arena: &Arena) -> Outcome {
    match hostile(arena, json!({ "stats": "foreign-ids" }), patient()).await {
        Ok(plugin) => match plugin.stats().await {
            Ok(groups) if groups.len() == 1 => Outcome::of("dropped by the manager"),
            other => Outcome::of(format!("{other:?}")),
        },
        Err(refused) => refused,
    }
}

pub async fn moody(arena: &Arena) -> Outcome {
    let plugin = match hostile(arena, json!({ "mode": "moody" }), patient()).await {
        Ok(plugin) => plugin,
        Err(refused) => return refused,
    };
    let mut different = std::collections::BTreeSet::new();
    for _ in 0..50 {
        match plugin.fingerprint().await {
            Ok(found) => different.insert(format!("{:?}", found.groups)),
            Err(error) => different.insert(error.to_string()),
        };
    }
    match different.len() {
        0..10 => Outcome::of(format!("only {} different answers", different.len())),
        _ => Outcome::of("each answer was taken or refused whole"),
    }
}

/// Load the burglar with these grants and ask it once.
/// What it says, a finding a line: the agent shows what a plugin says in one.
pub async fn burglar(arena: &Arena, config: Value, grants: Grants, limits: PluginLimits) -> String {
    let spec = spec("burglar", config, grants, limits);
    match load(&arena.plugins, spec, HOSTILE_BURGLAR).await {
        Ok(Plugin::Device(plugin)) => ask(&plugin, "mode").await.replace("\\n", "\n"),
        Ok(Plugin::Driver(_)) => "it is a driver".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// The burglar asks for both kinds of grant, so each is given something.
pub fn grants(arena: &Arena) -> (Grants, String, String) {
    let (ro, rw) = (arena.empty("ro"), arena.empty("rw"));
    let files = [(&ro, false), (&rw, true)];
    let files = files.map(|(path, write)| FileGrant { path: path.clone(), write }).to_vec();
    let commands = vec![CommandGrant {
        program: "/bin/echo".into(),
        args: vec![vec!["--query=*".to_owned()], vec!["ok".to_owned()]],
    }];
    let grants = Grants { files, commands, ..Grants::default() };
    (grants, ro.display().to_string(), rw.display().to_string())
}

pub async fn paths(arena: &Arena) -> Outcome {
    use std::os::unix::fs::symlink;
    let (grants, ro, rw) = grants(arena);
    let outside = arena.outside();
    let mut paths = vec![format!("{ro}/file")];
    std::fs::write(&paths[0], "granted").unwrap();
    for dir in [&ro, &rw] {
        symlink(outside.join("x"), format!("{dir}/link")).unwrap();
        symlink("../outside", format!("{dir}/dir")).unwrap();
        symlink("/proc/self", format!("{dir}/proc")).unwrap();
        symlink("/", format!("{dir}/root")).unwrap();
        let tricks = ["link", "link/", "dir", "dir/", "dir/x", "proc/environ", "root/etc/passwd"];
        paths.extend(tricks.iter().map(|trick| format!("{dir}/{trick}")));
        for trick in
            ["..", "../outside", "../outside/x", "./../outside/x", "/..//outside//x", "nul\0"]
        {
            paths.push(format!("{dir}/{trick}"));
        }
        paths.push(format!("{dir}/{}", "a/".repeat(3_000)));
        paths.push(format!("{dir}/{}", "n".repeat(5_000)));
    }
    paths.push(format!("{ro}/file/"));
    let config = json!({ "mode": "paths", "paths": paths });
    let said = burglar(arena, config, grants, patient()).await;
    let own = [format!("read {ro}/file"), format!("stat {ro}/file")];
    // A link is a name like any other: what is in a writable directory may be moved and removed.
    let names = |line: &str| {
        let (verb, path) = line.split_once(' ').unwrap_or_default();
        ["move", "remove", "link"].contains(&verb) && path.starts_with(&rw) && !path.contains("..")
    };
    let beyond: Vec<&str> =
        said.lines().filter(|line| !own.iter().any(|own| own == line) && !names(line)).collect();
    let honest = own.iter().all(|own| said.lines().any(|line| line == own));
    let escaped = arena.secret_harmed().or((!beyond.is_empty()).then(|| beyond.join(", ")));
    let verdict = if honest { "read the granted file and nothing else" } else { &said };
    Outcome { escaped, ..Outcome::of(verdict) }
}

pub async fn race(arena: &Arena) -> Outcome {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let (grants, _, rw) = grants(arena);
    let (here, there) = (format!("{rw}/race"), format!("{rw}/other"));
    std::fs::create_dir(&here).unwrap();
    std::fs::write(format!("{here}/x"), "honest").unwrap();
    std::os::unix::fs::symlink(arena.outside(), &there).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let (one, other) = (here.clone(), there);
    let swapper = std::thread::spawn(move || {
        while !stopped.load(Ordering::SeqCst) {
            renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
        }
    });
    let config = json!({ "mode": "race", "paths": [format!("{here}/x")] });
    let said = burglar(arena, config, grants, patient()).await;
    stop.store(true, Ordering::SeqCst);
    swapper.join().unwrap();
    let escaped = said.lines().any(|line| line.starts_with("read ")).then(|| said.clone());
    Outcome { escaped, ..Outcome::of(said) }
}

pub async fn commands(arena: &Arena) -> Outcome {
    let (grants, _, _) = grants(arena);
    let made = arena.empty("made").join("by-a-shell");
    let shell = format!("--query=x; touch {}", made.display());
    let honest = [vec!["/bin/echo", "ok"], vec!["echo", "ok"], vec!["/bin/echo", &shell]];
    let long = format!("--query={}", "x".repeat(300_000));
    let others = [
        vec!["/bin/echo"],
        vec!["/bin/echo", "other"],
        vec!["/bin/echo", "ok", "more"],
        vec!["/bin/echo", "--query=x", "--more"],
        vec!["/bin/echo", "-e", "--query=x"],
        vec!["/bin/echo", " --query=x"],
        vec!["/bin/echo", "--query=\0x"],
        vec!["/bin/echo", &long],
        vec!["/bin/sh", "-c", "echo ok"],
        vec!["sh", "ok"],
        vec!["/bin/../bin/echo", "ok"],
        vec!["../bin/echo", "ok"],
        vec!["./echo", "ok"],
        vec!["/bin/echo\0", "ok"],
        vec!["", "ok"],
    ];
    let count = async |commands: &[Vec<&str>]| {
        let config = json!({ "mode": "commands", "commands": commands });
        let said = burglar(arena, config, grants.clone(), patient()).await;
        (said.lines().filter(|line| line.contains(" said ")).count(), said)
    };
    let (good, _) = count(&honest).await;
    let (bad, said) = count(&others).await;
    let escaped = (bad > 0).then_some(said).or(made.exists().then(|| "a shell ran".to_owned()));
    let verdict = format!("{good} of 3 honest, {bad} of the others");
    Outcome { escaped, ..Outcome::of(verdict) }
}

/// Each command has a deadline, and so have all of one call together.
pub async fn command_flood(arena: &Arena) -> Outcome {
    let (mut grants, _, _) = grants(arena);
    grants.commands.push(CommandGrant { program: "/bin/sleep".into(), args: vec![] });
    let config = json!({ "mode": "command-flood", "commands": [["/bin/sleep", "0.1"]] });
    let watch = Stopwatch::start();
    let said =
        burglar(arena, config, grants, PluginLimits { call_wall_max: WALL, ..patient() }).await;
    // Once for the commands, once for the guest.
    Outcome { past: Some(watch.elapsed().saturating_sub(2 * WALL)), ..Outcome::of(said) }
}

pub async fn open_files(arena: &Arena) -> Outcome {
    let (grants, ro, _) = grants(arena);
    std::fs::write(format!("{ro}/file"), "granted").unwrap();
    let config = json!({ "mode": "open-files", "paths": [format!("{ro}/file")] });
    Outcome::of(burglar(arena, config, grants, patient()).await)
}

/// Opening it would wait for a writer.
pub async fn pipe(arena: &Arena) -> Outcome {
    let (grants, ro, _) = grants(arena);
    super::pipe(format!("{ro}/pipe").as_ref());
    let config = json!({ "mode": "open-files", "paths": [format!("{ro}/pipe")] });
    Outcome::of(burglar(arena, config, grants, patient()).await)
}

/// What answers an agent must not act upon, and a word of why it does not.
fn answers() -> Vec<(&'static str, Value, &'static str)> {
    let mount = |host: &str, task: &str| json!({ "mounts": [[host, task]] });
    vec![
        ("reserve", mount("/", "/local/node"), "a mount of / (writable)"),
        ("reserve", mount("/etc/shadow", "/local/x"), "a mount of /etc/shadow (writable)"),
        ("reserve", json!({ "nodes": [["/dev/mem", "rw"]] }), "the device node /dev/mem (rw)"),
        ("reserve", json!({ "env": [["LD_PRELOAD", "/x.so"]] }), "no plugin may"),
        ("reserve", json!({ "env": [["PATH", "/x"]] }), "no plugin may"),
        ("reserve", json!({ "env": [["NOMAD_TASK_DIR", "/x"]] }), "no plugin may"),
        ("reserve", json!({ "env": [["AWS_SECRET", "x"]] }), "the variable AWS_SECRET"),
        ("mode", json!({ "groups": [["ostler", "file", "files"]] }), "group ostler/file/files"),
        ("mode", json!({ "groups": [["nvidia", "gpu", "H100"]] }), "group nvidia/gpu/H100"),
    ]
}

/// Without any grant the host acts upon none of these.
pub async fn authority(arena: &Arena) -> Outcome {
    let (answers, mut refused, mut escaped) = (answers(), 0, Vec::new());
    let count = answers.len();
    for (function, answer, why) in answers {
        let plugin = match hostile(arena, json!({ "answer": answer }), patient()).await {
            Ok(plugin) => plugin,
            Err(refused) => return refused,
        };
        let said = ask(&plugin, function).await;
        if said.contains(why) { refused += 1 } else { escaped.push(format!("{answer}: {said}")) }
    }
    let escaped = (!escaped.is_empty()).then(|| escaped.join("; "));
    Outcome { escaped, ..Outcome::of(format!("{refused} of {count} refused")) }
}

/// A granted directory in which a task puts a link to what is outside.
pub async fn linked_mount(arena: &Arena) -> Outcome {
    let (dir, outside) = (arena.empty("assigned"), arena.outside());
    std::os::unix::fs::symlink(&outside, dir.join("link")).unwrap();
    let mounts = Some(vec![FileGrant { path: dir.clone(), write: true }]);
    let answers = AnswerGrants { mounts, ..AnswerGrants::default() };
    let answer = json!({ "mounts": [[dir.join("link"), "/local/x"]] });
    let grants = Grants { answers, ..Grants::default() };
    let spec = spec("hostile", json!({ "answer": answer }), grants, patient());
    let Ok(Plugin::Device(plugin)) = load(&arena.plugins, spec, HOSTILE_DEVICE).await else {
        return Outcome::of("it does not load");
    };
    match plugin.reserve(&claim()).await {
        Ok(given) => Outcome { escaped: Some(format!("{given:?}")), ..Outcome::default() },
        Err(error) => Outcome::of(error),
    }
}

/// It loads without what it imports, and is refused what it calls.
pub async fn denied(arena: &Arena) -> Outcome {
    let deny = ["connect", "command", "files"].map(str::to_owned).to_vec();
    let grants = Grants { deny, ..Grants::default() };
    let config = json!({ "mode": "refused-commands", "commands": [["/bin/echo", "ok"]] });
    let said = burglar(arena, config, grants.clone(), patient()).await;
    let said = said.replace('\\', "");
    let ran = said.contains("Ok(").then(|| said.clone());
    let spec = spec("caller", json!({}), grants, patient());
    match load(&arena.plugins, spec, HOSTILE_WANTS_SOCKETS).await {
        Ok(_) => Outcome { escaped: ran, ..Outcome::of(said) },
        Err(error) => {
            Outcome { escaped: Some(format!("not loaded: {error}")), ..Outcome::of(said) }
        }
    }
}

pub async fn sockets(arena: &Arena) -> Outcome {
    let all = Grants { process: true, wasm_task: true, ..Grants::default() };
    let spec = spec("caller", json!({}), all, patient());
    match load(&arena.plugins, spec, HOSTILE_WANTS_SOCKETS).await {
        Ok(_) => Outcome { escaped: Some("it was loaded".to_owned()), ..Outcome::default() },
        Err(error) => Outcome::of(error),
    }
}
