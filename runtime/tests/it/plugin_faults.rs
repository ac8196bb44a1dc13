//! What a guest does wrong costs one call of that guest, and everybody can see why.

use std::time::Duration;

use ostler_agent::{AllocResult, JobResult, PluginStatus};
use ostler_guests::fixtures::{HOSTILE_DEVICE, HOSTILE_DRIVER, TOOLBOX, TOOLBOX_P1};
use ostler_model::clock::timeout;
use ostler_model::device::HealthState;
use ostler_model::event::EventKind;

use crate::support::lateness::Lateness;
use crate::support::system::{eventually, host_process_id, pid_in, processes_of, runs};
use crate::support::{PATIENCE, TestAgent, parse};

/// What a call of a plugin that hangs may take at most.
const HANGS: Duration = Duration::from_secs(120);

/// What is looked at here is each single call, not what many failed ones lead to.
const PATIENT: &str = "failure {\n strikes_max = 64\n }";

/// Configuration of the hostile device plugin, called `hostile`, with a function and its mode.
fn hostile_device(function: &str, mode: &str) -> String {
    // Only what hangs is meant to meet its deadline: the others have time on a busy machine too.
    let limits = match mode {
        "spin" | "sleep" => "call_wall = \"1s\"",
        "long-answer" => "call_wall = \"60s\"\n memory_mb = 256",
        _ => "call_wall = \"60s\"",
    };
    format!(
        r#"
        plugin "hostile" {{
          file = "{HOSTILE_DEVICE}"
          config {{
            {function} = "{mode}"
          }}
          limits {{
            {limits}
          }}
          {PATIENT}
        }}
        plugin "exec" {{
          enabled = false
        }}
        plugin "raw_exec" {{
          enabled = false
        }}
        plugin "pci" {{
          enabled = false
        }}
        "#
    )
}

/// Configuration of the hostile driver, with a deadline for each of its calls.
fn hostile_driver(call_wall: &str) -> String {
    format!(
        r#"
        plugin "hostile" {{
          file = "{HOSTILE_DRIVER}"
          grants {{
            process = true
          }}
          limits {{
            call_wall = "{call_wall}"
          }}
          {PATIENT}
        }}
        "#
    )
}

/// A group of one task that is never restarted.
fn group(name: &str, driver: &str, config: &str, resources: &str) -> String {
    format!(
        r#"
        group "{name}" {{
          restart {{
            attempts = 0
            mode     = "fail"
          }}
          task "t" {{
            driver       = "{driver}"
            kill_timeout = "1s"
            config {{
              {config}
            }}
            resources {{
              cpu    = 20
              memory = 32
              {resources}
            }}
          }}
        }}
        "#
    )
}

fn job(groups: &[String]) -> String {
    format!("job \"j\" {{\n type = \"batch\"\n {}\n}}", groups.concat())
}

/// Every event text of the task, in order.
fn events(alloc: &AllocResult) -> String {
    let task = alloc.state.tasks.get("t").expect("the task has a state");
    task.events.iter().map(|e| format!("{}: {}\n", e.kind, e.message)).collect()
}

#[track_caller]
fn of_group<'a>(result: &'a JobResult, group: &str) -> &'a AllocResult {
    let name = format!(".{group}[0]");
    result.allocs.iter().find(|alloc| alloc.name.ends_with(&name)).expect("the group was placed")
}

#[track_caller]
fn assert_failed(result: &JobResult, group: &str, kind: EventKind, text: &str) {
    let alloc = of_group(result, group);
    let said = events(alloc);
    let task = &alloc.state.tasks["t"];
    assert!(task.failed, "{group}: {said}");
    let found = task.events.iter().any(|e| e.kind == kind && e.message.contains(text));
    assert!(found, "{group}: no {kind} with {text:?} in:\n{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_plugin_that_fails_its_fingerprint_is_shown_with_the_reason_and_harms_nobody() {
    let modes = [
        ("trap", "trapped"),
        ("panic", r"the reason stands\nin two lines\u{1b}[2J"),
        ("stack-overflow", "stack of 512 KiB overflowed"),
        ("spin", "did not answer within 1s"),
        ("memory-bomb", "memory limit of 64 MiB"),
        ("log-flood", "more than"),
        ("hostcall-flood", "10000 host calls"),
        ("random-flood", "more than"),
        ("long-answer", "handed over more than"),
        ("huge-string", "handed over more than"),
        ("duplicate-ids", "\"a\" is listed twice"),
        ("duplicate-groups", "hostile/thing/one is listed twice"),
        ("empty-names", "group.vendor: is empty"),
        ("empty-id", "instance id: is empty"),
        ("nan", "broken answer"),
        ("bad-unit", "parsec"),
        ("unit-on-text", "broken answer"),
        ("error", "as asked"),
    ];
    for (mode, text) in modes {
        let agent = TestAgent::with_config(&hostile_device("mode", mode)).await;
        let node = agent.handle.node();
        let health = node.device_plugins.get("hostile-device").expect("the plugin is shown");
        assert_eq!(health.state, HealthState::Unhealthy, "{mode}");
        assert!(health.reason.contains(text), "{mode}: {}", health.reason);
        assert!(node.devices.iter().all(|d| d.key.vendor != "hostile"), "{mode}: no half answer");
        assert!(node.devices.iter().any(|d| d.key.vendor == "ostler"), "{mode}: others are found");
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_start_waits_for_no_plugin_and_a_late_one_comes_into_use_by_itself() {
    let config = format!(
        r#"
        plugin "hostile" {{
          file = "{HOSTILE_DEVICE}"
          config {{
            describe = "slow"
          }}
          limits {{
            call_wall = "60s"
          }}
        }}
        plugin "hangs" {{
          file = "{HOSTILE_DEVICE}"
          config {{
            describe = "sleep"
          }}
          limits {{
            call_wall = "{}s"
          }}
        }}
        "#,
        HANGS.as_secs()
    );
    let agent = TestAgent::with_config(&config).await;
    let status = |name: &str| {
        let all = agent.handle.plugins_now();
        all.into_iter().find(|entry| entry.name == name).unwrap().status
    };
    assert_eq!(status("exec"), PluginStatus::Loaded);
    assert_eq!(status("hangs"), PluginStatus::Loading, "nobody waited for it");
    eventually("the slow one is in use", || status("hostile") == PluginStatus::Loaded).await;
    assert_eq!(status("hangs"), PluginStatus::Loading, "nor does the slow one");
    let found = || agent.handle.node().devices.iter().any(|group| group.key.vendor == "hostile");
    eventually("its devices are there", found).await;
    timeout(HANGS / 2, agent.stop()).await.expect("nor does the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_plugin_said_before_it_trapped_is_in_its_status_and_its_recording() {
    const WORDS: &str = r"the reason stands\nin two lines\u{1b}[2J";
    let agent = TestAgent::with_config(&hostile_device("mode", "panic")).await;
    let status = agent.handle.plugin_status("hostile-device").remove(0).activity.unwrap();
    let reason = status.last_error.unwrap().reason;
    assert!(reason.contains(WORDS) && !reason.contains('\n'), "{reason}");
    let written = || {
        let dir = std::fs::read_dir(agent.handle.data_dir().join("recordings"));
        let file = dir.into_iter().flatten().flatten().next()?.path();
        ostler_agent::offline::recording(&std::fs::read(file).ok()?).ok()
    };
    eventually("the call is recorded", || written().is_some()).await;
    let outcome = written().unwrap().calls.pop().unwrap().outcome;
    assert!(outcome.end == "trap" && outcome.text.contains(WORDS), "{outcome:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_plugin_that_fails_to_reserve_fails_that_task_alone() {
    let modes = [
        ("trap", "trapped"),
        ("spin", "did not answer within 1s"),
        ("memory-bomb", "memory limit of 64 MiB"),
        ("long-answer", "handed over more than"),
        ("empty-paths", "not an absolute path"),
        ("bad-permissions", "\"rwx\" is not of r, w, m"),
        ("error", "as asked"),
    ];
    for (mode, text) in modes {
        let agent = TestAgent::with_config(&hostile_device("reserve", mode)).await;
        let device = "device \"hostile/thing\" {\n count = 1\n }";
        let other = "device \"ostler/file\" {\n count = 1\n }";
        let result = agent
            .run(&job(&[
                group("bad", "mock_driver", "run_for = \"1ms\"", device),
                group("good", "mock_driver", "run_for = \"1ms\"", other),
            ]))
            .await;
        let said = events(of_group(&result, "bad"));
        assert!(said.contains(text), "{mode}: no {text:?} in:\n{said}");
        assert!(of_group(&result, "bad").state.tasks["t"].failed, "{mode}: {said}");
        let good = of_group(&result, "good");
        assert!(good.state.tasks["t"].is_successful(), "{mode}: {}", events(good));
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_fails_in_start_fails_that_task_with_a_driver_failure_event() {
    // Far more time than a flood needs on a busy machine, so that it meets its own limit.
    fails_in_start(
        "60s",
        &[
            ("trap", "trapped"),
            ("stack-overflow", "stack of 512 KiB overflowed"),
            ("memory-bomb", "memory limit of 64 MiB"),
            ("log-flood", "more than"),
            ("hostcall-flood", "10000 host calls"),
            ("random-flood", "more than"),
            ("huge-handle", "handed over more than 1048576 bytes"),
            ("spawn-then-trap", "trapped"),
            ("spawn-then-error", "as asked, after the spawn"),
            ("error", "as asked"),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_spins_in_start_fails_that_task_at_its_deadline() {
    fails_in_start("2s", &[("spin", "did not answer within 2s")]).await;
}

/// Tasks whose starts fail in these ways, each with its text, and one that works beside them.
async fn fails_in_start(call_wall: &str, modes: &[(&str, &str)]) {
    let agent = TestAgent::with_config(&hostile_driver(call_wall)).await;
    let mut groups: Vec<String> = modes
        .iter()
        .map(|(mode, _)| {
            let config =
                format!("command = \"/bin/sleep\"\n args = [\"1000\"]\n start = \"{mode}\"");
            group(mode, "hostile", &config, "")
        })
        .collect();
    groups.push(group("good", "hostile", "command = \"/bin/true\"", ""));

    let result = agent.run(&job(&groups)).await;
    for (mode, text) in modes {
        assert_failed(&result, mode, EventKind::DriverFailure, text);
    }
    let good = of_group(&result, "good");
    assert!(good.state.tasks["t"].is_successful(), "{}", events(good));
    assert_eq!(processes_of(agent.data.path()), [0; 0], "a failed start leaves no process");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_cannot_name_the_process_of_another_task() {
    let agent = TestAgent::with_config(&hostile_driver("5s")).await;
    let file = agent.data.path().join("pid");
    let config = format!(
        "command = \"/bin/sh\"\n args = [\"-c\", \"echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000\"]",
        file.display()
    );
    let victim =
        agent.handle.submit(parse(&job(&[group("v", "raw_exec", &config, "")]))).await.unwrap();
    let pid = pid_in(&file).await;
    let id = host_process_id(pid);

    let foreign = |mode: &str| format!("start = \"{mode}\"\n arg = \"{id}\"");
    let result = agent
        .run(&job(&[
            group("kill", "hostile", &foreign("foreign-id"), ""),
            group("claim", "hostile", &foreign("foreign-workload"), ""),
        ]))
        .await;
    assert_failed(&result, "kill", EventKind::DriverFailure, "UnknownProcess");
    let claim = of_group(&result, "claim");
    assert!(claim.state.tasks["t"].failed, "{}", events(claim));
    assert!(runs(pid), "the other task lives on");

    victim.stop("the end of the test").await;
    timeout(PATIENCE, victim.wait()).await.expect("the victim stops");
    assert!(!runs(pid));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_ends_although_its_driver_traps_or_hangs_in_stop_kill_and_exited() {
    let agent = TestAgent::with_config(&hostile_driver("500ms")).await;
    let sleeping = |extra: &str| format!("command = \"/bin/sleep\"\n args = [\"1000\"]\n {extra}");
    let job = agent
        .handle
        .submit(parse(&job(&[
            group("stop", "hostile", &sleeping("stop = \"trap\""), ""),
            group("kill", "hostile", &sleeping("stop = \"spin\"\n kill = \"spin\""), ""),
            group("exited", "hostile", &sleeping("exited = \"spin\"\n destroy = \"trap\""), ""),
        ])))
        .await
        .unwrap();
    for alloc in job.allocs() {
        let mut state = alloc.state();
        let running = state.wait_for(|s| s.tasks.values().all(|t| t.started_at.is_some()));
        timeout(PATIENCE, running).await.expect("it runs").unwrap();
    }
    assert_eq!(processes_of(agent.data.path()).len(), 3);

    job.stop("the end of the test").await;
    let result = timeout(PATIENCE, job.wait()).await.expect("all of them end");
    assert_eq!(processes_of(agent.data.path()), [0; 0]);
    let said = events(of_group(&result, "kill"));
    assert!(said.contains("did not answer within 500ms"), "{said}");
    let said = events(of_group(&result, "exited"));
    assert!(said.contains("Terminated"), "{said}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_spinning_calls_as_guest_threads_hold_up_neither_plugins_nor_tasks_nor_timers() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).max(2);
    let agent = TestAgent::with_config(&hostile_driver("12s")).await;
    let module = format!("module = \"{TOOLBOX}\"\n args = [\"args\", \"done\"]");
    let device = "device \"ostler/file\" {\n count = 1\n }";
    let good = job(&[group("good", "wasm", &module, device)]);
    // Compiled now, so that what is measured is not the compiler.
    assert!(agent.run(&good).await.is_successful());

    let spinning: Vec<String> = (0..threads)
        .map(|n| group(&format!("spin{n}"), "hostile", "start = \"spin\"", ""))
        .collect();
    let spinning = agent.handle.submit(parse(&job(&spinning))).await.unwrap();
    let starting = |job: &ostler_agent::JobHandle| {
        job.allocs().iter().all(|alloc| {
            let state = alloc.state().borrow().clone();
            let task = state.tasks.values().next();
            task.is_some_and(|t| t.events.iter().any(|e| e.kind == EventKind::TaskSetup))
        })
    };
    eventually("every hostile task is being started", || starting(&spinning)).await;

    let lateness = Lateness::watch();
    let result = agent.run(&good).await;
    let late = lateness.end().await;
    let good = of_group(&result, "good");
    assert!(result.is_successful(), "{}", events(good));
    assert_eq!(agent.stdout(&result, "t"), "done\n");
    for alloc in spinning.allocs() {
        let state = alloc.state().borrow().clone();
        let ended = state.tasks.values().any(|t| t.finished_at.is_some() || t.started_at.is_some());
        assert!(!ended, "the hostile calls spun all the time");
    }
    assert!(!late.too_much(), "{late:?}");

    spinning.stop("the end of the test").await;
    timeout(PATIENCE, spinning.wait()).await.expect("the hostile tasks end at their deadline");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_wasm_task_fails_alone() {
    let agent = TestAgent::start().await;
    let modes = [
        ("alloc", "\"alloc\", \"256\"", "out of memory at 32 MiB"),
        ("recurse", "\"recurse\"", "stack"),
        ("panic", "\"panic\"", "trapped"),
    ];
    let mut groups = vec![];
    for (name, args, _) in modes {
        for (format, module) in [("p2", TOOLBOX), ("p1", TOOLBOX_P1)] {
            let config = format!("module = \"{module}\"\n args = [{args}]");
            groups.push(group(&format!("{name}-{format}"), "wasm", &config, ""));
        }
    }
    let config = format!("module = \"{TOOLBOX}\"\n args = [\"args\", \"fine\"]");
    groups.push(group("good", "wasm", &config, ""));
    let result = agent.run(&job(&groups)).await;
    for (name, _, text) in modes {
        for format in ["p2", "p1"] {
            assert_failed(&result, &format!("{name}-{format}"), EventKind::Terminated, text);
        }
    }
    let good = of_group(&result, "good");
    assert!(good.state.tasks["t"].is_successful(), "{}", events(good));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spinning_wasm_task_is_stopped() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).max(2);
    let agent = TestAgent::start().await;
    let groups: Vec<String> = (0..threads + 1)
        .map(|n| {
            let module = if n % 2 == 0 { TOOLBOX } else { TOOLBOX_P1 };
            let config = format!("module = \"{module}\"\n args = [\"spin\"]");
            group(&format!("spin{n}"), "wasm", &config, "")
        })
        .collect();
    let job = agent.handle.submit(parse(&job(&groups))).await.unwrap();
    for alloc in job.allocs() {
        let mut state = alloc.state();
        let running = state.wait_for(|s| s.tasks.values().all(|t| t.started_at.is_some()));
        timeout(PATIENCE, running).await.expect("it runs").unwrap();
    }
    job.stop("the end of the test").await;
    let result = timeout(PATIENCE, job.wait()).await.expect("they end");
    for alloc in &result.allocs {
        assert!(events(alloc).contains("Killed"), "{}", events(alloc));
    }
    agent.stop().await;
}
