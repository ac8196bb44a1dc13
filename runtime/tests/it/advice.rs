//! What `ostler explain` advises is done here, word for word, and does what it says. That each of its command lines is
//! one is a test of the command line itself.

use crate::support::agent_process::AgentProcess;
use crate::support::jobs::{AT_ONCE, STAYS_FAILED, shell, wasm, with_guests};
use crate::support::system::until;

fn job(kind: &str, more: &str, task: &str) -> String {
    let restart = "restart {\n attempts = 0\n mode = \"fail\"\n }";
    with_guests(&format!(
        "job \"j\" {{\n type = \"{kind}\"\n group \"g\" {{\n {restart}\n {more}\n {task}\n }}\n}}\n"
    ))
}

/// The words of the command that begins so and is advised for something.
async fn advised(agent: &AgentProcess, what: &str, begins: &str) -> Vec<String> {
    let told = agent.json(&["explain", "--json", what]).await;
    let next: Vec<&str> =
        told["next"].as_array().unwrap().iter().filter_map(|next| next.as_str()).collect();
    let mut commands = next.iter().flat_map(|next| next.split('`').skip(1).step_by(2));
    let begins = format!("ostler {begins}");
    let found = commands.find(|command| command.starts_with(&begins));
    let found = found.unwrap_or_else(|| panic!("no {begins:?} is advised: {told:#}"));
    found.split(' ').skip(1).map(str::to_owned).collect()
}

/// Do what is advised, with a word in the place of another.
async fn follow(agent: &AgentProcess, words: &[String], word: &str, given: &str) -> String {
    let words: Vec<&str> =
        words.iter().map(|own| if own == word { given } else { own.as_str() }).collect();
    let ended = agent.ask(&words).await;
    assert_eq!(ended.code, Some(0), "{words:?}: {ended:#?}");
    ended.stdout
}

async fn status(agent: &AgentProcess, alloc: &str) -> String {
    let told = agent.json(&["alloc", "status", "--json", alloc]).await;
    told["ClientStatus"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_job_that_failed_for_good_is_looked_into_and_run_again_as_it_is() {
    let agent = AgentProcess::start().await;
    let once = format!("echo because >&2; test -e {}/mended", agent.data.path().display());
    let file = agent.file("once.hcl", &job("batch", STAYS_FAILED, &shell("t", &once, "")));
    let file = file.to_str().unwrap();
    agent.ask(&["job", "run", file]).await.said(1, &["an allocation of job j failed"]);
    let alloc = agent.allocs("j").await[0]["ID"].as_str().unwrap().to_owned();
    agent.file("mended", "");
    for what in [&alloc[..8], "j"] {
        let look = advised(&agent, what, "alloc logs").await;
        let told = follow(&agent, &look, "", "").await;
        assert_eq!(told, "because\n");
    }
    let again = advised(&agent, &alloc[..8], "job run").await;
    follow(&agent, &again, "FILE", file).await;
    let allocs = agent.allocs("j").await;
    assert_eq!(allocs.len(), 2, "{allocs:#?}");
    let done = agent.ask(&["explain", "j"]).await;
    assert!(done.stdout.contains("Its work is done: 1 allocation ended well"), "{}", done.stdout);
}

#[tokio::test]
async fn a_service_without_allocations_is_not_said_to_have_done_its_work() {
    let agent = AgentProcess::start().await;
    let service = job("service", AT_ONCE, &shell("t", "exec sleep 1000", ""));
    agent.run(&service).await.said(0, &[]);
    agent.ask(&["job", "scale", "j", "0"]).await.said(0, &[]);
    until("nothing of it runs", async || {
        let told = agent.ask(&["explain", "j"]).await.stdout;
        assert!(!told.contains("work is done"), "{told}");
        told.contains("the counts of its groups are 0")
    })
    .await;
    let again = advised(&agent, "j", "job scale").await;
    follow(&agent, &again, "", "").await;
    until("one runs", async || status(&agent, &agent.alloc("j").await).await == "running").await;
}

#[tokio::test]
async fn a_task_without_signals_is_said_to_be_ended_and_not_to_have_been_deaf() {
    let agent = AgentProcess::start().await;
    let guest = wasm("t", "guest:toolbox", &["say-times", "100000", "100"], "");
    agent.run(&job("service", AT_ONCE, &guest)).await.said(0, &[]);
    let alloc = agent.alloc("j").await;
    agent.ask(&["alloc", "signal", "--signal", "SIGUSR1", &alloc]).await.said(3, &[]);
    agent.ask(&["job", "stop", "j"]).await.said(0, &[]);
    let told = agent.ask(&["explain", &alloc]).await.stdout;
    assert!(told.contains("its driver cannot send it signals"), "{told}");
    for untrue in ["by force", "did not end", "raise kill_timeout", "SIGUSR1"] {
        assert!(!told.contains(untrue), "{told}");
    }
    let status = agent.ask(&["alloc", "status", &alloc]).await.stdout;
    assert!(status.contains("sends no signals") && !status.contains("interrupt"), "{status}");
}

#[tokio::test]
async fn canaries_that_wait_are_promoted_as_advised() {
    let agent = AgentProcess::start().await;
    let service = |value: &str| {
        let update = "update {\n min_healthy_time = \"100ms\"\n canary = 1\n }";
        job("service", update, &shell("t", &format!(": {value}; exec sleep 600"), ""))
    };
    agent.run(&service("one")).await.said(0, &[]);
    agent.run(&service("two")).await.said(0, &["the canaries of job j are healthy"]);
    let promote = advised(&agent, "j", "deployment promote").await;
    follow(&agent, &promote, "", "").await;
    agent.run(&service("two")).await.said(0, &["job j runs"]);
}

#[tokio::test]
async fn a_template_that_waits_is_given_its_variable_as_advised() {
    let agent = AgentProcess::start().await;
    let template = "template {\n destination = \"local/x\"\n data = \"{{ with nomadVar \\\"nomad/jobs/j\\\" }}\
                    {{ .key }}{{ end }}\"\n }";
    let task = shell("t", "exec sleep 600", template);
    agent.submit(&job("service", AT_ONCE, &task)).await.said(0, &[]);
    let alloc = agent.alloc("j").await;
    until("it is said what it waits for", async || {
        agent.ask(&["explain", &alloc]).await.stdout.contains("ostler var put")
    })
    .await;
    let put = advised(&agent, &alloc, "var put").await;
    follow(&agent, &put, "KEY=VALUE", "key=value").await;
    until("it runs", async || status(&agent, &alloc).await == "running").await;
}

#[tokio::test]
async fn a_stop_that_waits_for_its_delay_is_hastened_as_advised() {
    let agent = AgentProcess::start().await;
    let task = shell("t", "exec sleep 600", "shutdown_delay = \"10m\"");
    agent.run(&job("service", AT_ONCE, &task)).await.said(0, &[]);
    let alloc = agent.alloc("j").await;
    agent.ask(&["job", "stop", "--detach", "j"]).await.said(0, &[]);
    until("it waits", async || {
        agent.ask(&["explain", &alloc]).await.stdout.contains("waits for its shutdown_delay")
    })
    .await;
    let now = advised(&agent, &alloc, "alloc stop").await;
    follow(&agent, &now, "", "").await;
    until("it has ended", async || status(&agent, &alloc).await == "complete").await;
}

#[tokio::test]
async fn a_port_that_another_job_has_is_freed_as_advised() {
    let agent = AgentProcess::start().await;
    let port = [AT_ONCE, "network {\n port \"http\" {\n static = 18093\n }\n }"].join("\n");
    let first = job("service", &port, &shell("t", "exec sleep 600", ""));
    agent.run(&first).await.said(0, &[]);
    agent.submit(&first.replace("job \"j\"", "job \"second\"")).await.said(0, &[]);
    let stop = advised(&agent, "second", "job stop").await;
    follow(&agent, &stop, "", "").await;
    until("the other one runs", async || {
        let allocs = agent.allocs("second").await;
        allocs.first().is_some_and(|alloc| alloc["ClientStatus"] == "running")
    })
    .await;
}
