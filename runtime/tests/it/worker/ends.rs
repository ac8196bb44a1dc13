//! Workers that end, and those that should.

use super::*;

/// A job whose task is started again soon, as often as it takes.
fn stubborn(id: &str) -> String {
    let task = wasm("t", &toolbox(), &["sleep", "1000000"], "");
    let restart =
        "restart {\n attempts = 50\n interval = \"24h\"\n delay = \"10ms\"\n mode = \"fail\"\n }";
    format!("job \"{id}\" {{\n group \"g\" {{\n {restart}\n {task}\n }}\n}}\n")
}

#[tokio::test]
async fn a_worker_that_dies_again_and_again_is_replaced_later_each_time_and_the_task_says_when() {
    let agent = AgentProcess::start().await;
    agent.run(&stubborn("idle")).await.said(0, &["job idle runs"]);
    let alloc = agent.alloc("idle").await;
    let waits = "in a row ended soon after they were started; the next is started in";
    for deaths in 1..=3 {
        kill(only_worker(agent.data.path()));
        until("the task runs again", async || {
            starts(&agent, "idle").await == deaths + 1 && state(&agent, "idle").await == "running"
        })
        .await;
        let shown = agent.ask(&["alloc", "status", &alloc]).await.stdout;
        // The first that died is replaced at once.
        assert_eq!(shown.contains(waits), deaths > 1, "{shown}");
    }
    let shown = agent.ask(&["alloc", "status", &alloc]).await.stdout;
    assert!(shown.contains("3 in a row"), "{shown}");
}

#[tokio::test]
async fn a_worker_that_no_agent_can_find_ends_when_no_task_lives_in_it() {
    let agent = AgentProcess::start().await;
    agent.run(&idle("idle", 1)).await.said(0, &["job idle runs"]);
    let once = wasm("t", &toolbox(), &["sleep", "1"], "");
    let text = format!("job \"once\" {{\n type = \"batch\"\n group \"g\" {{\n {once}\n }}\n}}\n");
    agent.run(&text).await;
    let worker = only_worker(agent.data.path());
    agent.ask(&["job", "stop", "idle"]).await.said(0, &[]);
    // It has an exit that is not forgotten: that of a task that ends after its agent.
    let late = wasm("t", &toolbox(), &["sleep", "300"], "");
    let text = format!("job \"late\" {{\n type = \"batch\"\n group \"g\" {{\n {late}\n }}\n}}\n");
    agent.submit(&text).await.said(0, &[]);
    until("it runs", async || {
        let allocs = agent.allocs("late").await;
        allocs.iter().any(|alloc| alloc["ClientStatus"] == "running")
    })
    .await;
    let data = killed(agent).await;
    assert!(runs(worker), "it keeps the exit");
    let away = data.path().join("workers");
    let elsewhere = data.path().join("elsewhere");
    std::fs::rename(&away, &elsewhere).unwrap();
    assert!(runs(worker), "it may be found elsewhere");
    std::fs::remove_dir_all(&elsewhere).unwrap();
    eventually("nobody can fetch the exit", || !runs(worker)).await;
}

#[tokio::test]
async fn a_worker_whose_directory_is_removed_goes_on_while_a_task_lives_or_an_agent_is_there() {
    let agent = AgentProcess::start().await;
    agent.run(&idle("idle", 1)).await.said(0, &["job idle runs"]);
    let worker = only_worker(agent.data.path());
    std::fs::remove_dir_all(agent.data.path().join("workers")).unwrap();
    let more = job("more", &wasm("t", &toolbox(), &["sleep", "1000000"], ""));
    agent.run(&more).await.said(0, &["job more runs"]);
    let data = killed(agent).await;
    assert!(runs(worker));
    kill(worker);
    eventually("it is gone", || !runs(worker)).await;
    drop(data);
}

#[tokio::test]
async fn a_worker_killed_while_it_starts_tasks_ends_those_it_had_and_each_start_runs_once() {
    let agent = AgentProcess::start().await;
    for (turn, completed) in [0, 1, 5, 12].into_iter().enumerate() {
        let id = format!("burst-{turn}");
        let task = wasm("t", &toolbox(), &["say-times", "1", "0"], "");
        let restart =
            "restart {\n attempts = 5\n delay = \"1s\"\n interval = \"24h\"\n mode = \"fail\"\n }";
        let text = format!(
            "job \"{id}\" {{\n type = \"batch\"\n group \"g\" {{\n count = 20\n {restart}\n {task}\n }}\n}}\n"
        );
        let file = agent.file(&format!("{id}.hcl"), &text);
        agent.ask(&["job", "run", "--detach", file.to_str().unwrap()]).await.said(0, &[]);
        let complete = async |least: usize| {
            let allocs = agent.allocs(&id).await;
            allocs.iter().filter(|alloc| alloc["ClientStatus"] == "complete").count() >= least
        };
        until("some are complete", async || complete(completed).await).await;
        // It may be over already, or not be there yet.
        workers(agent.data.path()).into_iter().for_each(kill);
        until("all are complete", async || complete(20).await).await;
        for alloc in agent.allocs(&id).await {
            let alloc = alloc["ID"].as_str().unwrap();
            let shown = agent.json(&["alloc", "status", "--json", alloc]).await;
            let restarts = shown["TaskStates"]["t"]["Restarts"].as_u64().unwrap();
            let printed = agent.ask(&["alloc", "logs", alloc]).await.stdout;
            let lines = u64::try_from(printed.lines().count()).unwrap();
            assert!(lines <= 1 + restarts, "{alloc}: {lines} lines after {restarts} restarts");
        }
    }
}
