//! Commands inside tasks: what they see, what they may, and when they end.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::isolated::scene;
use super::*;
use ostler_model::limits::{COMMANDS_INSIDE_MAX, EXEC_ARGUMENTS_MAX};
use ostler_model::session::{ExecPlan, ExecSession, TerminalSize};

const SIZE: TerminalSize = TerminalSize { rows: 24, columns: 80 };

fn plan(script: &str) -> ExecPlan {
    ExecPlan {
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        env: None,
        cwd: None,
        user: None,
    }
}

/// A supervised task that waits, and its host.
async fn waiting() -> (ProcessHost, Case, String) {
    let host = supervised_host(&scratch().join("exits"));
    let mut case = sh("sleep 1000");
    case.spec.env.push(("OF_TASK".to_owned(), "yes".to_owned()));
    let id = start(&host, &case.spec).await.unwrap();
    (host, case, id)
}

/// All that a command prints, its errors after the rest, and how it ends.
async fn told(session: ExecSession) -> (String, Result<i32, String>) {
    let ExecSession { stdin, mut stdout, stderr, end, .. } = session;
    drop(stdin);
    let mut text = String::new();
    let printed = async {
        stdout.read_to_string(&mut text).await.unwrap();
        if let Some(mut stderr) = stderr {
            stderr.read_to_string(&mut text).await.unwrap();
        }
    };
    let ((), end) = tokio::join!(printed, end);
    (text, end)
}

/// The first line of a command that goes on.
async fn first_line(session: &mut ExecSession) -> String {
    let mut line = Vec::new();
    let read = async {
        loop {
            match session.stdout.read_u8().await.unwrap() {
                b'\n' => break,
                byte => line.push(byte),
            }
        }
    };
    let read = ostler_model::clock::timeout(Duration::from_secs(20), read).await;
    let line = String::from_utf8_lossy(&line).trim().to_owned();
    read.unwrap_or_else(|| panic!("no end of line after {line:?}"));
    line
}

#[tokio::test]
async fn a_command_has_its_own_input_output_and_exit_code_and_the_environment_of_the_task() {
    let (host, case, id) = waiting().await;
    let run = &case.spec.run_id;
    let mut session =
        host.exec(run, &id, plan("echo $OF_TASK; cat; echo no >&2; exit 7"), None).await.unwrap();
    session.stdin.write_all(b"given\n").await.unwrap();
    assert_eq!(told(session).await, ("yes\ngiven\nno\n".to_owned(), Ok(7)));
    let session = host.exec(run, &id, plan("kill -TERM $$"), None).await.unwrap();
    assert_eq!(told(session).await.1, Ok(128 + 15));
    let mut own = plan("echo $OF_TASK$OWN; pwd");
    own.env = Some(vec![("OWN".to_owned(), "mine".to_owned())]);
    own.cwd = Some("/usr".to_owned());
    let session = host.exec(run, &id, own, None).await.unwrap();
    assert_eq!(told(session).await.0, "mine\n/usr\n");
    assert_eq!(case.stdout.text(), "", "none of it is the task's");
    forget(&host, run, &id).await;
}

#[tokio::test]
async fn a_command_is_kept_apart_exactly_as_its_task_is() {
    let Some(scene) = scene().await else { return };
    let status = "grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp:)' /proc/self/status; ls -A /; \
                  cat /proc/self/mountinfo | wc -l; for n in mnt pid ipc uts net user cgroup; do \
                  readlink /proc/self/ns/$n; done; ulimit -a; \
                  (echo x > /usr/x) 2>/dev/null || echo refused; unshare -U true 2>&1 | head -1";
    let script =
        format!("({status}) > /local/own 2>&1; echo here > /local/f; echo ready; sleep 1000");
    let case = scene.case(&script);
    let id = start(&scene.host, &case.spec).await.unwrap();
    until("the task has looked", || case.stdout.text().contains("ready")).await;
    let run = &case.spec.run_id;
    let session = scene.host.exec(run, &id, plan("cat /local/f"), None).await.unwrap();
    assert_eq!(told(session).await, ("here\n".to_owned(), Ok(0)), "its root is the task's");
    let other = format!("({status}) > /local/other 2>&1; diff /local/own /local/other");
    let session = scene.host.exec(run, &id, plan(&other), None).await.unwrap();
    assert_eq!(told(session).await, (String::new(), Ok(0)));
    let own = std::fs::read_to_string(scene.dir.path().join("t/local/own")).unwrap();
    assert!(own.contains("NoNewPrivs:\t1") && own.contains("refused"), "{own}");
    let session = scene.host.exec(run, &id, plan("kill -0 1 2>&1; ls -d /proc/[0-9]*"), None);
    let (seen, _) = told(session.await.unwrap()).await;
    assert!(seen.lines().count() < 12, "the processes of the task and its own alone: {seen}");
    forget(&scene.host, run, &id).await;
}

#[tokio::test]
async fn no_process_of_the_task_sees_more_than_the_command_while_it_enters() {
    let Some(scene) = scene().await else { return };
    // Reads whatever process appears, as long as it is there.
    let script = "while [ ! -e /local/stop ]; do for p in /proc/[0-9]*; do [ -d $p/root/root ] && echo saw $p; \
                  ls $p/root/etc/ostler-host 2>/dev/null; ls -l $p/fd 2>/dev/null | grep -c memfd | grep -v '^0'; \
                  grep -H 'CapEff' $p/status 2>/dev/null | grep -v 0000000000000000; done; done";
    let case = scene.case(script);
    let id = start(&scene.host, &case.spec).await.unwrap();
    let run = &case.spec.run_id;
    for _ in 0..40 {
        let session = scene.host.exec(run, &id, plan("true"), None).await.unwrap();
        assert_eq!(told(session).await.1, Ok(0));
    }
    std::fs::write(scene.dir.path().join("t/local/stop"), "").unwrap();
    let exit = scene.host.wait(run, &id).await;
    let caps = |line: &&str| !line.contains("CapEff") || !line.starts_with("/proc/1/");
    let text = case.stdout.text();
    // Process 1 is what started the task; what it may is told by a test of its own.
    let saw: Vec<_> = text.lines().filter(caps).collect();
    assert!(saw.is_empty(), "{saw:?} {exit:?}");
    scene.host.forget_run(run);
}

#[tokio::test]
async fn a_terminal_is_the_commands_own_and_has_a_size_that_changes() {
    let (host, case, id) = waiting().await;
    let run = &case.spec.run_id;
    let script = "trap 'stty size; exit 3' WINCH; \
                  test -t 0 && test -t 1 && test -t 2 && tty >/dev/null && echo terminal $TERM; stty size; \
                  while :; do sleep 0.01; done";
    let mut session = host.exec(run, &id, plan(script), Some(SIZE)).await.unwrap();
    assert_eq!(first_line(&mut session).await, "terminal xterm");
    assert_eq!(first_line(&mut session).await, "24 80");
    session.resize.as_ref().unwrap()(TerminalSize { rows: 50, columns: 132 });
    assert_eq!(first_line(&mut session).await, "50 132");
    assert_eq!(session.end.await, Ok(3));
    // A key that interrupts reaches what runs in front. A shell that is about to start its next
    // program may drop it, so the program has answered before.
    let mut session = host.exec(run, &id, plan("exec cat"), Some(SIZE)).await.unwrap();
    session.stdin.write_all(b"up\n").await.unwrap();
    assert_eq!(first_line(&mut session).await, "up", "as it was typed");
    assert_eq!(first_line(&mut session).await, "up", "from the program");
    session.stdin.write_all(&[3]).await.unwrap();
    assert_eq!(session.end.await, Ok(130));
    forget(&host, run, &id).await;
}

#[tokio::test]
async fn an_isolated_task_has_terminals_too() {
    use std::os::unix::fs::MetadataExt as _;
    let Some(scene) = scene().await else { return };
    let nodes_own =
        || std::fs::metadata("/dev/null").map(|found| (found.uid(), found.gid())).unwrap();
    let of_root = nodes_own();
    let case = scene.case("sleep 1000");
    let id = start(&scene.host, &case.spec).await.unwrap();
    let run = &case.spec.run_id;
    let script = plan(
        "test -t 0 && stty size && echo to >/dev/stdout && ls -n $(tty) | cut -d' ' -f3,10 && read line && \
         echo got $line",
    );
    let mut session = scene.host.exec(run, &id, script, Some(SIZE)).await.unwrap();
    assert_eq!(first_line(&mut session).await, "24 80");
    assert_eq!(first_line(&mut session).await, "to");
    let named = first_line(&mut session).await;
    assert_eq!(named, "65534 /dev/pts/0", "its name leads to it, and it is the task's user's");
    assert_eq!(nodes_own(), of_root, "no file of the node is given to the task's user");
    session.stdin.write_all(b"line\n").await.unwrap();
    assert_eq!(first_line(&mut session).await, "line", "as it was typed");
    assert_eq!(first_line(&mut session).await, "got line");
    assert_eq!(session.end.await, Ok(0));
    forget(&scene.host, run, &id).await;
}

/// Two descendants, one in a session of its own.
const LEAVES_SOME: &str = "sleep 1000 & one=$!; setsid sleep 1001 & echo $one $! $$; wait";

async fn left(session: &mut ExecSession) -> Vec<u32> {
    let line = first_line(session).await;
    line.split(' ').map(|pid| pid.parse().unwrap()).collect()
}

#[tokio::test]
async fn a_command_that_nobody_waits_for_ends_with_everything_it_started() {
    let (host, case, id) = waiting().await;
    let run = &case.spec.run_id;
    let mut session = host.exec(run, &id, plan(LEAVES_SOME), None).await.unwrap();
    let pids = left(&mut session).await;
    drop(session);
    until("all of it has ended", || !pids.iter().any(|pid| exists(*pid))).await;
    // And one that has ended leaves nothing either.
    let ends = LEAVES_SOME.replace("; wait", "; exit 5");
    let mut session = host.exec(run, &id, plan(&ends), None).await.unwrap();
    let pids = left(&mut session).await;
    assert_eq!(session.end.await, Ok(5));
    until("all of it has ended", || !pids.iter().any(|pid| exists(*pid))).await;
    forget(&host, run, &id).await;
}

#[tokio::test]
async fn a_command_ends_with_its_task() {
    let (host, case, id) = waiting().await;
    let run = &case.spec.run_id;
    let mut session = host.exec(run, &id, plan(LEAVES_SOME), None).await.unwrap();
    let pids = left(&mut session).await;
    host.kill_run(run);
    let end = session.end.await;
    assert!(
        end.is_err() || end == Ok(128 + 9),
        "killed with its task, or by what ends it: {end:?}"
    );
    until("all of it has ended", || !pids.iter().any(|pid| exists(*pid))).await;
    host.wait(run, &id).await;
    let ended = host.exec(run, &id, plan("true"), None).await.unwrap_err();
    assert!(chain(&ended).contains("does not run"), "{ended}");
    forget(&host, run, &id).await;
}

#[tokio::test]
async fn what_cannot_be_run_is_named_and_too_much_is_refused() {
    let (host, case, id) = waiting().await;
    let run = &case.spec.run_id;
    let refused = |plan| {
        let (host, id) = (host.clone(), id.clone());
        async move { chain(&host.exec(run, &id, plan, None).await.unwrap_err()) }
    };
    let of = |argv: &[&str]| ExecPlan {
        argv: argv.iter().map(|&arg| arg.to_owned()).collect(),
        ..plan("")
    };
    for (argv, wanted) in [
        (&["no-such-program"][..], "no-such-program"),
        (&[], "no command"),
        (&["/bin/sh", "a\0b"], "NUL"),
        (&["true"; EXEC_ARGUMENTS_MAX + 1], "at most"),
        (&["/etc"], "/etc"),
    ] {
        let why = refused(of(argv)).await;
        assert!(why.contains(wanted), "{wanted} in {why}");
    }
    let somewhere = ExecPlan { cwd: Some("/no/such".to_owned()), ..plan("true") };
    assert!(refused(somewhere).await.contains("/no/such"));
    let relative = ExecPlan { cwd: Some("usr".to_owned()), ..plan("true") };
    assert!(refused(relative).await.contains("not absolute"));
    let other = ExecPlan { user: Some("nobody".to_owned()), ..plan("true") };
    let why = refused(other).await;
    assert!(why.contains("nobody else") || why.contains("user"), "{why}");
    assert!(
        refused(ExecPlan { user: Some("no-such-user".to_owned()), ..plan("true") })
            .await
            .contains("no-such-user")
    );

    let mut all = Vec::new();
    for _ in 0..COMMANDS_INSIDE_MAX {
        all.push(host.exec(run, &id, plan("sleep 1000"), None).await.unwrap());
    }
    assert!(refused(plan("true")).await.contains("as many commands"));
    all.clear();
    until("one may begin again", || host.inner.sessions.available_permits() == COMMANDS_INSIDE_MAX)
        .await;
    forget(&host, run, &id).await;
}

#[tokio::test]
async fn a_task_without_a_supervisor_is_not_entered() {
    let host = host_with(false);
    let case = sh("sleep 1000");
    let id = start(&host, &case.spec).await.unwrap();
    let refused = host.exec(&case.spec.run_id, &id, plan("true"), None).await.unwrap_err();
    assert!(chain(&refused).contains("inside the task"), "{refused}");
    forget(&host, &case.spec.run_id, &id).await;
}
