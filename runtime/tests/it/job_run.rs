//! What `ostler job run` says at its end, and what it did: also of jobs that end, and of those that are there already.

use crate::support::agent_process::AgentProcess;
use crate::support::binary::ostler;
use crate::support::jobs::{AT_ONCE, STAYS_FAILED, shell, with_guests};

/// A job of this type, whose one task is this script and fails for good.
fn job(kind: &str, more: &str, script: &str) -> String {
    let restart = "restart {\n attempts = 0\n mode = \"fail\"\n }";
    with_guests(&format!(
        "job \"j\" {{\n type = \"{kind}\"\n group \"g\" {{\n {restart}\n {more}\n {}\n }}\n}}\n",
        shell("t", script, "")
    ))
}

#[tokio::test]
async fn a_job_that_fails_at_once_never_counts_as_one_that_runs() {
    let agent = AgentProcess::start().await;
    // Long enough to be seen running, and no longer.
    let script = "sleep 0.3; exit 7";
    for (n, (kind, more)) in [
        ("batch", STAYS_FAILED),
        ("batch", ""),
        ("sysbatch", ""),
        ("system", ""),
        ("service", &[AT_ONCE, STAYS_FAILED].join("\n")),
    ]
    .into_iter()
    .enumerate()
    {
        let text = job(kind, more, script).replace("job \"j\"", &format!("job \"j{n}\""));
        let file = agent.file("fails.hcl", &text);
        let ran = agent.ask(&["job", "run", "--settle", "2m", file.to_str().unwrap()]).await;
        ran.said(1, &["is failed", &format!("an allocation of job j{n} failed"), "Exit Code: 7"]);
    }
}

#[tokio::test]
async fn of_a_complete_job_it_is_said_that_nothing_runs_and_it_can_run_again() {
    let agent = AgentProcess::start().await;
    let file = agent.file("once.hcl", &job("batch", STAYS_FAILED, "exit 0"));
    let file = file.to_str().unwrap();
    let run = async |more: &[&str]| {
        agent.ask(&[&["job", "run", "--settle", "2m"], more, &[file]].concat()).await
    };
    run(&[]).await.said(0, &["at version 0", "1 placed", "all of job j is complete"]);
    let again = run(&[]).await;
    again.said(
        0,
        &["nothing of job j was started", "all of it is complete", "`ostler job run --rerun "],
    );
    assert_eq!(agent.allocs("j").await.len(), 1);
    let done = run(&["--json"]).await;
    let done: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!((&done["outcome"], &done["placed"]), (&"complete".into(), &serde_json::json!([])));
    let again = run(&["--rerun"]).await;
    again.said(0, &["at version 1", "1 placed", "all of job j is complete"]);
    assert_eq!(agent.allocs("j").await.len(), 2);
    // The command that is advised reads the same file with the same variables.
    let once = job("batch", STAYS_FAILED, "exit 0").replace("job \"j\"", "job \"v\"");
    std::fs::write(file, format!("variable \"unused\" {{\n default = \"\"\n}}\n{once}")).unwrap();
    let given = ["--var", "unused=a b"];
    run(&given).await.said(0, &["all of job v is complete"]);
    let advised = "`ostler job run --rerun --settle 2m --var 'unused=a b' ";
    run(&given).await.said(0, &["nothing of job v was started", advised]);
    // One that failed is not run again for nothing either.
    let failing = job("batch", STAYS_FAILED, "exit 3").replace("job \"j\"", "job \"f\"");
    std::fs::write(file, failing).unwrap();
    run(&[]).await.said(1, &["an allocation of job f failed"]);
    run(&[]).await.said(1, &["nothing of job f was started", "`ostler job run --rerun "]);
}

#[tokio::test]
async fn a_batch_job_is_followed_until_the_successor_that_it_is_allowed_has_ended() {
    let agent = AgentProcess::start().await;
    let mark = agent.data.path().join("failed-once");
    let mark = mark.display();
    let script = format!("test -e {mark} || {{ touch {mark}; exit 3; }}");
    let file = agent.file("again.hcl", &job("batch", "", &script));
    let ran = agent.ask(&["job", "run", "--settle", "2m", file.to_str().unwrap()]).await;
    ran.said(0, &["is failed", "will take the place of", "all of job j is complete"]);
    let allocs = agent.allocs("j").await;
    let with = |status: &str| {
        let one = allocs.iter().find(|alloc| alloc["ClientStatus"] == status);
        one.unwrap_or_else(|| panic!("none is {status}: {allocs:#?}"))["ID"].as_str().unwrap()
    };
    let [failed, next] = [with("failed"), with("complete")].map(|id| &id[..8]);
    ran.said(
        0,
        &[&format!("placed j.g[0] as allocation {next}, in place of {failed} that failed")],
    );
}

#[tokio::test]
async fn of_a_job_whose_counts_are_0_it_is_said_that_nothing_is_to_run() {
    let agent = AgentProcess::start().await;
    let none = job("service", "count = 0", "exec sleep 600");
    let said =
        ["nothing of job j should run: the counts of its groups are 0", "`ostler job scale j g 1`"];
    for _ in 0..2 {
        let ran = agent.run(&none).await;
        ran.said(0, &said);
        assert!(!ran.stderr.contains("complete"), "{ran:#?}");
    }
    agent.ask(&["job", "stop", "j"]).await.said(0, &[]);
    agent.run(&none).await.said(0, &[&["at version 1"], &said[..]].concat());
}

#[tokio::test]
async fn a_deployment_that_is_reverted_is_told_to_its_end() {
    let agent = AgentProcess::start().await;
    let service = |script: &str| {
        let update = "update {\n min_healthy_time = \"100ms\"\n healthy_deadline = \"2s\"\n \
                      progress_deadline = \"3s\"\n auto_revert = true\n }";
        job("service", &[update, STAYS_FAILED].join("\n"), script)
    };
    agent.run(&service("exec sleep 600")).await.said(0, &["job j runs"]);
    let failed = agent.run(&service("exit 4")).await;
    failed.said(
        1,
        &[
            "the deployment of job j failed: Failed due to",
            "rolling back to job version 0; the job is at version 2 now",
            "task t of j.g[0] failed",
        ],
    );
}

#[tokio::test]
async fn as_many_canaries_as_the_count_wait_for_promotion_all_the_same() {
    let agent = AgentProcess::start().await;
    let service = |value: &str| {
        let update = "update {\n min_healthy_time = \"100ms\"\n canary = 1\n }";
        job("service", update, &format!(": {value}; exec sleep 600"))
    };
    agent.run(&service("one")).await.said(0, &["job j runs"]);
    let ran = agent.run(&service("two")).await;
    ran.said(0, &["the canaries of job j are healthy", "`ostler job promote j`"]);
    assert!(!ran.stderr.contains("job j runs"), "{ran:#?}");
    agent.ask(&["job", "promote", "j"]).await.said(0, &[]);
    agent.run(&service("two")).await.said(0, &["job j runs"]);
}

#[tokio::test]
async fn only_what_is_named_whole_is_changed() {
    let agent = AgentProcess::start().await;
    let sleeper = |id: &str| {
        let text = job("service", AT_ONCE, "exec sleep 600");
        text.replace("job \"j\"", &format!("job \"{id}\""))
    };
    agent.run(&sleeper("production-db")).await.said(0, &[]);
    let alloc = agent.alloc("production-db").await;
    for args in [
        &["job", "stop", "prod"][..],
        &["job", "stop", "--purge", "prod"],
        &["job", "revert", "prod", "0"],
        &["job", "promote", "prod"],
        &["job", "scale", "prod", "3"],
    ] {
        let asked = agent.ask(args).await;
        asked.said(4, &["prod is only the beginning of job production-db", "nothing was done"]);
    }
    // What follows the task is its command.
    let data = agent.data.path().to_str().unwrap();
    let exec = async |task: &[&str]| {
        ostler([&["alloc", "exec", "--data-dir", data][..], task, &["true"]].concat()).await
    };
    let asked = exec(&["--job", "prod"]).await;
    asked.said(4, &["prod is only the beginning of job production-db", "nothing was done"]);
    let asked = exec(&[&alloc[..4]]).await;
    asked.said(4, &["is only the beginning of allocation", "nothing was done"]);
    for args in [
        &["alloc", "stop", &alloc[..4]][..],
        &["alloc", "restart", &alloc[..4]],
        &["alloc", "signal", "-s", "TERM", &alloc[..4]],
        &["gc", &alloc[..4]],
    ] {
        agent.ask(args).await.said(4, &["is only the beginning of allocation", "nothing was done"]);
    }
    assert_eq!(agent.alloc("production-db").await, alloc, "it runs as before");
    // Lists show so much of an id, and looking needs no whole name.
    agent.ask(&["alloc", "signal", "-s", "CONT", &alloc[..8]]).await.said(0, &[]);
    agent.ask(&["job", "status", "prod"]).await.said(0, &[]);
    agent.ask(&["job", "stop", "-yes", "prod"]).await.said(0, &["job production-db is stopped"]);
}

#[tokio::test]
async fn a_plan_says_what_happens_in_the_words_of_the_job_file() {
    let agent = AgentProcess::start().await;
    let service = |count: u32, word: &str, service: &str| {
        let update = "update {\n min_healthy_time = \"100ms\"\n }";
        let template = format!(
            "template {{\n destination = \"local/x\"\n data = <<EOT\nfirst\n{word}\nlast\nEOT\n}}"
        );
        let more = format!("count = {count}\n{update}\n{service}");
        let text = job("service", &more, "exec sleep 600");
        let text = text.replacen("driver =", &format!("{template}\n driver ="), 1);
        format!("variable \"unused\" {{\n default = \"\"\n}}\n{text}")
    };
    let listed = "service {\n name = \"shop\"\n provider = \"nomad\"\n }";
    agent.run(&service(2, "one", listed)).await.said(0, &[]);
    let file = agent.file("next.hcl", &service(3, "two", ""));
    let file = file.to_str().unwrap();
    let planned = agent.ask(&["job", "plan", "--var", "unused=a b", file]).await;
    assert_eq!(planned.code, Some(1), "{planned:#?}");
    for part in [
        "\n  group \"g\" count: 2 -> 3\n",
        "\n  group \"g\" service \"shop\": removed\n",
        "\n  group \"g\" task \"t\" template \"local/x\" data: (forces replacement)\n",
        "\n    - one\n    + two\n",
        "ostler job run --check-index ",
        " --var 'unused=a b' ",
    ] {
        assert!(planned.stdout.contains(part), "{part:?} is missing in:\n{}", planned.stdout);
    }
    let row = planned.stdout.lines().find(|line| line.starts_with("g ")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().skip(1).collect();
    assert_eq!(cells, ["1", "0", "0", "0", "2", "0", "0", "0"], "{}", planned.stdout);
}
