//! What tasks bring along, by real agents: fetched from a server, unpacked, kept, refused.

use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::support::KEEPS;
use crate::support::agent_process::{AgentProcess, Home};
use crate::support::authority::Authority;
use crate::support::files::{Files, Reply};
use crate::support::jobs::{isolated_shell, shell, wasm, with_guests};
use crate::support::signer::Signer;
use crate::support::system::{eventually, until};

/// A `tar` archive of these files.
fn tar(files: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (path, text) in files {
        let mut header = vec![0_u8; 512];
        let put = |header: &mut Vec<u8>, at: usize, text: &str| {
            header[at..at + text.len()].copy_from_slice(text.as_bytes());
        };
        put(&mut header, 0, path);
        put(&mut header, 100, "0000755\0");
        put(&mut header, 108, "0000000\0");
        put(&mut header, 116, "0000000\0");
        put(&mut header, 124, &format!("{:011o}\0", text.len()));
        put(&mut header, 136, "14000000000\0");
        put(&mut header, 148, "        ");
        put(&mut header, 156, "0");
        put(&mut header, 257, "ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        put(&mut header, 148, &format!("{sum:06o}\0 "));
        bytes.extend(header);
        bytes.extend(text.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1_024, 0);
    bytes
}

fn sha256(bytes: &[u8]) -> String {
    let sum: [u8; 32] = Sha256::digest(bytes).into();
    let digits: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

fn artifact(source: &str, more: &str) -> String {
    format!("artifact {{\n source = \"{source}\"\n {more}\n}}\n")
}

fn checked(source: &str, sum: &str, more: &str) -> String {
    artifact(source, &format!("options {{\n checksum = \"{sum}\"\n }}\n {more}"))
}

/// A batch job whose one task is started once, `count` times.
fn job(id: &str, count: usize, task: &str) -> String {
    with_guests(&format!(
        "job \"{id}\" {{\n type = \"batch\"\n group \"g\" {{\n count = {count}\n restart {{\n attempts = 0\n \
         mode = \"fail\"\n }}\n {task}\n }}\n}}"
    ))
}

async fn tasks(agent: &AgentProcess, id: &str) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for alloc in agent.allocs(id).await {
        let id = alloc["ID"].as_str().unwrap().to_owned();
        found.push((id, alloc["TaskStates"]["t"].clone()));
    }
    found
}

/// Wait until all allocations of a job are over; the only one's id and task.
async fn over(agent: &AgentProcess, id: &str) -> (String, Value) {
    until("the job is over", async || {
        let tasks = tasks(agent, id).await;
        !tasks.is_empty() && tasks.iter().all(|(_, task)| task["State"] == "dead")
    })
    .await;
    tasks(agent, id).await.remove(0)
}

fn events<'a>(task: &'a Value, kind: &str) -> Vec<&'a str> {
    let events = task["Events"].as_array().unwrap().iter();
    let of_kind = events.filter(|event| event["Type"] == kind);
    of_kind.map(|event| event["DisplayMessage"].as_str().unwrap()).collect()
}

async fn output(agent: &AgentProcess, alloc: &str) -> String {
    agent.ask(&["alloc", "logs", alloc, "t"]).await.stdout
}

/// Nothing half is left in the directory of an agent.
fn nothing_half(data: &Path) -> bool {
    let work = std::fs::read_dir(data.join("artifacts/work")).unwrap();
    work.count() == 0
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_archives_are_where_their_blocks_say_before_the_task_starts() {
    let (files, agent) = (Files::start().await, AgentProcess::start().await);
    let plain = files.body("/dir/plain.txt", b"plain\n");
    let tool = files.body("/tool", b"#!/bin/sh\necho a tool ran\n");
    let archive =
        tar(&[("v1/bin/run", "#!/bin/sh\necho from the archive\n"), ("v1/read", "read\n")]);
    let whole = files.body("/v1.tar?token=secret-of-the-query", &archive);
    files.body("/v1.tar", &archive);
    let part = files.put("/part.tar", Reply::Redirect("/v1.tar".to_owned()));
    let blocks = [
        artifact(&plain, ""),
        artifact(
            &tool,
            "destination = \"local/bin/tool\"\n mode = \"file\"\n headers {\n \
                         X-Token = \"${NOMAD_TASK_NAME}-secret\"\n }",
        ),
        checked(&whole, &sha256(&archive), "destination = \"local/whole\""),
        artifact(&format!("{part}//v1/bin"), "destination = \"${NOMAD_ALLOC_DIR}/data/part\""),
    ]
    .concat();
    let script = "cat local/plain.txt; local/bin/tool; cat local/whole/v1/read; $NOMAD_ALLOC_DIR/data/part/run";
    agent.submit(&job("native", 1, &shell("t", script, &blocks))).await.said(0, &[]);
    let (alloc, task) = over(&agent, "native").await;
    assert_eq!(task["Failed"], false, "{task:#}");
    let said = "plain\na tool ran\nread\nfrom the archive\n";
    assert_eq!(output(&agent, &alloc).await, said);
    assert_eq!(events(&task, "Downloading Artifacts"), ["Client is downloading artifacts"]);
    assert!(files.heads("/tool")[0].contains("x-token: t-secret"), "{:?}", files.heads("/tool"));
    eventually("nothing is left in between", || nothing_half(agent.data.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_isolated_task_and_a_wasm_task_have_what_they_bring_along() {
    let (files, agent) = (Files::start().await, AgentProcess::start().await);
    let archive = tar(&[("bin/run", "#!/bin/sh\necho isolated\n")]);
    let block = artifact(&files.body("/x.tar", &archive), "");
    let task = isolated_shell("t", "/local/bin/run && touch /local/mine", &block);
    agent.submit(&job("isolated", 1, &task)).await.said(0, &[]);
    let (alloc, task) = over(&agent, "isolated").await;
    assert_eq!(task["Failed"], false, "{task:#}");
    assert_eq!(output(&agent, &alloc).await, "isolated\n");

    let module = std::fs::read(guest("toolbox")).unwrap();
    let block = checked(&files.body("/app.wasm", &module), &sha256(&module), "");
    let text = job("wasm", 1, &wasm("t", "local/app.wasm", &["args", "from-a-module"], &block));
    agent.submit(&text).await.said(0, &[]);
    let (alloc, task) = over(&agent, "wasm").await;
    assert_eq!(task["Failed"], false, "{task:#}");
    assert_eq!(output(&agent, &alloc).await.trim(), "from-a-module");
}

fn guest(name: &str) -> &'static str {
    let end = format!("/{name}.wasm");
    ostler_guests::fixtures::ALL.iter().find(|path| path.ends_with(&end)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_of_one_remote_module_fetch_it_once_and_a_new_agent_has_it_still() {
    let (files, home) = (Files::start().await, Home::new());
    let config = home.path().join("agent.hcl");
    std::fs::write(&config, KEEPS.replacen("gc {", "gc {\n max_allocs = 1000", 1)).unwrap();
    let with = ["--config", config.to_str().unwrap()];
    let agent = AgentProcess::start_in(home, &with).await;
    let module = std::fs::read(guest("toolbox")).unwrap();
    let address = files.body("/app.wasm", &module);
    let source = format!("{address}?checksum={}", sha256(&module));
    let task = wasm("t", &source, &["args", "remote"], "resources {\n cpu = 1\n memory = 16\n }");
    agent.submit(&job("many", 200, &task)).await.said(0, &[]);
    let (alloc, task_state) = over(&agent, "many").await;
    assert_eq!(task_state["Failed"], false, "{task_state:#}");
    assert_eq!(output(&agent, &alloc).await.trim(), "remote");
    let all = tasks(&agent, "many").await;
    assert_eq!(all.len(), 200);
    assert!(all.iter().all(|(_, task)| task["Failed"] == false));
    assert_eq!(files.count("/app.wasm"), 1);

    agent.signal(Signal::KILL);
    let (_, data) = agent.ended().await;
    let agent = AgentProcess::start_in(data, &with).await;
    files.put("/app.wasm", Reply::Status(500));
    agent.submit(&job("again", 1, &task)).await.said(0, &[]);
    let (_, again) = over(&agent, "again").await;
    assert_eq!(again["Failed"], false, "{again:#}");
    assert_eq!(files.count("/app.wasm"), 1, "it is kept");
    // What is kept and damaged is fetched again.
    files.body("/app.wasm", &module);
    let kept = agent.data.path().join("artifacts/cache").join(sha256(&module).replace(':', "-"));
    std::fs::write(kept.join("data"), "damaged").unwrap();
    agent.submit(&job("damaged", 1, &task)).await.said(0, &[]);
    let (_, damaged) = over(&agent, "damaged").await;
    assert_eq!(damaged["Failed"], false, "{damaged:#}");
    assert_eq!(files.count("/app.wasm"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_fetched_says_why_and_shows_nothing_secret() {
    let (files, agent) = (Files::start().await, AgentProcess::start().await);
    let body = files.body("/x", b"text");
    let cases = [
        (
            "missing",
            artifact(&format!("{}?token=hidden-secret", body.replace("/x", "/no")), ""),
            "answered 404",
        ),
        (
            "sum",
            checked(&body, &format!("sha256:{}", "0".repeat(64)), ""),
            "and the job wants sha256:000",
        ),
        ("cut", artifact(&files.put("/cut", Reply::Cut(b"text".to_vec())), ""), "was cut off"),
        (
            "circle",
            artifact(&files.put("/circle", Reply::Redirect("/circle".to_owned())), ""),
            "redirects more than 10 times",
        ),
        ("down", artifact("http://127.0.0.1:1/x", ""), "cannot connect"),
        ("file", artifact("file:///etc/hostname", ""), "file_sources"),
        (
            "hostile",
            artifact(&files.body("/up.tar", &tar(&[("../../up", "x")])), ""),
            "has .. in it",
        ),
        ("other", artifact("${NOMAD_JOB_ID}::https://h/x", ""), "is not fetched by this agent"),
    ];
    for (id, block, _) in &cases {
        agent.submit(&job(id, 1, &shell("t", "true", block))).await.said(0, &[]);
    }
    for (id, _, why) in &cases {
        let (_, task) = over(&agent, id).await;
        assert_eq!(task["Failed"], true, "{id} {task:#}");
        let said = events(&task, "Failed Artifact Download");
        assert!(said.len() == 1 && said[0].contains(why), "{id}: {said:?}");
        assert!(said[0].starts_with("failed to download artifact"), "{said:?}");
        assert!(!task.to_string().contains("hidden-secret"), "{task:#}");
    }
    assert!(!agent.data.path().join("allocs").join("up").exists());
    eventually("nothing is left in between", || nothing_half(agent.data.path())).await;
    let bad = |block: &str| job("bad", 1, &shell("t", "true", block));
    for (block, why) in [
        (artifact("git::https://h/x.git", ""), "git:: is not fetched by this agent"),
        (
            artifact("https://h/x", "destination = \"../../etc\""),
            "leads out of the task's own directory",
        ),
        (checked("https://h/x", "sha256:12", ""), "has 64 hexadecimal digits"),
    ] {
        agent.submit(&bad(&block)).await.said(2, &[why]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_download_is_tried_again_by_the_restart_policy() {
    let (files, agent) = (Files::start().await, AgentProcess::start().await);
    let address = files.put("/late", Reply::Status(503));
    let first = files.body("/first", b"first");
    let blocks = artifact(&first, "") + &artifact(&address, "");
    let text = job("again", 1, &shell("t", "cat local/late", &blocks));
    let text =
        text.replace("attempts = 0\n", "attempts = 50\n delay = \"100ms\"\n interval = \"10m\"\n");
    agent.submit(&text).await.said(0, &[]);
    eventually("it is tried again", || files.count("/late") >= 2).await;
    files.body("/late", b"late");
    let (alloc, task) = over(&agent, "again").await;
    assert_eq!(task["Failed"], false, "{task:#}");
    assert_eq!(output(&agent, &alloc).await, "late");
    assert_eq!(files.count("/first"), 1, "what came is not fetched again");
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_a_task_breaks_its_download_off_and_leaves_nothing() {
    let (files, agent) = (Files::start().await, AgentProcess::start().await);
    let go_on = Arc::new(tokio::sync::Notify::new());
    let address = files.put("/held", Reply::Held(1 << 20, Arc::clone(&go_on)));
    let text = job("held", 1, &shell("t", "true", &artifact(&address, "")));
    agent.submit(&text).await.said(0, &[]);
    eventually("it is being fetched", || files.count("/held") == 1).await;
    let work = agent.data.path().join("artifacts/work");
    eventually("half of it is there", || {
        let places = std::fs::read_dir(&work).unwrap().flatten();
        places
            .filter_map(|place| std::fs::metadata(place.path().join("download")).ok())
            .any(|m| m.len() > 0)
    })
    .await;
    let fetchers = children(agent.pid());
    assert!(!fetchers.is_empty());
    agent.ask(&["job", "stop", "held"]).await.said(0, &[]);
    let (_, task) = over(&agent, "held").await;
    assert_eq!(task["StartedAt"], Value::Null, "{task:#}");
    eventually("nothing is left", || nothing_half(agent.data.path())).await;
    eventually("nobody fetches", || fetchers.iter().all(|pid| !fetches(*pid))).await;
}

/// Processes that fetch for the agent of this id.
fn children(agent: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of_agent = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line == format!("PPid:\t{agent}"))
    };
    pids.filter(of_agent).filter(|pid| fetches(*pid)).collect()
}

fn fetches(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.split(|byte| *byte == 0).any(|word| word == b"__fetch"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_killed_leaves_no_fetcher_and_the_next_one_fetches_anew() {
    let (files, agent) = (Files::start().await, AgentProcess::start().await);
    let go_on = Arc::new(tokio::sync::Notify::new());
    let address = files.put("/held", Reply::Held(1 << 20, Arc::clone(&go_on)));
    let script = "wc -c < local/held";
    agent.submit(&job("held", 1, &shell("t", script, &artifact(&address, "")))).await.said(0, &[]);
    eventually("somebody fetches", || {
        !children(agent.pid()).is_empty() && files.count("/held") == 1
    })
    .await;
    let fetchers = children(agent.pid());
    for pid in &fetchers {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line =
            |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        if rustix::process::geteuid().is_root() {
            assert_eq!(line("Uid:"), "Uid:\t65534\t65534\t65534\t65534");
            assert_eq!(line("Gid:"), "Gid:\t65534\t65534\t65534\t65534");
        }
        assert!(line("CapEff:").ends_with("0000000000000000"), "{status}");
        assert!(line("NoNewPrivs:").ends_with('1') && line("Seccomp:").ends_with('2'), "{status}");
    }
    agent.signal(Signal::KILL);
    let (_, data) = agent.ended().await;
    eventually("no fetcher outlives its agent", || fetchers.iter().all(|pid| !fetches(*pid))).await;
    let agent = AgentProcess::start_in(data, &[]).await;
    eventually("the next one asks again", || files.count("/held") >= 2).await;
    go_on.notify_one();
    let (alloc, task) = over(&agent, "held").await;
    assert_eq!(task["Failed"], false, "{task:#}");
    assert_eq!(output(&agent, &alloc).await.trim(), "1048576");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_runs_on_under_a_new_agent_fetches_nothing_again() {
    let (files, agent) = (Files::start().await, AgentProcess::start().await);
    let address = files.body("/x", b"text");
    let text = job(
        "on",
        1,
        &shell("t", "while ! test -e local/end; do sleep 0.05; done", &artifact(&address, "")),
    );
    let text = text.replace("type = \"batch\"", "type = \"service\"");
    agent.submit(&text).await.said(0, &[]);
    until("it runs", async || {
        tasks(&agent, "on").await.iter().any(|(_, t)| t["State"] == "running")
    })
    .await;
    agent.signal(Signal::KILL);
    let (_, data) = agent.ended().await;
    let agent = AgentProcess::start_in(data, &[]).await;
    until("it runs on", async || {
        tasks(&agent, "on")
            .await
            .iter()
            .any(|(_, t)| t["State"] == "running" && !events(t, "Recovered").is_empty())
    })
    .await;
    let alloc = agent.alloc("on").await;
    agent.ask(&["alloc", "restart", &alloc, "t"]).await.said(0, &[]);
    until("it was started again", async || {
        tasks(&agent, "on").await.iter().any(|(_, t)| t["Restarts"] == 1 && t["State"] == "running")
    })
    .await;
    assert_eq!(files.count("/x"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_bounds_what_is_fetched_and_allows_files_of_the_node() {
    let (files, home) = (Files::start().await, Home::new());
    let own = home.path().join("own");
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("x.txt"), "of the node").unwrap();
    std::os::unix::fs::symlink("/etc/hostname", own.join("out")).unwrap();
    let config = home.path().join("agent.hcl");
    let limits = format!(
        "{KEEPS}\nclient {{\n artifact {{\n http_max_size = \"1MB\"\n decompression_size_limit = \"1MB\"\n \
         decompression_file_count_limit = 3\n http_read_timeout = \"2s\"\n file_sources = [\"{}\"]\n }}\n}}\n",
        own.display()
    );
    std::fs::write(&config, limits).unwrap();
    let agent = AgentProcess::start_in(home, &["--config", config.to_str().unwrap()]).await;
    let own = own.display();
    let task = shell("t", "cat local/x.txt", &artifact(&format!("file://{own}/x.txt"), ""));
    agent.submit(&job("own", 1, &task)).await.said(0, &[]);
    let (alloc, task) = over(&agent, "own").await;
    assert_eq!(task["Failed"], false, "{task:#}");
    assert_eq!(output(&agent, &alloc).await, "of the node");
    let many: Vec<(&str, &str)> = ["a", "b", "c", "d"].into_iter().map(|name| (name, "")).collect();
    let large = "x".repeat(1_100_000);
    let gzip = gzipped(&tar(&[("large", &large)]));
    let held = Reply::Held(1 << 10, Arc::default());
    let cases = [
        ("out", artifact(&format!("file://{own}/out"), ""), "cannot open"),
        ("up", artifact(&format!("file://{own}/../x.txt"), ""), "file_sources"),
        ("endless", artifact(&files.put("/endless", Reply::Endless), ""), "http_max_size"),
        ("large", artifact(&files.body("/large", large.as_bytes()), ""), "http_max_size"),
        (
            "many",
            artifact(&files.body("/many.tar", &tar(&many)), ""),
            "decompression_file_count_limit",
        ),
        ("bomb", artifact(&files.body("/bomb.tar.gz", &gzip), ""), "decompression_size_limit"),
        ("slow", artifact(&files.put("/slow", held), ""), "did not send everything within 2s"),
    ];
    for (id, block, _) in &cases {
        agent.submit(&job(id, 1, &shell("t", "true", block))).await.said(0, &[]);
    }
    for (id, _, why) in &cases {
        let (_, task) = over(&agent, id).await;
        let said = events(&task, "Failed Artifact Download");
        assert!(said.len() == 1 && said[0].contains(why), "{id}: {said:?}");
    }
}

/// By the program: nothing else here packs.
pub fn gzipped(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut gzip = std::process::Command::new("gzip")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = gzip.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let feed = std::thread::spawn(move || stdin.write_all(&bytes));
    let packed = gzip.wait_with_output().unwrap().stdout;
    feed.join().unwrap().unwrap();
    packed
}

#[tokio::test(flavor = "multi_thread")]
async fn https_is_spoken_with_whom_an_authority_vouches_for() {
    let home = Home::new();
    let authority = Authority::new();
    let ca = authority.file(home.path());
    let files = Files::behind(Some(authority.acceptor("localhost"))).await;
    let plain = Files::start().await;
    let address = files.body("/x", b"encrypted");
    let down = files.put("/down", Reply::Redirect(plain.body("/x", b"plain")));
    let mut agent = AgentProcess::spawn(home, &[], |command| {
        command.env("SSL_CERT_FILE", &ca);
    });
    agent.hears("ready: the agent").await;
    let task = |address: &str| shell("t", "cat local/x", &artifact(address, ""));
    agent.submit(&job("tls", 1, &task(&address))).await.said(0, &[]);
    agent.submit(&job("down", 1, &task(&down))).await.said(0, &[]);
    let other = address.replace("localhost", "127.0.0.1");
    agent.submit(&job("other", 1, &task(&other))).await.said(0, &[]);
    let (alloc, task) = over(&agent, "tls").await;
    assert_eq!(task["Failed"], false, "{task:#}");
    assert_eq!(output(&agent, &alloc).await, "encrypted");
    let (_, task) = over(&agent, "down").await;
    let said = events(&task, "Failed Artifact Download");
    assert!(said[0].contains("from https to http"), "{said:?}");
    let (_, task) = over(&agent, "other").await;
    let said = events(&task, "Failed Artifact Download");
    assert!(said[0].contains("TLS with 127.0.0.1 failed"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_are_shown_to_the_host_that_they_are_meant_for_alone() {
    let (own, other) = (Files::start().await, Files::start().await);
    let agent = AgentProcess::start().await;
    let elsewhere = other.body("/x", b"text");
    own.put("/near", Reply::Redirect("/far".to_owned()));
    own.put("/far", Reply::Redirect(elsewhere));
    let near = own.put("/near", Reply::Redirect("/far".to_owned()));
    let with_user = near.replace("http://", "http://me:pass@");
    let block = artifact(&with_user, "headers {\n X-Token = \"hidden\"\n }\n");
    agent.submit(&job("far", 1, &shell("t", "cat local/near", &block))).await.said(0, &[]);
    let (alloc, task) = over(&agent, "far").await;
    assert_eq!(task["Failed"], false, "{task:#}");
    assert_eq!(output(&agent, &alloc).await, "text");
    assert!(own.heads("/near")[0].contains("authorization: Basic bWU6cGFzcw=="));
    assert!(own.heads("/far")[0].contains("x-token: hidden"));
    let head = other.heads("/x")[0].to_lowercase();
    assert!(!head.contains("hidden") && !head.contains("authorization"), "{head}");
}

/// Have a module in a registry; its reference by tag, and by the digest of its manifest.
fn pushed(files: &Files, module: &[u8]) -> [String; 2] {
    let (empty, layer) = (sha256(b"{}"), sha256(module));
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.empty.v1+json", "size": 2, "digest": empty},
        "layers": [{"mediaType": "application/wasm", "size": module.len(), "digest": layer}],
    });
    let manifest = manifest.to_string();
    let digest = sha256(manifest.as_bytes());
    files.body(&format!("/v2/team/app/manifests/{digest}"), manifest.as_bytes());
    let tagged = files.body("/v2/team/app/manifests/1", manifest.as_bytes());
    files.body(&format!("/v2/team/app/blobs/{layer}"), module);
    let registry = tagged.trim_start_matches("http://").split('/').next().unwrap().to_owned();
    [format!("oci://{registry}/team/app:1"), format!("oci://{registry}/team/app@{digest}")]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_of_a_registry_runs_by_tag_and_by_digest_and_where_it_is_trusted() {
    let files = Files::start().await;
    let module = std::fs::read(guest("toolbox")).unwrap();
    let [tagged, exact] = pushed(&files, &module);
    let blob = format!("/v2/team/app/blobs/{}", sha256(&module));
    let agent = AgentProcess::start().await;
    let task = |source: &str| wasm("t", source, &["args", "pulled"], "");
    for (id, source) in [("tag", &tagged), ("exact", &exact), ("again", &exact)] {
        agent.submit(&job(id, 1, &task(source))).await.said(0, &[]);
        let (alloc, task) = over(&agent, id).await;
        assert_eq!(task["Failed"], false, "{id} {task:#}");
        assert_eq!(output(&agent, &alloc).await.trim(), "pulled");
    }
    assert_eq!(files.count(&blob), 2, "what is named by its digest is kept");
    let block = artifact(&tagged, "");
    let text = job("file", 1, &wasm("t", "local/app.wasm", &["args", "brought"], &block));
    agent.submit(&text).await.said(0, &[]);
    let (alloc, state) = over(&agent, "file").await;
    assert_eq!(state["Failed"], false, "{state:#}");
    assert_eq!(output(&agent, &alloc).await.trim(), "brought");

    let home = Home::new();
    let (config, trust) = (home.path().join("agent.hcl"), home.path().join("trust.hcl"));
    let key = Signer::new(7).public_key();
    std::fs::write(&trust, format!("key \"release\" {{\n public_key = \"{key}\"\n}}\n")).unwrap();
    let block = "trust {\n file = \"trust.hcl\"\n require_signature = [\"oci\"]\n}\n";
    std::fs::write(&config, format!("{KEEPS}\n{block}")).unwrap();
    let agent = AgentProcess::start_in(home, &["--config", config.to_str().unwrap()]).await;
    for (id, source) in [("tag", &tagged), ("exact", &exact)] {
        agent.submit(&job(id, 1, &task(source))).await.said(0, &[]);
        let (_, task) = over(&agent, id).await;
        let said = events(&task, "Failed Artifact Download");
        assert!(said.len() == 1 && said[0].contains("sign"), "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_fetched_into_secrets_is_there_and_the_tasks_also_where_they_are_in_memory() {
    let (files, agent) = (Files::start().await, AgentProcess::start().await);
    let key = files.body("/key", b"key\n");
    let archive = files.body("/more.tar", &tar(&[("deep/in", "in\n"), ("top", "top\n")]));
    let large = files.body("/large", &vec![b'x'; 3 << 20]);
    let brought = [
        artifact(&key, "destination = \"secrets/\""),
        artifact(&key, "mode = \"file\"\n destination = \"${NOMAD_SECRETS_DIR}/own/name\""),
        artifact(&archive, "destination = \"secrets/tree\""),
    ];
    let script = "cd $NOMAD_SECRETS_DIR && cat key own/name tree/deep/in tree/top && \
                  ls -A . tree | grep -c unfinished";
    agent.submit(&job("kept", 1, &shell("t", script, &brought.concat()))).await.said(0, &[]);
    let (alloc, _task) = over(&agent, "kept").await;
    let said = output(&agent, &alloc).await;
    assert_eq!(said, "key\nkey\nin\ntop\n0\n");
    if rustix::process::geteuid().is_root() {
        let too_large = artifact(&large, "destination = \"secrets/\"");
        agent.submit(&job("large", 1, &shell("t", "true", &too_large))).await.said(0, &[]);
        let (_, task) = over(&agent, "large").await;
        let said = events(&task, "Failed Artifact Download");
        assert!(said[0].contains("resources { secrets = MIB }"), "{said:?}");
    }
}
