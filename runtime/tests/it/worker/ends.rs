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
