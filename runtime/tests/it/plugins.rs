//! Which plugins an agent takes, and what it says of those that it does not.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ostler_agent::{Agent, AgentOptions, PluginStatus};
use ostler_guests::fixtures::{
    DEVICE_FILES, DRIVER_EXEC, DRIVER_MOCK, HELLO_P1, HOSTILE_DEVICE, HOSTILE_DRIVER,
    HOSTILE_OTHER_WORLD, HOSTILE_WANTS_SOCKETS,
};
use ostler_jobspec::parse_agent_config;
use ostler_model::config::AgentConfig;
use ostler_model::device::HealthState;
use ostler_testing::programs::write_script;

use crate::support::binary::{command, ostler};
use crate::support::plugins::{entry, refusal};
use crate::support::{DataDir, OSTLER, PATIENCE, TestAgent, options};

const MOCK_JOB: &str = r#"
  job "still-here" {
    type = "batch"
    group "g" {
      task "t" {
        driver = "mock_driver"
        config {
          run_for = "1ms"
        }
      }
    }
  }
"#;

/// Names of the blocks that configure what comes with the agent.
const BUILT_IN: [&str; 10] =
    ["exec", "files", "hwmon", "mock", "mock_device", "nvidia", "pci", "raw_exec", "usb", "wasm"];

/// The agent still runs jobs.
async fn goes_on(agent: &TestAgent) {
    assert!(agent.run(MOCK_JOB).await.is_successful());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_built_in_plugins_are_loaded_healthy_and_hold_the_least_authority() {
    let agent = TestAgent::start().await;
    let names: Vec<&str> = agent.handle.plugins().iter().map(|e| e.name.as_str()).collect();
    assert_eq!(names, BUILT_IN);
    for entry in agent.handle.plugins() {
        let off = entry.name == "mock_device";
        let expected = if off { PluginStatus::Disabled } else { PluginStatus::Loaded };
        assert_eq!(entry.status, expected, "{}", entry.name);
        assert_eq!(entry.source, "built-in");
        assert_eq!(entry.digest.as_ref().map(String::len), Some(64));
        assert_eq!(entry.grants.process, entry.name.ends_with("exec"), "{}", entry.name);
        assert_eq!(entry.grants.isolation.is_some(), entry.name == "exec", "{}", entry.name);
        assert_eq!(entry.grants.wasm_task, entry.name == "wasm", "{}", entry.name);
        assert_eq!(entry.grants.commands.is_empty(), entry.name != "nvidia", "{}", entry.name);
        assert!(entry.grants.files.iter().all(|grant| !grant.write), "{}", entry.name);
    }
    let node = agent.handle.node();
    for driver in ["exec", "mock_driver", "wasm"] {
        assert_eq!(node.drivers[driver].health.state, HealthState::Healthy, "{driver}");
    }
    for plugin in ["files", "hwmon", "pci", "usb"] {
        assert_eq!(node.device_plugins[plugin].state, HealthState::Healthy, "{plugin}");
    }
    agent.stop().await;
}

/// The agent's own program, but that it does not compile.
fn without_compiler(dir: &Path) -> PathBuf {
    let path = dir.join("ostler");
    let script = format!("#!/bin/sh\n[ \"$1\" = __compile ] && exit 1\nexec {OSTLER} \"$@\"\n");
    write_script(&path, &script).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_new_data_directory_nothing_is_compiled_for_the_built_in_plugins() {
    let dir = tempfile::tempdir().unwrap();
    let compiler = Some(without_compiler(dir.path()));
    let plain = options(&dir.path().join("data"), AgentConfig::default());
    let agent = Agent::start(AgentOptions { compiler, ..plain }).await.unwrap();
    let names: Vec<&str> = agent.plugins().iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, BUILT_IN);
    for entry in agent.plugins().iter().filter(|entry| entry.name != "mock_device") {
        assert_eq!(entry.status, PluginStatus::Loaded, "{}", entry.name);
    }
    agent.shutdown().await;

    // What others bring is compiled, which fails here: the program above is really the one asked.
    let config = parse_agent_config(
        format!("plugin \"hostile\" {{\n file = {HOSTILE_DEVICE:?}\n}}\n").as_bytes(),
        Path::new("/test.hcl"),
    );
    let plain = options(&dir.path().join("other"), config.unwrap());
    let compiler = Some(dir.path().join("ostler"));
    let agent = Agent::start(AgentOptions { compiler, ..plain }).await.unwrap();
    let hostile = agent.plugins().iter().find(|entry| entry.name == "hostile").unwrap();
    let refused = format!("{:?}", hostile.status);
    assert!(refused.contains("the compiler failed"), "{refused}");
    agent.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_wasm_file_of_the_plugin_directory_is_a_plugin_and_a_broken_one_harms_no_other() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(HOSTILE_DEVICE, dir.path().join("hostile.wasm")).unwrap();
    std::fs::write(dir.path().join("broken.wasm"), "hello").unwrap();
    std::fs::write(dir.path().join("notes.txt"), "not looked at").unwrap();
    std::fs::create_dir(dir.path().join("directory.wasm")).unwrap();
    let config = format!("plugin_dir = \"{}\"", dir.path().display());
    let agent = TestAgent::with_config(&config).await;

    let mine = entry(&agent, "hostile");
    assert_eq!(mine.status, PluginStatus::Loaded);
    assert_eq!(mine.describes_as.as_deref(), Some("hostile-device"));
    assert!(refusal(&agent, "broken").contains("not WebAssembly"));
    assert!(refusal(&agent, "directory").contains("not a regular file"));
    assert!(agent.handle.plugins().iter().all(|entry| entry.name != "notes"));
    assert!(agent.handle.node().devices.iter().any(|group| group.key.vendor == "hostile"));
    goes_on(&agent).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_drivers_of_one_name_the_one_that_is_granted_it_is_taken_and_the_other_says_why_not()
{
    for _ in 0..3 {
        let config = format!(
            r#"
            plugin "a-copy" {{
              file = "{DRIVER_MOCK}"
              grants {{
                driver = "mock_driver"
              }}
            }}
            plugin "z-copy" {{
              file = "{DEVICE_FILES}"
              config {{
                dir = "/nowhere"
              }}
              grants {{
                files "/nowhere" {{}}
              }}
            }}
            "#
        );
        let agent = TestAgent::with_config(&config).await;
        assert_eq!(entry(&agent, "a-copy").status, PluginStatus::Loaded);
        let reason = refusal(&agent, "mock");
        assert!(reason.contains("another plugin already calls itself mock_driver"), "{reason}");
        assert!(reason.contains("the configuration has a block for it"), "{reason}");
        let reason = refusal(&agent, "z-copy");
        assert!(reason.contains("which is the name of another plugin"), "{reason}");
        assert_eq!(entry(&agent, "files").status, PluginStatus::Loaded);
        goes_on(&agent).await;
        agent.stop().await;
    }
}

/// Where the entries of a name come from, and whether they are used.
fn sources<'a>(agent: &'a TestAgent, name: &str) -> Vec<(&'a str, bool)> {
    let plugins = agent.handle.plugins().iter().filter(|entry| entry.name == name);
    plugins.map(|entry| (&*entry.source, entry.status == PluginStatus::Loaded)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_the_plugin_directory_stands_in_for_a_built_in_plugin_where_a_block_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (mock, exec) = (dir.path().join("mock.wasm"), dir.path().join("exec.wasm"));
    std::fs::copy(DRIVER_MOCK, &mock).unwrap();
    std::fs::copy(DRIVER_EXEC, &exec).unwrap();
    let (at, mock) = (dir.path().display(), mock.to_str().unwrap());
    let config = format!(
        "plugin_dir = \"{at}\"\nplugin \"mock\" {{\n file = \"{mock}\"\n grants {{\n driver = \
         \"mock_driver\"\n }}\n}}\n"
    );
    let agent = TestAgent::with_config(&config).await;
    let exec = exec.to_str().unwrap();
    assert!(sources(&agent, "mock").contains(&(mock, true)));
    assert_eq!(sources(&agent, "mock").iter().filter(|(_, used)| *used).count(), 1);
    assert_eq!(sources(&agent, "exec"), [("built-in", true), (exec, false)]);
    goes_on(&agent).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_names_a_file_rules_out_every_other_plugin_of_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("broken.wasm");
    std::fs::write(&broken, "hello").unwrap();
    let config = format!("plugin \"mock\" {{\n file = \"{}\"\n}}\n", broken.display());
    let agent = TestAgent::with_config(&config).await;
    let of = |source: &str| {
        let mut plugins = agent.handle.plugins().iter().filter(|entry| entry.name == "mock");
        plugins.find(|entry| entry.source == source).map(|entry| entry.status.clone()).unwrap()
    };
    let reason = |source: &str| match of(source) {
        PluginStatus::Refused(reason) => reason,
        other => panic!("{source} is {other:?}"),
    };
    assert!(reason(broken.to_str().unwrap()).contains("not WebAssembly"));
    assert!(reason("built-in").contains("broken.wasm instead"), "{}", reason("built-in"));
    assert!(!agent.handle.node().drivers.contains_key("mock_driver"), "nothing stands in for it");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_without_its_grant_is_refused_with_the_lines_that_grant_it_and_they_do() {
    // The file calls itself `exec` too, so that the built-in one makes room.
    let exec_off = "plugin \"exec\" {\n enabled = false\n}\n";
    let bare = format!(
        "{exec_off} plugin \"mine\" {{\n file = \"{DRIVER_EXEC}\"\n grants {{\n driver = \
         \"exec\"\n }}\n}}\n"
    );
    let agent = TestAgent::with_config(&bare).await;
    let reason = refusal(&agent, "mine").to_owned();
    assert!(reason.contains("ostler:plugin/process@0.1.0"), "{reason}");
    let lines =
        "plugin \"mine\" {\n  grants {\n    process = true\n    driver = \"exec\"\n  }\n}\n";
    assert!(reason.ends_with(lines), "{reason}");
    assert!(!agent.handle.node().drivers.contains_key("exec"), "nothing of it was run");
    agent.stop().await;

    // What the message says, put where it says, with the file.
    let granted = lines.replacen('{', &format!("{{\n  file = \"{DRIVER_EXEC}\""), 1);
    let agent = TestAgent::with_config(&format!("{exec_off} {granted}")).await;
    assert_eq!(entry(&agent, "mine").status, PluginStatus::Loaded);
    let job = r#"
      job "granted" {
        type = "batch"
        group "g" {
          task "t" {
            driver = "exec"
            config {
              command = "/bin/echo"
              args    = ["granted"]
            }
          }
        }
      }
    "#;
    let result = agent.run(job).await;
    assert!(result.is_successful());
    assert_eq!(agent.stdout(&result, "t"), "granted\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_built_in_driver_whose_grant_was_taken_away_is_refused() {
    let agent = TestAgent::with_config("plugin \"exec\" {\n grants {}\n}\n").await;
    assert!(refusal(&agent, "exec").contains("process = true"));
    goes_on(&agent).await;
    agent.stop().await;
}

/// Files that are no plugin, and a part of the reason each must be refused with.
fn not_plugins(dir: &Path) -> Vec<(&'static str, PathBuf, &'static str)> {
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let whole = std::fs::read(HOSTILE_DEVICE).unwrap();
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle..middle + 64].fill(0xff);
    vec![
        ("empty", write("empty.wasm", b""), "it is empty"),
        ("text", write("text.wasm", b"#!/bin/sh\n"), "not WebAssembly"),
        ("truncated", write("truncated.wasm", &whole[..whole.len() / 2]), "damaged WebAssembly"),
        ("damaged", write("damaged.wasm", &damaged), ""),
        ("core", HELLO_P1.into(), "a plugin must be a component"),
        ("other-world", HOSTILE_OTHER_WORLD.into(), "a component of another world"),
        ("sockets", HOSTILE_WANTS_SOCKETS.into(), "wasi:sockets/tcp"),
        ("absent", dir.join("absent.wasm"), "No such file"),
        ("directory", dir.to_owned(), "not a regular file"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_plugin_is_refused_with_the_reason_and_the_agent_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let files = not_plugins(dir.path());
    let config: String = files
        .iter()
        .map(|(name, file, _)| {
            format!("plugin \"{name}\" {{\n file = \"{}\"\n}}\n", file.display())
        })
        .collect();
    let config = format!("{config} plugin \"nameless\" {{}}\n");
    let agent = TestAgent::with_config(&config).await;
    for (name, _, part) in &files {
        let reason = refusal(&agent, name);
        assert!(reason.contains(part), "{name}: {reason}");
        assert!(!reason.is_empty() && reason.len() < 2_000, "{name}: {reason}");
    }
    assert!(refusal(&agent, "sockets").contains("connect = ["));
    assert!(refusal(&agent, "nameless").contains("give file = "));
    goes_on(&agent).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_is_checked_against_the_schema_of_the_plugin() {
    let config = r#"
      plugin "mock" {
        config {
          shutdown_periodic_after = "soon"
          nonsense                = 1
        }
      }
    "#;
    let agent = TestAgent::with_config(config).await;
    let reason = refusal(&agent, "mock");
    assert!(reason.contains("shutdown_periodic_after"), "{reason}");
    assert!(reason.contains("nonsense"), "{reason}");
    let place = "/test/ostler.hcl:4: config.shutdown_periodic_after: ";
    assert!(reason.contains(place), "the file, the line and the path: {reason}");
    let unknown = "/test/ostler.hcl:5: config.nonsense: ";
    assert!(reason.contains(unknown), "the line of the key: {reason}");
    assert!(!agent.handle.node().drivers.contains_key("mock_driver"));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disabled_plugin_is_listed_and_not_used() {
    let agent = TestAgent::with_config("plugin \"wasm\" {\n enabled = false\n}\n").await;
    assert_eq!(entry(&agent, "wasm").status, PluginStatus::Disabled);
    assert!(!agent.handle.node().drivers.contains_key("wasm"));
    goes_on(&agent).await;
    agent.stop().await;
}

/// Compiled code in a cache. A file written again is another file: it is replaced by rename.
fn compiled(data_dir: &Path) -> Vec<(PathBuf, u64)> {
    let mut files: Vec<_> = std::fs::read_dir(data_dir.join("code"))
        .unwrap()
        .map(|entry| {
            let (path, meta) = entry.map(|e| (e.path(), e.metadata().unwrap())).unwrap();
            (path, meta.ino())
        })
        .collect();
    files.sort();
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_start_compiles_nothing() {
    let data = DataDir::new();
    let config = |compiler: Option<PathBuf>| {
        let text = format!(
            "plugin \"hostile\" {{\n file = \"{HOSTILE_DRIVER}\"\n grants {{\n process = true\n }}\n}}\n\
             plugin \"mock_device\" {{\n enabled = true\n}}\n"
        );
        let config =
            ostler_jobspec::parse_agent_config(text.as_bytes(), Path::new("/test/ostler.hcl"))
                .unwrap();
        let mut options = options(data.path(), config);
        options.compiler = compiler.or(options.compiler);
        options
    };
    let first = Agent::start(config(None)).await.unwrap();
    assert!(first.plugins().iter().all(|entry| entry.status == PluginStatus::Loaded));
    first.shutdown().await;
    drop(first);
    let before = compiled(data.path());
    assert!(before.len() >= 6, "{before:?}");

    // There is no compiler to fall back on.
    let second = Agent::start(config(Some("/nowhere/compiler".into()))).await.unwrap();
    for entry in second.plugins() {
        assert_eq!(entry.status, PluginStatus::Loaded, "{}", entry.name);
    }
    assert_eq!(compiled(data.path()), before);
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_on_the_command_line_has_the_refused_ones_with_their_reasons() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("broken.wasm"), "hello").unwrap();
    let data = DataDir::new();
    let args = ["plugin", "list", "--json", "--data-dir", data.path().to_str().unwrap()];
    let ended =
        ostler(args.into_iter().chain(["--plugin-dir", dir.path().to_str().unwrap()])).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let list: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let broken = list.as_array().unwrap().iter().find(|entry| entry["name"] == "broken").unwrap();
    assert_eq!(broken["status"]["state"], "refused", "{broken}");
    assert!(broken["status"]["reason"].as_str().unwrap().contains("not WebAssembly"), "{broken}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_says_once_which_plugin_is_refused_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("broken.wasm"), "hello").unwrap();
    let job = dir.path().join("job.hcl");
    std::fs::write(&job, MOCK_JOB).unwrap();
    let data = DataDir::new();
    let args = ["run".as_ref(), "--plugin-dir".as_ref(), dir.path().as_os_str()];
    let data = ["--data-dir".as_ref(), data.path().as_os_str(), job.as_os_str()];
    let ended = ostler(args.into_iter().chain(data)).await;
    ended.said(0, &["plugin broken (", "is refused: not WebAssembly"]);
    assert_eq!(ended.stderr.matches("not WebAssembly").count(), 1, "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_data_directory_code_is_kept_in_the_users_cache() {
    let home = tempfile::tempdir().unwrap();
    let list = async |caches: &Path| {
        let mut list = command(["plugin", "list"]);
        let output = list.env("XDG_CACHE_HOME", caches).output();
        let output = ostler_model::clock::timeout(PATIENCE, output).await.unwrap().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let caches = home.path().join("caches");
    list(&caches).await;
    let first = compiled(&caches.join("ostler"));
    assert!(first.len() >= 5, "{first:?}");
    let mode = std::fs::metadata(caches.join("ostler/code")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o700, "nobody else may put code there");
    list(&caches).await;
    assert_eq!(compiled(&caches.join("ostler")), first, "nothing is compiled again");

    let unusable = home.path().join("file");
    std::fs::write(&unusable, "in the way").unwrap();
    list(&unusable).await;
}
