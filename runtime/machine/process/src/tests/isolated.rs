//! Isolated programs, and what they try.

use super::*;
use crate::user::UserDefault;
use ostler_model::device::{DeviceNode, Mount};
use ostler_model::isolation::{BASE_DEFAULT, HIDDEN_DEFAULT, IsolationKind};

/// A task's directories, and the host that starts it.
pub(super) struct Scene {
    pub host: ProcessHost,
    pub dir: tempfile::TempDir,
    isolation: Isolation,
}

/// A scene for isolated programs. Where this node cannot isolate, the reason is printed and the
/// result is `None`.
pub(super) async fn scene() -> Option<Scene> {
    scene_of(supervised_host(&scratch().join("exits"))).await
}

async fn scene_of(host: ProcessHost) -> Option<Scene> {
    let abilities = host.abilities().await.clone();
    let parts: Vec<IsolationKind> =
        IsolationKind::ALL.into_iter().filter(|part| *part != IsolationKind::Network).collect();
    if let Some(lacking) = parts.iter().find_map(|part| abilities.lacking.get(part)) {
        eprintln!("skipped: this node cannot isolate tasks: {lacking}");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    for name in ["t/local", "t/secrets", "t/tmp", "alloc/data", "alloc/logs", "alloc/tmp"] {
        std::fs::create_dir_all(dir.path().join(name)).unwrap();
    }
    let isolation = Isolation {
        parts,
        user_namespace: abilities.user_namespace,
        task_dir: dir.path().join("t"),
        alloc_dir: dir.path().join("alloc"),
        base: BASE_DEFAULT.map(PathBuf::from).to_vec(),
        hidden: HIDDEN_DEFAULT.map(PathBuf::from).to_vec(),
        mounts: Vec::new(),
        device_nodes: Vec::new(),
        capabilities: 0,
        user_default: UserDefault::Named("nobody".to_owned()),
        root_allowed: false,
        processes_max: None,
    };
    Some(Scene { host, dir, isolation })
}

impl Scene {
    pub fn case(&self, script: &str) -> Case {
        let mut case = sh(script);
        case.spec.isolation = Some(self.isolation.clone());
        case
    }

    /// The output of a script, and its exit.
    async fn told(&self, script: &str) -> (String, RawExit) {
        let case = self.case(script);
        let exit = to_end(&self.host, &case.spec).await;
        (format!("{}{}", case.stdout.text(), case.stderr.text()), exit)
    }

    async fn lines(&self, script: &str) -> Vec<String> {
        let (told, exit) = self.told(script).await;
        assert_eq!(exit.exit_code, Some(0), "{exit:?}: {told}");
        told.lines().map(str::to_owned).collect()
    }

    async fn refused(&self, script: &str) -> String {
        match start(&self.host, &self.case(script).spec).await {
            Err(error) => chain(&error),
            Ok(id) => panic!("{id} runs"),
        }
    }
}

#[tokio::test]
async fn a_program_sees_its_own_root_and_writes_its_own_directories_only() {
    let Some(scene) = scene().await else { return };
    let top = scene.lines("ls -A /").await;
    for name in ["local", "secrets", "alloc", "tmp", "usr", "etc", "proc", "dev"] {
        assert!(top.iter().any(|one| one == name), "{name} in {top:?}");
    }
    let known = ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "run", "local", "secrets"];
    let known = [&known[..], &["alloc", "tmp", "usr", "etc", "proc", "dev"]].concat();
    assert!(top.iter().all(|one| known.contains(&one.as_str())), "{top:?}");

    let wrote = "for at in /local /secrets /tmp /alloc/data /alloc/tmp /dev/shm; do \
                 echo x > $at/f && echo $at; done";
    assert_eq!(scene.lines(wrote).await.len(), 6);
    assert_eq!(std::fs::read_to_string(scene.dir.path().join("t/local/f")).unwrap(), "x\n");
    let refused = "for at in / /usr /etc /alloc /alloc/logs /dev /proc; do \
                   (echo x > $at/f) 2>/dev/null && echo $at; done; true";
    assert_eq!(scene.lines(refused).await, [""; 0]);
    let own = std::fs::read_dir(scene.dir.path().join("t")).unwrap().count();
    assert_eq!(own, 3, "nothing was made in the task's directory");
}

#[tokio::test]
async fn what_else_is_in_its_directory_is_at_that_path_of_its_root_and_the_systems_stays() {
    let Some(scene) = scene().await else { return };
    let own = scene.dir.path().join("t");
    std::fs::create_dir_all(own.join("app/latest")).unwrap();
    std::fs::create_dir_all(own.join("run/own")).unwrap();
    std::fs::write(own.join("app/latest/file"), "deep\n").unwrap();
    std::fs::write(own.join("run.sh"), "echo one\n").unwrap();
    std::os::unix::fs::symlink("app/latest", own.join("current")).unwrap();
    let script =
        "cat /app/latest/file /current/file; sh /run.sh; ls /run; touch /app/x || echo no; cat /go";
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, own.join("go"), fifo, 0o644.into(), 0).unwrap();
    open_to_all(&own).unwrap();
    let case = scene.case(&format!("{script}; sh /run.sh"));
    let id = start(&scene.host, &case.spec).await.unwrap();
    until("it has run", || case.stdout.text().contains("own\n")).await;
    // Another file in the place of one, as templates are written.
    std::fs::write(own.join("next"), "echo two\n").unwrap();
    open_to_all(&own).unwrap();
    std::fs::rename(own.join("next"), own.join("run.sh")).unwrap();
    let go = own.join("go");
    tokio::task::spawn_blocking(move || std::fs::write(go, "")).await.unwrap().unwrap();
    scene.host.wait(&case.spec.run_id, &id).await;
    scene.host.forget_run(&case.spec.run_id);
    let told = case.stdout.text();
    assert!(told.starts_with("deep\ndeep\none\n") && told.ends_with("two\n"), "{told}");

    let mut case = scene.case("");
    (case.spec.command, case.spec.args) = ("run.sh".to_owned(), Vec::new());
    case.spec.search = vec!["/local".into(), "/".into()];
    std::fs::write(own.join("run.sh"), "#!/bin/sh\necho $0\n").unwrap();
    to_end(&scene.host, &case.spec).await;
    assert_eq!(case.stdout.text(), "/run.sh\n");

    std::fs::create_dir(own.join("etc")).unwrap();
    let refused = scene.refused("true").await;
    assert!(refused.contains("/etc: the system's own is shown there"), "{refused}");
}

#[tokio::test]
async fn a_program_does_not_run_as_root_and_has_no_way_to_become_it() {
    let Some(scene) = scene().await else { return };
    let ids = scene.lines("id -u; id -g").await;
    assert!(!ids.contains(&"0".to_owned()), "{ids:?}");
    let status = scene.lines("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status").await;
    for line in status {
        let value = line.split_whitespace().last().unwrap().to_owned();
        let wanted = match line.split(':').next().unwrap() {
            "NoNewPrivs" => "1",
            "Seccomp" => "2",
            _ => "0000000000000000",
        };
        assert_eq!(value, wanted, "{line}");
    }
    if rustix::process::geteuid().is_root() {
        let mut case = scene.case("id -u");
        case.spec.user = Some("root".to_owned());
        let refused = start(&scene.host, &case.spec).await.unwrap_err().to_string();
        assert!(refused.contains("which is root"), "{refused}");
    }
}

#[tokio::test]
async fn exit_codes_and_signals_are_those_of_the_program() {
    let Some(scene) = scene().await else { return };
    assert_eq!(scene.told("exit 37").await.1.exit_code, Some(37));
    assert_eq!(scene.told("kill -SEGV $$").await.1.signal, Some(11));
    let case = scene.case("echo ready; exec sleep 1000");
    let id = start(&scene.host, &case.spec).await.unwrap();
    until("it runs", || case.stdout.text().contains("ready")).await;
    // A program without handlers ends by a signal, as it is not the first of its namespace.
    scene.host.signal(&case.spec.run_id, &id, "SIGTERM").unwrap();
    let exit = scene.host.wait(&case.spec.run_id, &id).await;
    assert_eq!(exit.signal, Some(15), "{exit:?}");
    scene.host.forget_run(&case.spec.run_id);
}

#[tokio::test]
async fn descendants_that_leave_the_group_and_the_session_end_with_the_program() {
    let Some(scene) = scene().await else { return };
    let mark = format!("1000.{}", std::process::id());
    let script = format!(
        "setsid sleep {mark} & (setsid sh -c 'sleep {mark} & sleep {mark} &' &); sleep 0.1; echo gone"
    );
    let (told, exit) = scene.told(&script).await;
    assert_eq!((told.as_str(), exit.exit_code), ("gone\n", Some(0)));
    let alive = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&mark)
    });
    assert_eq!(alive.count(), 0);
}

#[tokio::test]
async fn processes_of_others_are_neither_seen_nor_signalled_nor_traced() {
    let Some(scene) = scene().await else { return };
    let case = scene.case("exec sleep 1000");
    let id = start(&scene.host, &case.spec).await.unwrap();
    let identity = scene.host.identity(&case.spec.run_id, &id).unwrap();
    let shim = identity.supervisor.unwrap().pid;
    for pid in [std::process::id(), shim, identity.pid] {
        let script = format!(
            "ls -d /proc/{pid} 2>/dev/null; kill -9 {pid} 2>/dev/null && echo killed; \
             cat /proc/{pid}/environ 2>/dev/null; true"
        );
        assert_eq!(scene.lines(&script).await, [""; 0], "{pid}");
    }
    assert_eq!(scene.host.state(&case.spec.run_id, &id).unwrap(), ProcessState::Running);
    let seen = scene.lines("ls /proc | grep -E '^[0-9]+$' | sort -n | head -2").await;
    assert_eq!(seen, ["1", "2"]);
    let first = "kill -9 1 2>/dev/null; cat /proc/1/environ 2>/dev/null; ls /proc/1/root 2>/dev/null; \
                 ls /proc/1/fd 2>/dev/null; echo still here";
    assert_eq!(scene.lines(first).await, ["still here"]);
    forget(&scene.host, &case.spec.run_id, &id).await;
}

#[tokio::test]
async fn secrets_of_the_system_and_directories_of_others_are_not_there() {
    let Some(scene) = scene().await else { return };
    let outside = scene.dir.path().join("other");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "secret").unwrap();
    let script = format!(
        "cat /etc/shadow /etc/gshadow {0}/secret 2>/dev/null; ls /etc/ssh /root /home {0} 2>/dev/null; \
         ln -s {0}/secret /local/link; cat /local/link 2>/dev/null; \
         cd /; cd ../../..; ls var 2>/dev/null; echo done",
        outside.display()
    );
    assert_eq!(scene.lines(&script).await, ["done"]);
}

#[tokio::test]
async fn mounts_namespaces_and_the_kernel_are_out_of_reach() {
    let Some(scene) = scene().await else { return };
    for tried in [
        "mount -t tmpfs none /tmp",
        "mount --bind /usr /local",
        "umount /etc",
        "unshare --user true",
        "unshare --mount true",
        "chroot / true",
        "mknod /local/disk b 8 0",
        "echo 1 > /proc/sys/kernel/panic",
        "echo b > /proc/sysrq-trigger",
        "dmesg",
    ] {
        let (told, exit) = scene.told(&format!("{tried} 2>&1")).await;
        assert_ne!(exit.exit_code, Some(0), "{tried}: {told}");
    }
}

#[tokio::test]
async fn a_link_in_the_place_of_a_tasks_directory_leads_nowhere() {
    let Some(mut scene) = scene().await else { return };
    let local = scene.dir.path().join("t/local");
    std::fs::remove_dir(&local).unwrap();
    std::os::unix::fs::symlink("/etc", &local).unwrap();
    let refused = scene.refused("true").await;
    assert!(!refused.is_empty());
    std::fs::remove_file(&local).unwrap();
    std::fs::create_dir(&local).unwrap();
    // The same holds for mounts: somebody left a link in one of them.
    std::os::unix::fs::symlink("/", scene.dir.path().join("alloc/data/link")).unwrap();
    let host_path = scene.dir.path().join("alloc/data/link/etc").display().to_string();
    scene.isolation.mounts =
        vec![Mount { host_path, task_path: "/srv".to_owned(), read_only: false }];
    let refused = scene.refused("true").await;
    assert!(refused.contains("could not be isolated"), "{refused}");
}

#[tokio::test]
async fn one_that_cannot_be_isolated_says_why_however_soon_it_has_ended() {
    let Some(mut scene) = scene().await else { return };
    let host_path = scene.dir.path().join("not-there").display().to_string();
    scene.isolation.mounts =
        vec![Mount { host_path, task_path: "/srv".to_owned(), read_only: false }];
    for _ in 0..100 {
        let told = scene.refused("true").await;
        assert!(told.contains("could not be isolated"), "{told}");
    }
}

#[tokio::test]
async fn what_is_mounted_is_there_with_its_rights() {
    let Some(mut scene) = scene().await else { return };
    let shown = scene.dir.path().join("shown");
    std::fs::create_dir(&shown).unwrap();
    std::fs::write(shown.join("file"), "hello\n").unwrap();
    open_to_all(&shown).unwrap();
    let mount = |task_path: &str, read_only| Mount {
        host_path: shown.display().to_string(),
        task_path: task_path.to_owned(),
        read_only,
    };
    scene.isolation.mounts = vec![mount("/srv/data", true), mount("/local/devices/x", false)];
    let script = "cat /srv/data/file /local/devices/x/file; (echo x > /srv/data/new) 2>/dev/null \
                  && echo written; true";
    assert_eq!(scene.lines(script).await, ["hello", "hello"]);
    scene.isolation.mounts = vec![mount("/local", false)];
    let refused = scene.refused("true").await;
    assert!(refused.contains("it covers /local"), "{refused}");
}

#[tokio::test]
async fn a_device_node_is_made_in_the_root_alone_and_nothing_of_it_is_left_on_the_node() {
    let Some(mut scene) = scene().await else { return };
    let shown = scene.dir.path().join("shown");
    std::fs::create_dir(&shown).unwrap();
    let host_path = shown.display().to_string();
    scene.isolation.mounts =
        vec![Mount { host_path, task_path: "/srv".to_owned(), read_only: false }];
    let device = |task_path: &str| DeviceNode {
        host_path: "/dev/zero".to_owned(),
        task_path: task_path.to_owned(),
        permissions: "r".to_owned(),
    };
    scene.isolation.device_nodes = vec![device("/dev/own/zero"), device("/opt/zero")];
    let script = "head -c 4 /dev/own/zero /opt/zero | tr -d '\\0' | grep -c '==>'";
    assert_eq!(scene.lines(script).await, ["2"]);
    let left = ["t/local/zero", "t/tmp/zero", "alloc/data/zero", "shown/zero"];
    let asked = ["/local/zero", "/tmp/zero", "/alloc/data/zero", "/srv/zero"];
    for (task_path, left) in asked.into_iter().zip(left) {
        scene.isolation.device_nodes = vec![device(task_path)];
        let outcome = start(&scene.host, &scene.case("true").spec).await;
        let left = scene.dir.path().join(left).symlink_metadata();
        assert!(left.is_err(), "{task_path}: a device node is on the node's disk");
        assert!(chain(&outcome.unwrap_err()).contains("stays on the node"), "{task_path}");
    }
}

#[tokio::test]
async fn without_network_there_is_a_loopback_and_nothing_else() {
    let Some(mut scene) = scene().await else { return };
    if let Some(why) = scene.host.abilities().await.lacking.get(&IsolationKind::Network) {
        eprintln!("skipped: {why}");
        return;
    }
    scene.isolation.parts.push(IsolationKind::Network);
    let seen = scene.lines("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").await;
    let others: Vec<_> = seen.iter().filter(|name| !name.contains("tunl")).collect();
    assert_eq!(others.first().map(|name| name.as_str()), Some("lo"), "{seen:?}");
    assert!(!seen.iter().any(|name| name.starts_with("eth")), "{seen:?}");
}

#[tokio::test]
async fn a_fork_bomb_meets_a_bound_and_all_of_it_ends() {
    let Some(mut scene) = scene().await else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root gives tasks a user whose processes are counted");
        return;
    }
    scene.isolation.processes_max = Some(200);
    let mark = format!("2000.{}", std::process::id());
    let script = format!("i=0; while [ $i -lt 1000 ]; do sleep {mark} & i=$((i+1)); done; wait");
    let case = scene.case(&script);
    let id = start(&scene.host, &case.spec).await.unwrap();
    until("it is refused more", || case.stderr.text().to_lowercase().contains("fork")).await;
    scene.host.kill(&case.spec.run_id, &id).unwrap();
    scene.host.wait(&case.spec.run_id, &id).await;
    let alive = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&mark)
    });
    assert_eq!(alive.count(), 0);
    scene.host.forget_run(&case.spec.run_id);
}

#[tokio::test]
async fn a_program_that_is_not_in_the_view_is_named_with_where_it_was_looked_for() {
    let Some(scene) = scene().await else { return };
    let mut case = scene.case("");
    for (command, text) in [
        ("no-such-program", "/usr/bin/no-such-program"),
        ("/opt/no/such", "/opt/no/such was not found"),
        ("local/tool", "/local/tool"),
        ("/etc/passwd", "/etc/passwd is not executable"),
    ] {
        case.spec.command = command.to_owned();
        case.spec.run_id = run_id(1);
        let refused = start(&scene.host, &case.spec).await.unwrap_err().to_string();
        assert!(refused.contains(text), "{command}: {refused}");
        scene.host.forget_run(&case.spec.run_id);
    }
    let tool = scene.dir.path().join("t/local/tool");
    write_script(&tool, "#!/bin/sh\necho from the task\n").unwrap();
    case.spec.command = "local/tool".to_owned();
    case.spec.run_id = run_id(1);
    assert_eq!(to_end(&scene.host, &case.spec).await.exit_code, Some(0));
    assert!(case.stdout.text().contains("from the task"));
}

#[tokio::test]
async fn the_end_of_its_supervisor_is_the_end_of_everything_inside() {
    let Some(scene) = scene().await else { return };
    let mark = format!("3000.{}", std::process::id());
    let case = scene.case(&format!("setsid sleep {mark} & echo ready; wait"));
    let id = start(&scene.host, &case.spec).await.unwrap();
    until("it runs", || case.stdout.text().contains("ready")).await;
    let identity = scene.host.identity(&case.spec.run_id, &id).unwrap();
    outlive::kill(outlive::supervisor(&identity), Signal::KILL);
    let exit = scene.host.wait(&case.spec.run_id, &id).await;
    assert!(exit.error.is_some(), "{exit:?}");
    until("nothing of it lives", || {
        !std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&mark)
        })
    })
    .await;
    scene.host.forget_run(&case.spec.run_id);
}

#[tokio::test]
async fn an_agent_that_forks_for_itself_isolates_through_a_supervisor() {
    let supervision =
        Supervision { program: supervise_script(), records: scratch().join("isolated-exits") };
    let host = ProcessHost::new(ProcessOptions {
        control: Handle::current(),
        kill_with_agent: true,
        supervision: Some(supervision),
        cgroup_parent: None,
        clock: Clock::system(),
    })
    .unwrap();
    let bare = sh("echo bare");
    assert_eq!(to_end(&host, &bare.spec).await.exit_code, Some(0));
    let Some(scene) = scene_of(host).await else { return };
    assert_eq!(scene.lines("echo $$").await, ["2"]);
    assert_eq!(scene.told("exit 3").await.1.exit_code, Some(3));
}

/// The same, as root without capabilities, as the configuration may allow.
fn as_root(scene: &Scene, script: &str) -> Option<Case> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can let a task be root");
        return None;
    }
    let mut case = scene.case(script);
    case.spec.user = Some("root".to_owned());
    let isolation = Isolation { root_allowed: true, ..scene.isolation.clone() };
    case.spec.isolation = Some(isolation);
    Some(case)
}

#[tokio::test]
async fn a_program_that_is_root_changes_no_device_of_the_node() {
    let Some(scene) = scene().await else { return };
    let script = "for at in /dev/null /dev/full /dev/stdin /proc/self/fd/0; do \
                  chmod 600 $at 2>/dev/null && echo $at; touch -d 2001-01-01 $at 2>/dev/null && \
                  echo $at; done; echo x > /dev/null && echo over";
    let Some(case) = as_root(&scene, script) else { return };
    to_end(&scene.host, &case.spec).await;
    assert_eq!(case.stdout.text(), "over\n");
}

#[tokio::test]
async fn a_program_opens_its_streams_by_their_names() {
    let Some(scene) = scene().await else { return };
    let told =
        scene.lines("echo out > /dev/stdout; cat < /dev/stdin; echo err > /dev/stderr").await;
    assert_eq!(told, ["out", "err"]);
}

#[tokio::test]
async fn a_program_takes_no_more_terminals_than_are_its_own() {
    let Some(scene) = scene().await else { return };
    // Each call keeps one open beside those of its callers.
    let script =
        "f() { echo $1; [ $1 -lt 70 ] && f $(($1 + 1)) 3<>/dev/pts/ptmx; }; f 0 2>/dev/null; true";
    assert_eq!(scene.lines(script).await.last().map(String::as_str), Some("64"));
}

#[tokio::test]
async fn process_1_tells_nothing_of_the_node() {
    let Some(mut scene) = scene().await else { return };
    scene.isolation.parts.push(IsolationKind::Network);
    let script = "cmp /proc/1/mountinfo /proc/self/mountinfo && echo same; \
                  grep -c : /proc/1/net/dev; wc -l < /proc/1/net/unix";
    assert_eq!(scene.lines(script).await, ["same", "1", "1"]);
}

#[tokio::test]
async fn process_1_has_no_right_that_a_program_could_take_over() {
    let Some(scene) = scene().await else { return };
    // Process 1 may still be on its way to its filter.
    let script = "until grep -q '^Seccomp:.2' /proc/1/status; do :; done; \
                  grep -E '^Cap(Inh|Prm|Eff|Amb)' /proc/1/status";
    let sets = scene.lines(script).await;
    assert_eq!(sets.len(), 4);
    for set in sets {
        assert!(set.ends_with(":\t0000000000000000"), "{set}");
    }
}

#[tokio::test]
async fn a_program_that_sees_other_processes_changes_none_of_them() {
    let Some(mut scene) = scene().await else { return };
    scene.isolation.parts.retain(|part| *part != IsolationKind::Pids);
    // The child of the script stands for all other processes: by its user alone it may be changed.
    let script = "sleep 10 & for by in 'prlimit --core=1 --pid' 'renice -n 5 -p' 'ionice -c 3 -p' \
                  'taskset -p 1' 'chrt -i -p 0'; do $by $! >/dev/null 2>&1 && echo $by; done; \
                  kill $!; ulimit -c 1 && nice -n 1 true && echo over";
    assert_eq!(scene.lines(script).await, ["over"]);
}

#[tokio::test]
async fn a_bound_of_processes_that_nobody_could_count_is_refused() {
    let Some(scene) = scene().await else { return };
    let Some(mut case) = as_root(&scene, "true") else { return };
    if scene.host.cgroup_status().pids {
        eprintln!("skipped: the pids controller counts here");
        return;
    }
    case.spec.isolation.as_mut().unwrap().processes_max = Some(50);
    let refused = start(&scene.host, &case.spec).await.unwrap_err().to_string();
    assert!(refused.contains("nothing here can count them"), "{refused}");
}
