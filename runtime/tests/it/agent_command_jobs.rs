//! `ostler job run|plan|status|stop` against a running agent.

use std::process::Stdio;

use serde_json::Value;

use crate::support::agent_process::AgentProcess;
use crate::support::binary::{command, ostler};
use crate::support::jobs::{SOON_HEALTHY, STAYS_FAILED, lifecycle, shell, wasm, with_guests};
use crate::support::system::{eventually, runs, until};

fn job(id: &str, count: u32, tasks: &str) -> String {
    let restart = "restart {\n attempts = 0\n mode = \"fail\"\n }";
    with_guests(&format!(
        "job \"{id}\" {{\n group \"g\" {{\n count = {count}\n {SOON_HEALTHY}\n {restart}\n {STAYS_FAILED}\n {tasks}\n }}\n}}\n"
    ))
}

fn sleeper(id: &str, count: u32) -> String {
    job(id, count, &shell("t", "exec sleep 600", ""))
}

#[tokio::test]
async fn a_job_is_run_followed_shown_and_stopped() {
    let agent = AgentProcess::start().await;
    let ran = agent.run(&sleeper("web", 2)).await;
    ran.said(0, &["job web is at version 0", "2 placed", "Started", "is running", "job web runs"]);
    assert_eq!(ran.stdout, "", "{ran:#?}");

    let list = agent.json(&["job", "status", "--json"]).await;
    assert_eq!(
        (&list[0]["ID"], &list[0]["Status"]),
        (&"web".into(), &"running".into()),
        "{list:#}"
    );
    let table = agent.ask(&["job", "status"]).await.stdout;
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..6], ["web", "default", "service", "50", "running", "2"], "{table}");
    let shown = agent.ask(&["job", "status", "web"]).await.stdout;
    assert_eq!(shown.matches("Tasks are running").count(), 2, "{shown}");

    let stopped = agent.ask(&["job", "stop", "web"]).await;
    stopped.said(0, &["job web is stopping", "is complete", "job web is stopped"]);
    let allocs = agent.allocs("web").await;
    assert!(allocs.iter().all(|alloc| alloc["ClientStatus"] == "complete"), "{allocs:#?}");
    let job = agent.json(&["job", "status", "--json", "web"]).await;
    assert_eq!((&job["job"]["Status"], &job["job"]["Stop"]), (&"dead".into(), &true.into()));

    agent.ask(&["job", "stop", "--purge", "web"]).await.said(0, &["is stopped"]);
    agent.ask(&["job", "status", "web"]).await.said(2, &["there is no job web"]);
}

#[tokio::test]
async fn a_plan_tells_changes_by_its_exit_code_and_changes_nothing() {
    let agent = AgentProcess::start().await;
    let file = agent.file("plan.hcl", &sleeper("web", 1));
    let plan = ["job", "plan", file.to_str().unwrap()];
    let new = agent.ask(&plan).await;
    assert_eq!(new.code, Some(1), "{new:#?}");
    assert!(
        new.stdout.contains("job web (new)") && new.stdout.contains("--check-index 0"),
        "{new:#?}"
    );
    assert_eq!(agent.ask(&["job", "status"]).await.stdout, "no jobs\n");

    agent.run(&sleeper("web", 1)).await.said(0, &[]);
    let same = agent.ask(&plan).await;
    assert_eq!(same.code, Some(0), "{same:#?}");
    assert!(same.stdout.ends_with("nothing would change\n"), "{same:#?}");

    std::fs::write(&file, sleeper("web", 3)).unwrap();
    let more = agent.ask(&plan).await;
    assert_eq!(more.code, Some(1), "{more:#?}");
    let groups = &answer(&agent, &file).await["Annotations"]["DesiredTGUpdates"]["g"];
    assert_eq!(groups["Place"], 2, "{groups:#}");

    let huge = sleeper("web", 1).replace("cpu = 20", "cpu = 100000000");
    std::fs::write(&file, huge).unwrap();
    let waits = agent.ask(&plan).await;
    assert_eq!(waits.code, Some(3), "{waits:#?}");
    assert!(waits.stdout.contains("what would wait\n  group g: 1 allocation waits"), "{waits:#?}");
    assert_eq!(agent.allocs("web").await.len(), 1, "nothing came of it");
}

#[tokio::test]
async fn a_job_that_does_not_fit_is_taken_and_waits_with_its_reason() {
    let agent = AgentProcess::start().await;
    agent.run(&sleeper("web", 1)).await.said(0, &[]);
    let old = agent.alloc("web").await;
    let huge = sleeper("web", 1).replace("cpu = 20", "cpu = 100000000");
    let said = ["at version 1", "1 allocation waits", "MHz", "does not fit on the node now"];
    agent.run(&huge).await.said(3, &said);
    agent.submit(&huge).await.said(0, &["1 allocation waits"]);
    assert_eq!(agent.alloc("web").await, old, "the old version runs on");
    let shown = agent.ask(&["job", "status", "web"]).await.stdout;
    let waits = shown.lines().find(|line| line.starts_with("waits for")).unwrap();
    assert!(waits.contains("MHz of processor time"), "{shown}");
    let list = agent.ask(&["job", "status"]).await.stdout;
    assert!(list.contains("MHz of processor time"), "{list}");
    // A job that never ran.
    let unmet = "constraint {\n attribute = \"${attr.kernel.name}\"\n value = \"none\"\n }\n group";
    let never = sleeper("new", 1).replacen("group", unmet, 1);
    agent.run(&never).await.said(3, &["constraint", "job new is registered"]);
    let job = agent.json(&["job", "status", "--json", "new"]).await;
    assert_eq!(job["job"]["Status"], "pending", "{job:#}");
    agent.ask(&["job", "stop", "--purge", "new"]).await.said(0, &["is stopped"]);
    // A driver that nobody has: with its line, and nothing is registered.
    let unknown = agent.file("unknown.hcl", &sleeper("no", 1).replace("\"raw_exec\"", "\"exek\""));
    for command in ["run", "plan", "validate"] {
        let ended = agent.ask(&["job", command, unknown.to_str().unwrap()]).await;
        ended.said(
            2,
            &["unknown.hcl:", "no driver exek", "did you mean exec?", "driver = \"exek\""],
        );
    }
    agent.ask(&["job", "status", "no"]).await.said(2, &[]);
}

/// What a plan prints with `--json`, whatever its exit code.
async fn answer(agent: &AgentProcess, file: &std::path::Path) -> Value {
    let ended = agent.ask(&["job", "plan", "--json", file.to_str().unwrap()]).await;
    serde_json::from_str(&ended.stdout).unwrap()
}

#[tokio::test]
async fn a_job_is_updated_only_at_the_index_that_was_seen() {
    let agent = AgentProcess::start().await;
    let file = agent.file("web.hcl", &sleeper("web", 1));
    let file = file.to_str().unwrap();
    let run = async |index: &str| agent.ask(&["job", "run", "--check-index", index, file]).await;
    run("7").await.said(3, &["web"]);
    run("0").await.said(0, &["job web runs"]);
    run("0").await.said(3, &["job modify index"]);
    let job = agent.json(&["job", "status", "--json", "web"]).await;
    let index = job["job"]["JobModifyIndex"].to_string();
    std::fs::write(file, sleeper("web", 2)).unwrap();
    run(&index).await.said(0, &["version 1", "job web runs"]);
}

#[tokio::test]
async fn detached_the_ids_are_printed_for_scripts() {
    let agent = AgentProcess::start().await;
    let file = agent.file("web.hcl", &sleeper("web", 2));
    let ended = agent.ask(&["job", "run", "--detach", file.to_str().unwrap()]).await;
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    let mut printed: Vec<&str> = ended.stdout.lines().collect();
    let allocs = agent.allocs("web").await;
    let mut ids: Vec<&str> = allocs.iter().map(|alloc| alloc["ID"].as_str().unwrap()).collect();
    printed.sort_unstable();
    ids.sort_unstable();
    assert_eq!((printed.len(), printed), (2, ids));
    let done = agent.json(&["job", "run", "--json", file.to_str().unwrap()]).await;
    assert_eq!((&done["job"], &done["version"]), (&"web".into(), &0.into()), "{done:#}");
    assert_eq!(done["outcome"], "runs");
}

#[tokio::test]
async fn a_job_that_fails_is_told_with_the_reason() {
    let agent = AgentProcess::start().await;
    let tasks =
        [shell("init", "exit 7", &lifecycle("prestart", false)), shell("main", "sleep 600", "")];
    let ended = agent.run(&job("bad", 1, &tasks.concat())).await;
    ended.said(1, &["init | ", "Exit Code: 7", "is failed", "an allocation of job bad failed"]);
}

#[tokio::test]
async fn a_job_whose_health_is_judged_is_followed_to_the_verdict() {
    let agent = AgentProcess::start().await;
    let judged = |id: &str, deadline: &str, progress: &str, more: &str| {
        let update = format!(
            "update {{\n min_healthy_time = \"1s\"\n healthy_deadline = \"{deadline}\"\n \
             progress_deadline = \"{progress}\"\n }}\n{more}"
        );
        sleeper(id, 1).replace(SOON_HEALTHY, &update)
    };
    let well = agent.run(&judged("well", "2m", "3m", "")).await;
    well.said(0, &["is running", "is healthy", "job well runs"]);
    // Nobody listens on its port.
    let service = "network {\n port \"http\" {}\n }\n service {\n name = \"s\"\n port = \"http\"\n \
                   check {\n type = \"tcp\"\n interval = \"1s\"\n timeout = \"1s\"\n }\n }";
    let ill = agent.run(&judged("ill", "3s", "4s", service)).await;
    let why = "the deployment of job ill failed: Failed due to progress deadline";
    ill.said(1, &["is running", "is unhealthy", why, "`ostler deployment status "]);
    let file = agent.file("ill.hcl", &judged("ill-too", "3s", "4s", service));
    agent.ask(&["job", "run", "--detach", file.to_str().unwrap()]).await.said(0, &[]);
}

#[tokio::test]
async fn what_is_wrong_in_a_job_file_is_shown_with_its_place_before_the_agent_is_asked() {
    let agent = AgentProcess::start().await;
    let ended = agent.run("job \"a\" {\n  grup \"g\" {}\n}\n").await;
    ended.said(2, &["job.hcl:2:3", "grup", "group"]);
    let config = sleeper("web", 1)
        .replace("command = \"/bin/sh\"", "comand = \"/bin/sh\"")
        .replace("\"raw_exec\"", "\"exec\"");
    let file = agent.file("bad2.hcl", &config);
    let file = file.to_str().unwrap();
    let (line, text) =
        config.lines().enumerate().find(|(_, line)| line.contains("comand")).unwrap();
    let column = text.find("comand").unwrap() + 1;
    let place = format!("{file}:{}:{column}: error: \"comand\" is unknown", line + 1);
    for command in ["run", "plan", "validate"] {
        let ended = match command {
            "validate" => ostler(["job", command, file]).await,
            _ => agent.ask(&["job", command, file]).await,
        };
        ended
            .said(2, &[&place, text, "^^^^^^", "did you mean command?", "bad2.hcl has 2 problems"]);
        assert!(ended.stderr.contains("command is missing"), "{ended:#?}");
    }
    assert_eq!(agent.ask(&["job", "status"]).await.stdout, "no jobs\n");
}

#[tokio::test]
async fn what_a_job_asks_for_in_vain_is_named_with_its_place_by_every_command() {
    let agent = AgentProcess::start().await;
    let vain = "job \"web\" {\n priority = 70\n region = \"eu\"\n";
    let text = sleeper("web", 2).replace("job \"web\" {\n", vain);
    let file = agent.file("vain.hcl", &text);
    let file = file.to_str().unwrap();
    let said = [format!("{file}:3:11: warning: region has no effect yet")];
    for (args, code) in [
        (&["job", "validate", "--syntax-only", file][..], 0),
        (&["job", "plan", file], 1),
        (&["job", "run", file], 0),
        (&["job", "plan", file], 0),
    ] {
        let ended = agent.ask(args).await;
        ended.said(code, &said.each_ref().map(String::as_str));
        // What the agent says of the same text is not told once more.
        assert_eq!(ended.stderr.matches("has no effect yet").count(), 1, "{args:?} {ended:#?}");
        assert!(!ended.stdout.contains("has no effect yet"), "{args:?} {ended:#?}");
    }
    let done = agent.json(&["job", "run", "--json", file]).await;
    assert_eq!(done["warnings"].as_array().unwrap().len(), 1, "{done:#}");
    assert_eq!(done["agent_warnings"], serde_json::json!([]), "{done:#}");
}

#[tokio::test]
async fn a_job_that_no_driver_here_runs_is_refused_with_its_line_without_an_agent_too() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("job.hcl");
    for (driver, said) in [
        ("exce", ["no driver exce; the loaded ones are: exec", "did you mean exec?"]),
        ("docker", ["no driver docker; the loaded ones are: exec", "driver = \"docker\""]),
    ] {
        let text = sleeper("web", 1).replace("\"raw_exec\"", &format!("\"{driver}\""));
        std::fs::write(&file, text).unwrap();
        let ended = ostler(["job", "validate", file.to_str().unwrap()]).await;
        ended.said(2, &["job.hcl:", said[0], said[1]]);
        assert!(!ended.stdout.contains("is valid"), "{ended:#?}");
    }
    // What an agent switches on is not known where none is asked.
    std::fs::write(&file, sleeper("web", 1)).unwrap();
    let ended = ostler(["job", "validate", file.to_str().unwrap()]).await;
    ended.said(0, &["warning: group g, task", "no agent was asked", "raw_exec is off unless"]);
    assert!(ended.stdout.contains("is valid"), "{ended:#?}");
    let ended = ostler(["job", "validate", "--json", file.to_str().unwrap()]).await;
    let verdict: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&verdict["valid"], &verdict["drivers_checked"]), (&true.into(), &false.into()));
    // A configuration says it.
    let config = data.path().join("agent.hcl");
    let block = |enabled: bool| format!("plugin \"raw_exec\" {{\n enabled = {enabled}\n}}\n");
    for (text, code) in [(String::new(), 2), (block(false), 2), (block(true), 0)] {
        std::fs::write(&config, &text).unwrap();
        let [config, file] = [&config, &file].map(|path| path.to_str().unwrap());
        let ended = ostler(["job", "validate", "--config", config, file]).await;
        let said =
            if code == 0 { &[][..] } else { &["job.hcl:", "raw_exec isolates nothing and is off"] };
        ended.said(code, said);
        assert!(!ended.stderr.contains("no agent was asked"), "{ended:#?}");
    }
}

#[tokio::test]
async fn jobs_are_found_by_the_beginning_of_their_id_when_it_means_one() {
    let agent = AgentProcess::start().await;
    for id in ["web", "web-two", "db"] {
        agent.run(&sleeper(id, 1)).await.said(0, &[]);
    }
    let shown = async |given: &str| agent.ask(&["job", "status", given]).await;
    assert!(shown("d").await.stdout.starts_with("job          db\n"));
    assert!(shown("web").await.stdout.starts_with("job          web\n"), "exactly this one");
    shown("we").await.said(2, &["2 jobs' ids begin with we", "web (running)", "web-two (running)"]);
    shown("nope").await.said(2, &["there is no job nope"]);
    shown("").await.said(2, &["empty"]);
}

#[tokio::test]
async fn ctrl_c_ends_the_following_and_not_the_job() {
    let agent = AgentProcess::start().await;
    // The prestart task waits, so that the job is not running yet.
    let gate = agent.data.path().join("gate");
    let wait = format!("while [ ! -e {} ]; do sleep 0.1; done", gate.display());
    let tasks =
        [shell("init", &wait, &lifecycle("prestart", false)), shell("main", "exec sleep 600", "")];
    let file = agent.file("web.hcl", &job("web", 2, &tasks.concat()));
    let dir = agent.data.path().to_str().unwrap();
    let child = command(["job", "run", file.to_str().unwrap(), "--data-dir", dir]).spawn().unwrap();
    let pid = child.id().unwrap();
    // It follows as soon as the job is there; one of two places is enough to see that.
    until("the job is there", async || agent.ask(&["job", "status", "web"]).await.code == Some(0))
        .await;
    let takes_signals = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        u64::from_str_radix(mask.unwrap_or("0").trim(), 16).is_ok_and(|mask| mask & 2 != 0)
    };
    eventually("it waits for signals", || takes_signals() || !runs(pid)).await;
    let raw = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(raw, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("job web keeps running"), "{said}");
    std::fs::write(&gate, "").unwrap();
    until("the job runs", async || {
        agent.allocs("web").await.iter().all(|alloc| alloc["ClientStatus"] == "running")
    })
    .await;
}

#[tokio::test]
async fn wasm_and_native_tasks_of_a_batch_job_run_to_their_end() {
    let agent = AgentProcess::start().await;
    let tasks = [wasm("w", "guest:toolbox", &["args", "hello"], ""), shell("n", "echo native", "")]
        .concat();
    let text = job("once", 1, &tasks)
        .replace("job \"once\" {", "job \"once\" {\n type = \"batch\"")
        .replace(SOON_HEALTHY, "");
    let file = agent.file("once.hcl", &text);
    let run = ["job", "run", "--settle", "10m", file.to_str().unwrap()];
    agent.ask(&run).await.said(0, &["is complete", "all of job once is complete"]);
    let id = agent.alloc("once").await;
    assert_eq!(agent.ask(&["alloc", "logs", &id, "w"]).await.stdout, "hello\n");
    assert_eq!(agent.ask(&["alloc", "logs", &id, "n"]).await.stdout, "native\n");
}

#[tokio::test]
async fn a_reader_that_left_is_no_error_message() {
    let agent = AgentProcess::start().await;
    let dir = agent.data.path().to_str().unwrap();
    let mut listing = command(["plugin", "list", "--data-dir", dir]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    // Not by `output`, which would put a pipe of its own in place.
    let listing = listing.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let output = listing.wait_with_output().await.unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(141), Vec::new()));
    ostler(["job", "status", "x", "y"]).await.said(2, &[]);
}

#[tokio::test]
async fn values_of_variables_come_from_the_command_line_files_and_the_environment() {
    let agent = AgentProcess::start().await;
    let text = job("web", 1, &shell("t", "exec sleep 600", "env { VALUES = local.values }"))
        .replace("count = 1", "count = length(var.names)");
    let declared = "variable \"names\" {\n type = list(string)\n}\nvariable \"a\" {}\nvariable \"b\" {}\n\
                    locals {\n values = \"${var.a} ${var.b} ${join(\",\", var.names)} ${file(\"here.txt\")}\"\n}\n";
    let file = agent.file("web.hcl", &format!("{declared}{text}"));
    let values = agent.file("values.json", r#"{"a": "file", "b": "file"}"#);
    agent.file("here.txt", "read");
    let (file, values) = (file.to_str().unwrap(), values.to_str().unwrap());
    let missing = ostler(["job", "validate", "--syntax-only", file]).await;
    missing.said(2, &["the variable \"names\" has no value", "NOMAD_VAR_names", "here.txt"]);
    let given = ["--var", "a=flag", "-var-file", values, "-var=names=[\"x\", \"y\"]"];
    let here = std::path::Path::new(file).parent().unwrap();
    let ask = async |args: &[&str]| {
        let mut asked = command(args);
        asked.args(given).arg(file).env("NOMAD_VAR_b", "env").env("NOMAD_VAR_c", "other");
        asked.arg("--data-dir").arg(here).current_dir(here);
        asked.output().await.unwrap()
    };
    let valid = ask(&["job", "validate", "--syntax-only"]).await;
    assert!(valid.status.success(), "{}", String::from_utf8_lossy(&valid.stderr));
    let ran = ask(&["job", "run", "--detach"]).await;
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let shown = agent.json(&["job", "status", "--json", "web"]).await;
    let group = &shown["job"]["TaskGroups"][0];
    assert_eq!(group["Count"], 2, "{group:#}");
    assert_eq!(group["Tasks"][0]["Env"]["VALUES"], "flag file x,y read");
    let typo = agent.ask(&["job", "plan", "--var", "nmes=[]", file]).await;
    typo.said(2, &["-var gives \"nmes\" a value", "did you mean names?"]);
}

#[tokio::test]
async fn how_long_a_kill_timeout_may_be_is_configured_and_told() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("job.hcl");
    let text = sleeper("web", 1).replace("driver =", "kill_timeout = \"45s\"\n driver =");
    std::fs::write(&file, text).unwrap();
    let config = data.path().join("agent.hcl");
    let longer =
        "client {\n max_kill_timeout = \"1m\"\n}\nplugin \"raw_exec\" {\n enabled = true\n}\n";
    std::fs::write(&config, longer).unwrap();
    let (file, config) = (file.to_str().unwrap(), config.to_str().unwrap());
    let short = ostler(["job", "validate", file]).await;
    short.said(
        0,
        &["group g, task t: kill_timeout of 45s is longer than this node allows", "after 30s"],
    );
    let long = ostler(["job", "validate", "--config", config, file]).await;
    assert!(long.code == Some(0) && !long.stderr.contains("kill_timeout"), "{long:#?}");
}
