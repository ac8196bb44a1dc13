//! Native tasks in their sandbox, through whole agents and the binary.

use ostler_guests::fixtures::HOSTILE_DRIVER;

use crate::support::agent_process::AgentProcess;
use crate::support::binary::{Ended, command, ostler};
use crate::support::jobs::{SOON_HEALTHY, assert_successful, batch, groups, isolated_shell, shell};
use crate::support::needs::{Need, not_asked, skipped};
use crate::support::system::{eventually, isolated_processes_of, processes_of};
use crate::support::{DataDir, OSTLER, PATIENCE, TestAgent, parse};

const RAW_OFF: &str = "plugin \"raw_exec\" {\n enabled = false\n}";

/// What of isolation the driver does not find here; said where a test is skipped for it.
fn lacking(agent: &TestAgent) -> bool {
    let node = agent.handle.node();
    let all = ["mounts", "pids", "ipc", "user", "privileges", "seccomp"];
    let texts = node.attribute_texts();
    let lacks = |part: &&str| {
        texts.get(&format!("driver.exec.isolation.{part}")).is_none_or(|text| text != "true")
    };
    let lacking: Vec<_> = all.iter().filter(|part| lacks(part)).collect();
    if !lacking.is_empty() {
        skipped(Need::Isolation, format!("this node cannot isolate tasks by {lacking:?}"));
    }
    !lacking.is_empty()
}

/// What the tasks of a job were told.
async fn told(agent: &TestAgent, job: &str) -> String {
    let result = agent.run(job).await;
    let tasks = result.allocs.iter().flat_map(|alloc| alloc.state.tasks.values());
    let texts: Vec<String> =
        tasks.flat_map(|task| &task.events).map(|event| format!("{event:?}")).collect();
    texts.join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_reaches_neither_the_agent_nor_another_task() {
    let agent = TestAgent::start().await;
    if lacking(&agent) {
        return agent.stop().await;
    }
    let data = agent.data.path().display().to_string();
    let holder = batch(&isolated_shell(
        "holder",
        "echo secret > /secrets/key; echo mine > /local/own; sleep 1000",
        "kill_timeout = \"100ms\"",
    ))
    .replace("job \"j\"", "job \"holder\"");
    let holder = agent.handle.submit(parse(&holder)).await.unwrap();
    let alloc = holder.allocs()[0].allocation().id;
    let dir = agent.data.path().join(format!("allocs/{alloc}/holder"));
    eventually("the secret is kept", || dir.join("secrets/key").exists()).await;
    let pid = std::process::id();
    let script = format!(
        "cat {data}/state.redb {data}/code.key {data}/ostler.sock {dir}/secrets/key 2>/dev/null; \
         ls {data} {dir} 2>/dev/null; cat /proc/{pid}/environ 2>/dev/null; \
         kill -9 {pid} 2>/dev/null && echo killed; \
         for at in 1 .. ../.. ../../..; do cat /alloc/$at/holder/secrets/key 2>/dev/null; done; \
         env | grep -c CARGO; echo done",
        dir = dir.display()
    );
    let result = agent.run(&batch(&isolated_shell("t", &script, ""))).await;
    assert_successful(&result);
    assert_eq!(agent.stdout(&result, "t"), "0\ndone\n");
    holder.stop("the test is over").await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_an_allocation_share_its_directory_and_have_what_programs_expect() {
    let agent = TestAgent::start().await;
    if lacking(&agent) {
        return agent.stop().await;
    }
    let first = isolated_shell(
        "first",
        "echo from first > $NOMAD_ALLOC_DIR/data/x",
        "lifecycle {\n hook = \"prestart\"\n }",
    );
    let second = isolated_shell(
        "second",
        "cat /alloc/data/x; rm /alloc/data/x; echo $NOMAD_TASK_DIR $NOMAD_SECRETS_DIR; \
         echo $PATH $HOME; (echo x > /alloc/logs/second.stdout.0) 2>/dev/null && echo forged",
        "",
    );
    let result = agent.run(&batch(&(first + &second))).await;
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let wanted = format!("from first\n/local /secrets\n{path} /local\n");
    assert_eq!(agent.stdout(&result, "second"), wanted);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_driver_that_isolates_nothing_is_off_unless_it_is_switched_on() {
    let agent = TestAgent::with_config(RAW_OFF).await;
    let job = batch(&shell("t", "echo raw", ""));
    let refused = agent.handle.submit(parse(&job)).await.err().unwrap().to_string();
    assert!(refused.contains("raw_exec isolates nothing and is off"), "{refused}");
    agent.stop().await;

    let data = DataDir::new();
    let file = data.path().join("job.hcl");
    std::fs::write(&file, &job).unwrap();
    let run = async |more: &[&str]| -> Ended {
        let (dir, file) = (data.path().to_str().unwrap(), file.to_str().unwrap());
        ostler([&["run", "--data-dir", dir, file], more].concat()).await
    };
    run(&[]).await.said(2, &["no driver raw_exec", "--raw-exec"]);
    let on = run(&["--raw-exec"]).await;
    on.said(0, &["driver raw_exec is enabled by --raw-exec: its tasks are not isolated"]);
    assert!(on.stdout.contains("raw"), "{on:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_starts_nothing_that_is_less_isolated_than_its_grant_demands() {
    let config = format!(
        "plugin \"hostile\" {{\n file = \"{HOSTILE_DRIVER}\"\n grants {{\n process = true\n \
         isolation {{}}\n }}\n}}"
    );
    let agent = TestAgent::with_config(&config).await;
    let job =
        groups(["task \"t\" {\n driver = \"hostile\"\n config {\n command = \"/bin/true\"\n }\n}"]);
    let denied = told(&agent, &job).await;
    assert!(denied.contains("processes that are not isolated is not granted"), "{denied}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_jobs_may_mount_and_keep_is_the_configurations_to_say() {
    let shown = tempfile::tempdir().unwrap();
    crate::support::system::write_for_all(&shown.path().join("file"), "shown\n");
    let source = shown.path().display().to_string();
    let job = |more: &str| {
        groups([format!(
            "task \"t\" {{\n driver = \"exec\"\n config {{\n command = \"/bin/cat\"\n args = \
             [\"/srv/file\"]\n mounts = [{{ source = \"{source}\", target = \"/srv\" }}]\n {more}\n \
             }}\n}}"
        )])
    };
    let agent = TestAgent::start().await;
    if lacking(&agent) {
        return agent.stop().await;
    }
    let denied = told(&agent, &job("")).await;
    assert!(denied.contains("is not granted") && denied.contains("mounts = "), "{denied}");
    agent.stop().await;

    std::fs::set_permissions(shown.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let config = format!(
        "plugin \"exec\" {{\n grants {{\n process = true\n isolation {{\n mounts = [\"{source}\"]\n \
         capabilities = [\"net_bind_service\"]\n }}\n }}\n}}"
    );
    let agent = TestAgent::with_config(&config).await;
    let result = agent.run(&job("cap_add = [\"net_bind_service\"]")).await;
    assert_successful(&result);
    assert_eq!(agent.stdout(&result, "t"), "shown\n");
    let denied = told(&agent, &job("cap_add = [\"sys_admin\"]")).await;
    assert!(denied.contains("capability sys_admin is not granted"), "{denied}");
    agent.stop().await;
}

#[tokio::test]
async fn an_isolated_task_dies_with_the_agent_that_runs_one_job() {
    let data = DataDir::new();
    let file = data.path().join("job.hcl");
    let script = format!("setsid sleep 4000 & echo ready; : {}; wait", data.path().display());
    std::fs::write(&file, batch(&isolated_shell("t", &script, ""))).unwrap();
    let (dir, job) = (data.path().to_str().unwrap(), file.to_str().unwrap());
    let mut agent = command(["run", "--data-dir", dir, job]).spawn().unwrap();
    let task = || {
        let all = processes_of(data.path()).into_iter();
        all.filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).starts_with("/bin/sh")
        })
        .count()
    };
    eventually("the task runs", || task() > 0).await;
    agent.start_kill().unwrap();
    agent.wait().await.unwrap();
    eventually("nothing of it runs", || processes_of(data.path()).is_empty()).await;
}

/// As in a container that gives no namespaces: a process with a changed root may make none.
#[tokio::test]
async fn without_namespaces_a_task_is_isolated_by_what_is_left_and_says_what_is_lacking() {
    let root = tempfile::tempdir().unwrap();
    let data = DataDir::new();
    let file = data.path().join("job.hcl");
    let script = "grep -E \"^(Seccomp:|NoNewPrivs)\" /proc/self/status; (echo x > /etc/x) 2>&1; \
                  echo x > $NOMAD_TASK_DIR/x && echo wrote";
    let script = script.replace('"', "'");
    std::fs::write(&file, batch(&isolated_shell("t", &script, ""))).unwrap();
    let inside = format!(
        "mount --make-rprivate / && mount --rbind / {root} && exec chroot {root} setpriv \
         --bounding-set=-sys_admin {OSTLER} run --data-dir {data} {file}",
        root = root.path().display(),
        data = data.path().display(),
        file = file.display()
    );
    let mut command = tokio::process::Command::new("unshare");
    let output = command.args(["--mount", "sh", "-c", &inside]).output();
    let output = ostler_model::clock::timeout(PATIENCE, output).await.unwrap();
    let Some(output) = output.ok().filter(|_| rustix::process::geteuid().is_root()) else {
        skipped(Need::Root, "only root, with unshare and setpriv, can take namespaces away");
        return;
    };
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    for text in ["NoNewPrivs:\t1", "Seccomp:\t2", "Permission denied", "| wrote"] {
        assert!(stdout.contains(text), "{text}: {stdout}{stderr}");
    }
    for part in ["mounts", "pids", "ipc", "user"] {
        assert!(stderr.contains(&format!("{part} (")), "{part}: {stderr}");
    }
}

/// The README's first command for somebody without privileges: with what isolation there is.
#[tokio::test]
async fn the_first_command_works_for_a_user_without_privileges() {
    const SETPRIV: &str = "/usr/bin/setpriv";
    let job = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/jobs/hello.hcl");
    if !rustix::process::geteuid().is_root() || !std::path::Path::new(SETPRIV).exists() {
        skipped(Need::Root, "only root can become somebody without privileges, with setpriv");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(home.path(), Some(65_534), Some(65_534)).unwrap();
    let run = async |program: &[&str]| {
        let as_nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"];
        let mut command = tokio::process::Command::new(SETPRIV);
        command.args(as_nobody).args(program).env_clear().current_dir("/");
        command.env("HOME", home.path()).env("TMPDIR", home.path()).env("PATH", "/usr/bin:/bin");
        ostler_model::clock::timeout(PATIENCE, command.output()).await.unwrap().unwrap()
    };
    let reads = ["/bin/sh", "-c", "test -r \"$0\" && test -x \"$1\"", job, OSTLER];
    if !run(&reads).await.status.success() {
        not_asked("nobody reaches this checkout");
        return;
    }
    let output = run(&[OSTLER, "run", job]).await;
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.contains("native | hello from process"), "{stdout}{stderr}");
}

/// Links, modes, pipes and depth are the task's to choose; what is beside its directories is not.
#[tokio::test]
async fn what_a_task_left_is_removed_whatever_it_is_and_nothing_that_it_points_to() {
    let agent = AgentProcess::start().await;
    let beside = tempfile::tempdir().unwrap();
    std::fs::write(beside.path().join("kept"), "x").unwrap();
    let script = format!(
        "cd /local && mkfifo pipe && ln -s {beside} link && ln -s / root && mkdir -p /alloc/data/d && \
         ln -s ../../.. /alloc/data/d/up && : > $(printf '%0255d' 0) && mkdir closed && echo x > \
         closed/x && chmod 0 closed && n=0 && while [ $n -lt 1900 ]; do mkdir d && cd d || exit 1; \
         n=$((n+1)); done; echo deep",
        beside = beside.path().display()
    );
    agent.submit(&batch(&isolated_shell("t", &script, ""))).await.said(0, &[]);
    let alloc = agent.alloc("j").await;
    let dir = agent.data.path().join("allocs").join(&alloc);
    let printed = || std::fs::read_to_string(dir.join("alloc/logs/t.stdout.0"));
    eventually("it has left all that", || printed().is_ok_and(|text| text == "deep\n")).await;
    assert!(dir.join("t/local/link").symlink_metadata().unwrap().is_symlink());
    agent.ask(&["job", "stop", "--purge", "j"]).await;
    agent.ask(&["gc"]).await;
    eventually("its directory is gone", || !dir.exists()).await;
    assert_eq!(std::fs::read_to_string(beside.path().join("kept")).unwrap(), "x");
}

/// Whatever it ignores and wherever it forks to: its namespace ends with it.
#[tokio::test]
async fn a_task_that_forks_away_and_ignores_everything_ends_when_it_is_stopped() {
    let agent = AgentProcess::start().await;
    let script = "trap '' TERM INT HUP QUIT; \
                  n=0; while [ $n -lt 50 ]; do (trap '' TERM INT HUP; setsid sleep 4000 &) & \
                  n=$((n+1)); done; kill -STOP 1 2>/dev/null; echo forked; while :; do sleep 1; done";
    let service = batch(&isolated_shell("t", script, "kill_timeout = \"100ms\""))
        .replace("type = \"batch\"", "type = \"service\"")
        .replace("group \"g0\" {", &format!("group \"g0\" {{\n {SOON_HEALTHY}"));
    agent.run(&service).await.said(0, &["runs"]);
    let running = || isolated_processes_of(agent.data.path()).len();
    eventually("it has forked", || running() > 50).await;
    agent.ask(&["job", "stop", "j"]).await.said(0, &[]);
    eventually("nothing of it runs", || running() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_reads_its_rendered_files_and_hears_when_they_read_otherwise() {
    let agent = TestAgent::start().await;
    if lacking(&agent) {
        return agent.stop().await;
    }
    let template = "template {\n data = \"<{{ file \\\"/alloc/data/in\\\" }}>\"\n \
                    destination = \"${NOMAD_SECRETS_DIR}/deep/out\"\n change_mode = \"signal\"\n \
                    change_signal = \"SIGUSR1\"\n splay = \"0s\"\n }";
    let first = isolated_shell(
        "first",
        "printf one > /alloc/data/in",
        "lifecycle {\n hook = \"prestart\"\n }",
    );
    let script = "trap 'cat /secrets/deep/out; exit 0' USR1; cat /secrets/deep/out; \
                  printf two > /alloc/data/new; mv /alloc/data/new /alloc/data/in; \
                  while :; do sleep 0.05; done";
    let result = agent.run(&batch(&(first + &isolated_shell("t", script, template)))).await;
    assert_successful(&result);
    assert_eq!(agent.stdout(&result, "t"), "<one><two>");
    agent.stop().await;
}
