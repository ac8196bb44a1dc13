//! Starting: what the child sees, what keeps it from running.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::*;

in_both_modes!(
    the_task_sees_its_environment_directory_and_descriptors_and_nothing_else,
    the_identity_is_recorded_before_user_code_runs_and_a_refusal_keeps_it_from_running,
    giving_up_while_the_identity_is_recorded_kills_the_held_child,
    a_start_that_cannot_be_says_why_and_leaves_nothing,
    a_run_has_a_bounded_number_of_processes,
    starts_do_not_wait_for_each_others_records,
);

async fn the_task_sees_its_environment_directory_and_descriptors_and_nothing_else(mode: Mode) {
    let (host, dir) = (mode.host(), tempfile::tempdir().unwrap());
    let mut case = sh("");
    case.spec.command = "cat".to_owned();
    case.spec.args = vec!["/proc/self/environ".to_owned()];
    case.spec.env.push(("ONLY".to_owned(), "this = one".to_owned()));
    to_end(&host, &case.spec).await;
    let told = format!("PATH={}\0ONLY=this = one\0", command::PATH_DEFAULT);
    let said = case.stdout.text();
    let who = said.strip_prefix(&told).unwrap_or_else(|| panic!("{said:?}"));
    let names = who.split_terminator('\0').filter_map(|one| one.split_once('='));
    let names: Vec<_> = names.map(|(name, _)| name).collect();
    assert_eq!(names, ["USER", "LOGNAME", "HOME"], "who it runs as, and nothing of the agent's");

    // An inheritable descriptor of the agent must not get through.
    let leaky = rustix::io::dup(std::fs::File::open("/dev/null").unwrap()).unwrap();
    let mut case = sh(
        "pwd; umask; ls /proc/self/fd | wc -l; cat; grep -E '^Sig(Blk|Ign)' /proc/self/status; cut -d' ' -f1,5,6 /proc/self/stat",
    );
    case.spec.cwd = dir.path().canonicalize().unwrap();
    to_end(&host, &case.spec).await;
    drop(leaky);
    let text = case.stdout.text();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(Path::new(lines[0]), case.spec.cwd);
    assert_eq!(lines[1], "0022");
    // 0, 1, 2 and the directory `ls` itself has open; 1 is its pipe to `wc`.
    assert_eq!(lines[2], "4", "{text}");
    for line in &lines[3..5] {
        assert!(line.ends_with("\t0000000000000000"), "{text}");
    }
    let ids: Vec<_> = lines[5].split(' ').collect();
    assert_eq!(ids[1], ids[2], "group and session are one: {text}");
}

async fn the_identity_is_recorded_before_user_code_runs_and_a_refusal_keeps_it_from_running(
    mode: Mode,
) {
    let (host, dir) = (mode.host(), tempfile::tempdir().unwrap());
    let made = dir.path().join("made");
    let mut case = sh(&format!("echo hi > {}", made.display()));
    let seen = Arc::new(Mutex::new(None));
    let (slot, path) = (Arc::clone(&seen), made.clone());
    case.spec.record_identity = Arc::new(move |identity| {
        let (slot, path) = (Arc::clone(&slot), path.clone());
        Box::pin(async move {
            assert!(!path.exists());
            assert!(identity::is_alive(&identity));
            *slot.lock().unwrap() = Some(identity);
            Err("disk full".to_owned())
        })
    });
    let error = start(&host, &case.spec).await.unwrap_err();
    assert!(error.to_string().contains("disk full"), "{error}");
    let identity = seen.lock().unwrap().clone().unwrap();
    assert!(!identity::is_alive(&identity));
    assert!(!Path::new(&format!("/proc/{}", identity.pid)).exists(), "not even a zombie");
    assert!(!made.exists());
    assert!(cgroup_is_gone(&identity));
    assert!(host.table().is_empty());

    case.spec.record_identity = recorded();
    assert_eq!(to_end(&host, &case.spec).await.exit_code, Some(0));
    assert!(made.exists());
}

async fn giving_up_while_the_identity_is_recorded_kills_the_held_child(mode: Mode) {
    let (host, dir) = (mode.host(), tempfile::tempdir().unwrap());
    let made = dir.path().join("made");
    let mut case = sh(&format!("echo hi > {}", made.display()));
    let (tell, told) = tokio::sync::oneshot::channel();
    let tell = Mutex::new(Some(tell));
    case.spec.record_identity = Arc::new(move |identity| {
        tell.lock().unwrap().take().unwrap().send(identity).unwrap();
        Box::pin(std::future::pending())
    });
    let identity = tokio::select! {
        _ = host.spawn(case.spec.clone()) => panic!("the start cannot end"),
        identity = told => identity.unwrap(),
    };
    until("the child is gone", || !exists(identity.pid)).await;
    until("it is forgotten", || host.table().is_empty()).await;
    until("its cgroup is gone", || cgroup_is_gone(&identity)).await;
    assert!(!made.exists());
}

/// The plan by which a child is forked that then waits for its go, and the parent's ends of its pipes.
fn held(spec: &ProcessSpec, cgroup: Option<OwnedFd>) -> (child::ChildPlan, [OwnedFd; 4]) {
    let texts =
        command::Texts::new(Path::new("/bin/sh"), "sh", &spec.args, &spec.env, &spec.cwd).unwrap();
    let ((out, stdout), (err, stderr)) = (child::pipe().unwrap(), child::pipe().unwrap());
    let ((go_child, go), (status_end, status)) = (child::pipe().unwrap(), child::pipe().unwrap());
    let plan = child::ChildPlan {
        texts,
        ids: None,
        cgroup,
        kill_with_agent: false,
        stdin: child::dev_null().unwrap(),
        stdout,
        stderr,
        go: go_child,
        status,
    };
    (plan, [go, out, err, status_end])
}

#[tokio::test]
async fn a_held_child_ends_without_user_code_when_the_agents_end_closes() {
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("made");
    let (plan, ends) = held(&sh(&format!("echo hi > {}", made.display())).spec, None);
    let forked = Spawner::start().unwrap().fork(plan).await.unwrap().unwrap();
    let (pid, pidfd) = forked.into_parts().unwrap();
    let [go, _out, _err, _status] = ends;
    drop(go);
    let status = tokio::task::spawn_blocking(move || {
        let id = rustix::process::WaitId::PidFd(std::os::fd::AsFd::as_fd(&pidfd));
        rustix::process::waitid(id, rustix::process::WaitIdOptions::EXITED)
    });
    assert_eq!(status.await.unwrap().unwrap().unwrap().exit_status(), Some(127));
    assert!(!exists(pid.as_raw_nonzero().get().unsigned_abs()));
    assert!(!made.exists());
}

#[tokio::test]
async fn a_child_is_forked_into_its_cgroup_or_moved_there() {
    let cgroups = cgroup::prepare(None);
    let Some(leaf) =
        cgroup::Leaf::create(&cgroups, "forked into", &cgroup::Limits::default()).unwrap()
    else {
        eprintln!("skipped: {:?}", cgroups.unavailable);
        return;
    };
    let name = leaf.path().file_name().unwrap().to_str().unwrap();
    let spawner = Spawner::start().unwrap();
    for moved in [false, true] {
        let cgroup = (!moved).then(|| leaf.open().unwrap());
        let (plan, _ends) = held(&sh("true").spec, cgroup);
        let forked = spawner.fork(plan).await.unwrap().unwrap();
        let pid = forked.pid().unwrap();
        let of_child = format!("/proc/{}/cgroup", pid.as_raw_nonzero());
        let inside = || std::fs::read_to_string(&of_child).unwrap().contains(name);
        assert_eq!(inside(), !moved);
        if moved {
            cgroup::move_into(leaf.open().unwrap(), pid).unwrap();
            assert!(inside());
        }
        // Dropped, it is killed and reaped.
        drop(forked);
    }
    assert!(leaf.remove());
}

async fn a_start_that_cannot_be_says_why_and_leaves_nothing(mode: Mode) {
    let (host, dir) = (mode.host(), tempfile::tempdir().unwrap());
    let refused = |change: &dyn Fn(&mut ProcessSpec)| {
        let mut spec = sh("true").spec;
        change(&mut spec);
        let host = host.clone();
        async move {
            let error = start(&host, &spec).await.unwrap_err();
            host.forget_run(&spec.run_id);
            error
        }
    };
    let error = refused(&|spec| spec.command = "no-such-program".to_owned()).await;
    assert!(matches!(error, ProcessError::CommandNotFound { .. }), "{error}");
    let error = refused(&|spec| spec.cwd = dir.path().join("absent")).await;
    assert!(matches!(error, ProcessError::WorkingDirectory { .. }), "{error}");
    let error = refused(&|spec| spec.user = Some("no-such-user".to_owned())).await;
    assert!(matches!(error, ProcessError::UnknownUser { .. }), "{error}");
    let error = refused(&|spec| spec.env.push(("A".to_owned(), "\0".to_owned()))).await;
    assert!(matches!(error, ProcessError::InvalidText { .. }), "{error}");

    // Found only by the child, after the fork.
    let broken = dir.path().join("broken");
    write_script(&broken, "#!/no/such/interpreter\n").unwrap();
    let error = refused(&|spec| spec.command = broken.display().to_string()).await;
    assert!(error.to_string().contains("interpreter"), "{error}");
    let error = refused(&|spec| spec.args = vec!["x".repeat(8 << 20)]).await;
    assert!(matches!(error, ProcessError::Start { step: "executing the program", .. }), "{error}");
    assert!(host.table().is_empty());
}

#[tokio::test]
async fn root_runs_a_task_as_another_user_with_that_users_groups() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not root");
        return;
    }
    for host in [host_with(true), Mode::Supervised.host()] {
        let mut case = sh("id -u; id -G");
        case.spec.user = Some("nobody".to_owned());
        let exit = to_end(&host, &case.spec).await;
        assert_eq!(exit.exit_code, Some(0), "{}", case.stderr.text());
        let nobody = user::account_of_task(Some("nobody"), None).unwrap().ids.unwrap();
        let groups: Vec<_> = nobody.groups.iter().map(u32::to_string).collect();
        assert_eq!(case.stdout.text(), format!("{}\n{}\n", nobody.uid, groups.join(" ")));
    }
}

/// From now on this process is rather ended than others, as whoever starts an agent may have it.
fn a_score_of_its_own() {
    std::fs::write("/proc/self/oom_score_adj", "300").unwrap();
}

#[tokio::test]
async fn no_task_is_protected_from_want_of_memory_as_its_agent_is_or_any_other_way() {
    a_score_of_its_own();
    for host in [host_with(true), Mode::Supervised.host()] {
        let case = sh("cat /proc/self/oom_score_adj");
        to_end(&host, &case.spec).await;
        assert_eq!(case.stdout.text(), "0\n");
    }
    if let Some(scene) = super::isolated::scene().await {
        let case = scene.case("cat /proc/self/oom_score_adj");
        to_end(&scene.host, &case.spec).await;
        assert_eq!(case.stdout.text(), "0\n");
    }
}

#[tokio::test]
async fn another_user_starts_and_runs_programs_below_a_directory_that_is_the_agents_alone() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not root");
        return;
    }
    let closed = tempfile::tempdir().unwrap();
    let only_the_agent = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(closed.path(), only_the_agent).unwrap();
    let task = closed.path().join("t");
    std::fs::create_dir_all(task.join("local")).unwrap();
    std::fs::write(task.join("local/tool"), "#!/bin/sh\necho $0; id -un; ls\n").unwrap();
    open_to_all(&task).unwrap();
    for host in [host_with(true), Mode::Supervised.host()] {
        let mut case = sh("");
        (case.spec.user, case.spec.cwd) = (Some("nobody".to_owned()), task.clone());
        (case.spec.command, case.spec.args) = ("tool".to_owned(), Vec::new());
        case.spec.search = vec![task.join("local"), task.clone()];
        to_end(&host, &case.spec).await;
        let told = (case.stdout.text(), case.stderr.text());
        assert_eq!(told, ("./local/tool\nnobody\nlocal\n".to_owned(), String::new()));
    }
}

async fn a_run_has_a_bounded_number_of_processes(mode: Mode) {
    let (host, case) = (mode.host(), sh("exit 0"));
    for _ in 0..WORKLOADS_PER_RUN_MAX {
        let id = start(&host, &case.spec).await.unwrap();
        host.wait(&case.spec.run_id, &id).await;
    }
    let error = start(&host, &case.spec).await.unwrap_err();
    assert!(matches!(error, ProcessError::TooMany { .. }), "{error}");
    host.forget_run(&case.spec.run_id);
    let id = start(&host, &case.spec).await.unwrap();
    forget(&host, &case.spec.run_id, &id).await;
}

async fn starts_do_not_wait_for_each_others_records(mode: Mode) {
    let host = mode.host();
    let barrier = Arc::new(tokio::sync::Barrier::new(20));
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (host, barrier, mut case) = (host.clone(), Arc::clone(&barrier), sh("exit 6"));
        // No record ends before all are under way.
        case.spec.record_identity = Arc::new(move |_| {
            let barrier = Arc::clone(&barrier);
            Box::pin(async move {
                barrier.wait().await;
                Ok(())
            })
        });
        starts.spawn(async move { to_end(&host, &case.spec).await.exit_code });
    }
    assert!(starts.join_all().await.into_iter().all(|code| code == Some(6)));
}
