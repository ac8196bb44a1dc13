//! What a plugin may do is what its configuration grants, proved through real drivers.

use std::net::TcpListener;

use ostler_guests::fixtures::{HOSTILE_DRIVER, HOSTILE_WANTS_SOCKETS};

use crate::support::TestAgent;
use crate::support::jobs::{assert_successful, groups};
use crate::support::needs::{Need, skipped};

/// What the tasks of a job were told about their failed start.
async fn refusal(agent: &TestAgent, job: &str) -> String {
    let result = agent.run(job).await;
    let allocs = result.allocs.iter();
    let events = allocs.flat_map(|alloc| alloc.state.tasks.values()).flat_map(|task| &task.events);
    let texts: Vec<String> = events.map(|event| format!("{event:?}")).collect();
    texts.join("\n")
}

fn calls(address: &str) -> String {
    groups([format!(
        "task \"t\" {{\n driver = \"wants-sockets\"\n config {{\n address = \"{address}\"\n }}\n}}"
    )])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_connects_to_granted_places_only_and_sees_granted_variables_only() {
    let (named, other) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let (port, other) = (named.local_addr().unwrap().port(), other.local_addr().unwrap());
    let by_name = TcpListener::bind("127.0.0.1:0").unwrap();
    let name_port = by_name.local_addr().unwrap().port();
    let agent = TestAgent::with_config(&format!(
        "plugin \"sockets\" {{\n file = \"{HOSTILE_WANTS_SOCKETS}\"\n grants {{\n \
         connect = [\"127.0.0.0/8:{port}\", \"localhost:{name_port}\"]\n env = [\"PATH\"]\n driver = \
         \"wants-sockets\"\n }}\n}}"
    ))
    .await;
    for reached in [format!("127.0.0.1:{port}"), format!("localhost:{name_port}")] {
        let told = refusal(&agent, &calls(&reached)).await;
        assert!(told.contains("connected; sees [PATH]"), "{reached}: {told}");
        assert!(!told.contains("not connected"), "{reached}: {told}");
    }
    // What is granted by name is learned from its look-up alone, and other names are not looked up.
    let by_address = format!("127.0.0.1:{name_port}");
    let other_name = format!("ip6-localhost:{name_port}");
    for refused in [other.to_string(), by_address, other_name] {
        let told = refusal(&agent, &calls(&refused)).await;
        assert!(told.contains("not connected"), "{refused}: {told}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_run_as_granted_users_from_granted_programs() {
    if !rustix::process::geteuid().is_root() {
        skipped(Need::Root, "only root can run tasks as another user");
        return;
    }
    let job = |user: &str, program: &str| {
        groups([format!(
            "task \"t\" {{\n driver = \"exec\"\n user = \"{user}\"\n config {{\n \
             command = \"{program}\"\n }}\n}}"
        )])
    };
    let config = "plugin \"exec\" {\n grants {\n process = true\n users = [\"nobody\"]\n \
                  programs = [\"/usr/bin/i*\"]\n }\n}";
    let agent = TestAgent::with_config(config).await;
    let result = agent.run(&job("nobody", "/usr/bin/id")).await;
    assert_successful(&result);
    let denied = refusal(&agent, &job("daemon", "/usr/bin/id")).await;
    assert!(denied.contains("running tasks as daemon is not granted"), "{denied}");
    let lines = denied.replace('\\', "");
    assert!(lines.contains(r#"users = ["nobody", "daemon"]"#), "{denied}");
    let denied = refusal(&agent, &job("nobody", "/bin/echo")).await;
    assert!(denied.contains("running /bin/echo is not granted"), "{denied}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_granted_program_runs_with_the_environment_directory_and_user_that_are_granted() {
    if !rustix::process::geteuid().is_root() {
        skipped(Need::Root, "only root can run tasks as another user");
        return;
    }
    let job = |user: &str, config: &str, env: &str| {
        groups([format!(
            "task \"t\" {{\n driver = \"raw_exec\"\n {user}\n config {{\n command = \"/usr/bin/env\"\n \
             {config}\n }}\n env {{\n {env}\n }}\n}}"
        )])
    };
    let nobody = "user = \"nobody\"";
    let config = |grants: &str| {
        format!(
            "plugin \"raw_exec\" {{\n enabled = true\n grants {{\n process = true\n users = \
             [\"nobody\"]\n programs = [\"/usr/bin/env\"]\n {grants}\n }}\n}}"
        )
    };
    let agent = TestAgent::with_config(&config("")).await;
    let result = agent.run(&job(nobody, "", "A = \"1\"\n PATH = \"/usr/bin\"")).await;
    assert_successful(&result);
    assert!(agent.stdout(&result, "t").contains("A=1\n"), "the job's environment stays its own");
    for (job, why) in [
        (job(nobody, "", "LD_PRELOAD = \"/x.so\""), "LD_PRELOAD makes a program load other code"),
        (job(nobody, "cwd = \"/etc\"", ""), "running granted programs in /etc is not granted"),
        (job("", "", ""), "running granted programs as root is not granted"),
    ] {
        let denied = refusal(&agent, &job).await;
        assert!(denied.contains(why), "{why}: {denied}");
    }
    agent.stop().await;
    let agent = TestAgent::with_config(&config("dirs = [\"/etc\"]")).await;
    let result = agent.run(&job(nobody, "cwd = \"/etc\"", "")).await;
    assert_successful(&result);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_cannot_start_a_task_as_a_user_its_job_does_not_name() {
    let config = format!(
        "plugin \"hostile\" {{\n file = \"{HOSTILE_DRIVER}\"\n grants {{\n process = true\n \
         users = [\"*\"]\n }}\n}}"
    );
    let agent = TestAgent::with_config(&config).await;
    let job =
        groups(["task \"t\" {\n driver = \"hostile\"\n config {\n command = \"/bin/true\"\n \
         start = \"as-another-user\"\n arg = \"root\"\n }\n}"]);
    let denied = refusal(&agent, &job).await;
    assert!(denied.contains("a driver starts a task as the user its job names"), "{denied}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_mount_makes_another_program_of_one_that_is_granted() {
    let own = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/sh", own.path().join("id")).unwrap();
    let source = own.path().display().to_string();
    let config = format!(
        "plugin \"exec\" {{\n grants {{\n process = true\n users = [\"nobody\"]\n programs = \
         [\"/usr/bin/id\", \"/opt/x/*\"]\n isolation {{\n mounts = [\"{source}\"]\n without = \
         [\"mounts\", \"pids\", \"ipc\", \"user\"]\n }}\n }}\n}}"
    );
    let agent = TestAgent::with_config(&config).await;
    for (target, replaced) in [
        ("/usr/bin", "/usr/bin/id stays what it is"),
        ("/usr/bin/id", "/usr/bin/id stays what it is"),
        ("/opt", "/opt/x/* stays what it is"),
        ("/usr/lib", "/usr stays what it is"),
    ] {
        let job = groups([format!(
            "task \"t\" {{\n driver = \"exec\"\n config {{\n command = \"/usr/bin/id\"\n mounts = \
             [{{ source = \"{source}\", target = \"{target}\" }}]\n }}\n}}"
        )]);
        let denied = refusal(&agent, &job).await;
        assert!(denied.contains(replaced), "{target}: {denied}");
    }
    agent.stop().await;
}
