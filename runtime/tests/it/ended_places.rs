//! What is over does not run again, whatever is collected and whenever the agent starts.

use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::KEEPS;
use crate::support::agent_process::{AgentProcess, Home};
use crate::support::jobs::{STAYS_FAILED, shell, with_guests};
use crate::support::system::until;

/// A job of one group whose task says in the file `NAME-INDEX` that it started, then runs `script`.
fn job(dir: &Path, name: &str, kind: &str, count: u32, script: &str) -> String {
    let said = format!("echo ran >> {}/{name}-$NOMAD_ALLOC_INDEX; {script}", dir.display());
    with_guests(&format!(
        "job \"{name}\" {{\n type = \"{kind}\"\n group \"g\" {{\n count = {count}\n restart {{\n \
         attempts = 1\n interval = \"1h\"\n delay = \"0s\"\n mode = \"fail\"\n }}\n {STAYS_FAILED}\n {}\n }}\n}}\n",
        shell("t", &said, "")
    ))
}

/// How often the task of a place was started.
fn starts(dir: &Path, name: &str, index: u32) -> usize {
    let said = std::fs::read_to_string(dir.join(format!("{name}-{index}")));
    said.map_or(0, |text| text.lines().count())
}

/// An agent that keeps so many allocations.
async fn start(home: Home, max_allocs: u32) -> AgentProcess {
    let config = home.path().join("few.hcl");
    let text = KEEPS.replace("gc {", &format!("gc {{\n max_allocs = {max_allocs}"));
    std::fs::write(&config, text).unwrap();
    AgentProcess::start_in(home, &["--config", config.to_str().unwrap()]).await
}

/// Kill the agent, and start another.
async fn crash(agent: AgentProcess, max_allocs: u32) -> AgentProcess {
    agent.signal(Signal::KILL);
    let (_, home) = agent.ended().await;
    start(home, max_allocs).await
}

async fn all_allocs(agent: &AgentProcess) -> Vec<Value> {
    agent.json(&["alloc", "status", "--json"]).await.as_array().unwrap().clone()
}

async fn counts(agent: &AgentProcess, job: &str) -> Value {
    let jobs = agent.json(&["job", "status", "--json"]).await;
    let mut jobs = jobs.as_array().unwrap().iter();
    let job = jobs.find(|stub| stub["ID"] == job).unwrap();
    job["JobSummary"]["Summary"]["g"].clone()
}

async fn until_over(agent: &AgentProcess, job: &str, complete: u64, failed: u64) {
    until("it is over", async || {
        let counts = counts(agent, job).await;
        counts["Complete"] == complete && counts["Failed"] == failed
    })
    .await;
}

/// Everything is collected that can be.
async fn collected(agent: &AgentProcess, left: usize) {
    until("what is over is collected", async || {
        agent.ask(&["gc"]).await.said(0, &[]);
        all_allocs(agent).await.len() == left
    })
    .await;
}

/// The job of the file is as it is to be: nothing would change, and nothing does.
async fn unchanged(agent: &AgentProcess, text: &str, code: i32) {
    let file = agent.file("again.hcl", text);
    let file = file.to_str().unwrap();
    let plan = agent.ask(&["job", "plan", file]).await;
    assert_eq!(plan.code, Some(0), "{plan:#?}");
    assert!(plan.stdout.ends_with("nothing would change\n"), "{plan:#?}");
    let ran = agent.ask(&["job", "run", "--json", file]).await;
    assert_eq!(ran.code, Some(code), "{ran:#?}");
    let ran: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&ran["version"], &ran["placed"]), (&0.into(), &Value::Array(vec![])), "{ran:#}");
}

#[tokio::test]
async fn finished_one_shot_jobs_do_not_run_again_at_a_start() {
    const JOBS: u32 = 8;
    const KEPT: u32 = 3;
    let mut agent = start(Home::new(), KEPT).await;
    let dir = agent.data.path().to_owned();
    let name = |n: u32| format!("once-{n}");
    for n in 0..JOBS {
        agent.submit(&job(&dir, &name(n), "batch", 1, "exit 0")).await.said(0, &[]);
    }
    until("all were started", async || (0..JOBS).all(|n| starts(&dir, &name(n), 0) == 1)).await;
    until("most are over and collected", async || {
        let left = all_allocs(&agent).await;
        let over = left.iter().all(|alloc| alloc["ClientStatus"] == "complete");
        over && left.len() <= KEPT as usize
    })
    .await;
    for signal in [Signal::KILL, Signal::TERM] {
        agent.signal(signal);
        let (_, home) = agent.ended().await;
        agent = start(home, KEPT).await;
        let left = all_allocs(&agent).await;
        assert!(left.len() <= KEPT as usize, "{left:#?}");
        assert!(left.iter().all(|alloc| alloc["ClientStatus"] == "complete"), "{left:#?}");
        let again = (0..JOBS).filter(|n| starts(&dir, &name(*n), 0) != 1).count();
        assert_eq!(again, 0, "ran again");
        for n in 0..JOBS {
            assert_eq!(counts(&agent, &name(n)).await["Complete"], 1, "it is known how it ended");
            unchanged(&agent, &job(&dir, &name(n), "batch", 1, "exit 0"), 0).await;
            assert_eq!(starts(&dir, &name(n), 0), 1, "{}", name(n));
        }
    }
    // A purged job of the same name is another one.
    agent.ask(&["job", "stop", "--purge", "once-0"]).await.said(0, &[]);
    agent.run(&job(&dir, "once-0", "batch", 1, "exit 0")).await.said(0, &[]);
    until_over(&agent, "once-0", 1, 0).await;
    assert_eq!(starts(&dir, "once-0", 0), 2);
}

#[tokio::test]
async fn after_gc_and_a_start_nothing_that_is_over_runs_again() {
    let agent = start(Home::new(), 50).await;
    let dir = agent.data.path().to_owned();
    let service = job(&dir, "broken", "service", 2, "exit 7");
    let batch = job(&dir, "once", "batch", 2, "exit 0");
    agent.submit(&service).await.said(0, &[]);
    agent.submit(&batch).await.said(0, &[]);
    until_over(&agent, "broken", 0, 2).await;
    until_over(&agent, "once", 2, 0).await;
    collected(&agent, 0).await;
    let agent = crash(agent, 50).await;
    assert_eq!(all_allocs(&agent).await, [Value::Null; 0]);
    unchanged(&agent, &batch, 0).await;
    // Failed for good, and said so.
    unchanged(&agent, &service, 1).await;
    let agent = crash(agent, 50).await;
    assert_eq!(all_allocs(&agent).await, [Value::Null; 0]);
    for index in 0..2 {
        assert_eq!((starts(&dir, "broken", index), starts(&dir, "once", index)), (2, 1));
    }
    let dead = agent.ask(&["job", "status", "broken"]).await.stdout;
    assert!(dead.lines().any(|line| line == "status       dead"), "{dead}");

    // Whoever wants it again stops the job and runs it, or changes it.
    agent.ask(&["job", "stop", "once"]).await.said(0, &[]);
    agent.run(&batch).await.said(0, &["at version 1", "2 placed"]);
    until_over(&agent, "once", 2, 0).await;
    assert_eq!((starts(&dir, "once", 0), starts(&dir, "once", 1)), (2, 2));
}

#[tokio::test]
async fn the_sixth_of_six_that_is_stopped_is_replaced_alone() {
    let agent = start(Home::new(), 50).await;
    let dir = agent.data.path().to_owned();
    let text =
        job(&dir, "six", "batch", 6, "if [ $NOMAD_ALLOC_INDEX = 5 ]; then exec sleep 600; fi");
    agent.submit(&text).await.said(0, &[]);
    until_over(&agent, "six", 5, 0).await;
    collected(&agent, 1).await;
    let sixth = agent.alloc("six").await;
    unchanged(&agent, &text, 0).await;
    agent.ask(&["alloc", "stop", &sixth]).await.said(0, &[]);
    until("the sixth starts again", async || starts(&dir, "six", 5) == 2).await;
    let next = agent.alloc("six").await;
    assert_ne!(next, sixth);
    for index in 0..5 {
        assert_eq!(starts(&dir, "six", index), 1, "{index}");
    }
    // And over a start.
    let agent = crash(agent, 50).await;
    assert_eq!(agent.alloc("six").await, next);
    assert_eq!(counts(&agent, "six").await["Complete"], 6, "five, and the one that was stopped");
    for index in 0..5 {
        assert_eq!(starts(&dir, "six", index), 1, "{index}");
    }
}
