//! Where things of a task are, whose they are, and how its program is found among them: from its first start on.

use std::path::Path;

use crate::support::agent_process::{AgentProcess, Home};
use crate::support::binary::ostler;
use crate::support::jobs::{SOON_HEALTHY, assert_successful, batch, isolated_shell, shell};
use crate::support::needs::{Need, skipped};
use crate::support::system::until;
use crate::support::{KEEPS, TestAgent};

/// Does this agent isolate tasks, and run them as another user?
fn isolates(agent: &TestAgent) -> bool {
    let texts = agent.handle.node().attribute_texts();
    let can = ["mounts", "user"].iter().all(|part| {
        texts.get(&format!("driver.exec.isolation.{part}")).is_some_and(|text| text == "true")
    });
    if !can {
        skipped(Need::Isolation, "this node cannot isolate tasks by mounts and user");
    }
    can
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skipped(Need::Isolation, "only root runs tasks as another user");
    }
    root
}

fn template(to: &str, data: &str, more: &str) -> String {
    format!("template {{\n destination = \"{to}\"\n data = \"{data}\"\n {more}\n }}\n")
}

fn artifact(source: &Path, to: &str) -> String {
    format!(
        "artifact {{\n source = \"file://{}\"\n destination = \"{to}\"\n }}\n",
        source.display()
    )
}

/// A task whose command is not the shell.
fn command(driver: &str, command: &str, more: &str) -> String {
    format!(
        "task \"t\" {{\n driver = \"{driver}\"\n config {{\n command = \"{command}\"\n }}\n resources {{\n \
         cpu = 20\n memory = 64\n }}\n {more}\n}}\n"
    )
}

/// A directory of files that artifacts may be made of, and an agent that allows that.
async fn agent_with_files() -> (Home, TestAgent) {
    let home = Home::new();
    let dir = home.path().display();
    let config = format!("client {{\n artifact {{\n file_sources = [\"{dir}\"]\n }}\n}}\n");
    (home, TestAgent::with_config(&config).await)
}

/// An archive with a directory and a file in it, as they are for their owner alone.
fn archive(path: &Path) {
    let mut tar = tar::Builder::new(std::fs::File::create(path).unwrap());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_mode(0o700);
    header.set_size(0);
    tar.append_data(&mut header, "deep", std::io::empty()).unwrap();
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o4700);
    header.set_size(3);
    tar.append_data(&mut header, "deep/file", b"abc".as_slice()).unwrap();
    tar.finish().unwrap();
}

const SCRIPT: &str = "#!/bin/sh\\necho hello from $0\\n";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_for_a_task_is_its_own_at_its_first_start() {
    let (home, agent) = agent_with_files().await;
    if isolates(&agent) {
        archive(&home.path().join("x.tar"));
        let brought = [
            template("local/k", "key ", "perms = \"0600\""),
            template("secrets/deep/s", "secret ", "perms = \"0600\""),
            template("${NOMAD_ALLOC_DIR}/data/d", "shared ", "perms = \"0600\""),
            artifact(&home.path().join("x.tar"), "local/new/dir"),
        ];
        let script = "cat local/k secrets/deep/s alloc/data/d local/new/dir/deep/file; echo; \
                      touch local/new/dir/deep/more secrets/deep/more local/more tmp/more; \
                      find /local /secrets /alloc/data -mindepth 1 ! -user nobody; \
                      find /local /secrets /alloc/data -perm /7000; id -un";
        let job = batch(&isolated_shell("t", script, &brought.concat()));
        let result = agent.run(&job).await;
        assert_successful(&result);
        assert_eq!(agent.stdout(&result, "t"), "key secret shared abc\nnobody\n");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_beside_local_is_seen_at_that_path_in_a_root_of_its_own() {
    let (home, agent) = agent_with_files().await;
    if isolates(&agent) {
        std::fs::write(home.path().join("file.txt"), "of an artifact\n").unwrap();
        let brought = [
            template("run.sh", SCRIPT, "perms = \"755\""),
            template("/srv/conf/app.conf", "conf\\n", ""),
            artifact(&home.path().join("file.txt"), "/app/latest"),
        ];
        let script = "sh run.sh; /run.sh; cat /srv/conf/app.conf /app/latest/file.txt; \
                      echo mine > /app/latest/new && cat /app/latest/new; ls /; \
                      (echo x > /x) 2>/dev/null || echo the root is read-only";
        let result = agent.run(&batch(&isolated_shell("t", script, &brought.concat()))).await;
        assert_successful(&result);
        let told = agent.stdout(&result, "t");
        let begins = "hello from run.sh\nhello from /run.sh\nconf\nof an artifact\nmine\n";
        assert!(told.starts_with(begins), "{told}");
        assert!(told.ends_with("the root is read-only\n"), "{told}");
        let system = isolated_shell("t", "true", &template("/etc/app.conf", "x", ""));
        let refused = ostler_jobspec::parse(batch(&system).as_bytes(), Path::new("j.hcl"), None);
        let refused = refused.unwrap_err().render(&batch(&system), false);
        assert!(refused.contains("would be in /etc"), "{refused}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_found_in_local_in_the_tasks_directory_and_in_its_path() {
    let (home, agent) = agent_with_files().await;
    std::fs::write(home.path().join("tool"), "#!/bin/sh\necho brought\n").unwrap();
    let drivers: &[&str] = if isolates(&agent) { &["exec", "raw_exec"] } else { &["raw_exec"] };
    for driver in drivers {
        for (wanted, at, said) in [
            ("hello", "local/hello", "local/hello"),
            ("hello", "hello", "/hello"),
            ("bin/hello", "local/bin/hello", "local/bin/hello"),
            ("local/hello", "local/hello", "local/hello"),
            ("/local/hello", "local/hello", "local/hello"),
            ("/opt/hello", "opt/hello", "/opt/hello"),
        ] {
            // As a template is where nothing is said of it: nobody may execute it.
            let job = batch(&command(driver, wanted, &template(at, SCRIPT, "")));
            let result = agent.run(&job).await;
            assert_successful(&result);
            let told = agent.stdout(&result, "t");
            let fits = told.starts_with("hello from ") && told.trim_end().ends_with(said);
            assert!(fits, "{driver} {wanted} at {at}: {told}");
        }
        let brought = artifact(&home.path().join("tool"), "local");
        let result = agent.run(&batch(&command(driver, "tool", &brought))).await;
        assert_eq!(agent.stdout(&result, "t"), "brought\n", "{driver}");
        let result = agent.run(&batch(&command(driver, "true", ""))).await;
        assert_successful(&result);
        let result = agent.run(&batch(&command(driver, "no-such-tool", ""))).await;
        assert!(!result.is_successful());
        let told = format!("{result:?}");
        for place in ["local/no-such-tool", "/usr/bin/no-such-tool"] {
            assert!(told.contains(place), "{driver}: {place} is not named: {told}");
        }
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_covers_a_path_below_the_tasks_own_directory() {
    let dir = tempfile::TempDir::new().unwrap();
    let anybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), anybody).unwrap();
    crate::support::system::write_for_all(&dir.path().join("here"), "of the node\n");
    let config = format!(
        "client {{\n host_volume \"data\" {{\n path = \"{}\"\n }}\n}}\n",
        dir.path().display()
    );
    let agent = TestAgent::with_config(&config).await;
    if isolates(&agent) {
        let mount =
            "volume_mount {\n volume = \"data\"\n destination = \"${NOMAD_TASK_DIR}/new/data\"\n }";
        let script = "cat /local/new/data/here; echo mine > $NOMAD_TASK_DIR/new/data/out; \
                      touch /local/new/own && stat -c %U /local/new; ls /local/new";
        let volume = "volume \"data\" {\n type = \"host\"\n source = \"data\"\n }\n";
        let job = batch(&(volume.to_owned() + &isolated_shell("t", script, mount)));
        let result = agent.run(&job).await;
        assert_successful(&result);
        assert_eq!(agent.stdout(&result, "t"), "of the node\nnobody\ndata\nown\n");
        assert_eq!(std::fs::read_to_string(dir.path().join("out")).unwrap(), "mine\n");
        // Of a directory of the system only the node can say whether there is something to mount on.
        let result =
            agent.run(&job.replace("${NOMAD_TASK_DIR}/new/data", "/usr/no/such/place")).await;
        let told = format!("{result:?}");
        assert!(!result.is_successful() && told.contains("is shown as it is, read-only"), "{told}");
    }
    agent.stop().await;
}

#[tokio::test]
async fn a_task_of_another_user_that_is_not_isolated_has_its_directories_and_can_be_entered() {
    if !is_root() {
        return;
    }
    let data = Home::new();
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(data.path(), closed).unwrap();
    let config = data.path().join("ostler.hcl");
    std::fs::write(&config, KEEPS).unwrap();
    let agent = AgentProcess::start_in(data, &["--config", config.to_str().unwrap()]).await;
    let brought = [
        template("secrets/x", "secret", "perms = \"0600\""),
        template("local/run.sh", SCRIPT, "perms = \"0700\""),
        template("own.sh", SCRIPT, "perms = \"0700\""),
        "user = \"nobody\"\n".to_owned(),
    ];
    let script =
        "cat secrets/x && touch local/x tmp/x own && local/run.sh && ./own.sh && exec sleep 600";
    let task = shell("t", script, &brought.concat());
    let check = "service {\n name = \"s\"\n provider = \"nomad\"\n task = \"t\"\n check {\n type = \
                 \"script\"\n task = \"t\"\n command = \"./own.sh\"\n interval = \"1s\"\n timeout = \"10s\"\n }\n }";
    let group = format!("group \"g\" {{\n {SOON_HEALTHY}\n {check}\n {task}\n }}");
    agent.run(&format!("job \"j\" {{\n {group}\n}}\n")).await.said(0, &[]);
    let alloc = agent.alloc("j").await;
    let data = agent.data.path().to_str().unwrap();
    let inside = async |args: &[&str]| {
        let before = ["alloc", "exec", "--data-dir", data, "-i=false", &alloc];
        ostler(before.into_iter().chain(args.iter().copied())).await
    };
    let within = inside(&["local/run.sh"]).await;
    let all = (within.code, within.stdout.as_str());
    assert_eq!(all, (Some(0), "hello from ./local/run.sh\n"), "{within:#?}");
    let who = inside(&["/bin/sh", "-c", "id -un; cat secrets/x"]).await;
    assert_eq!((who.code, who.stdout.as_str()), (Some(0), "nobody\nsecret"), "{who:#?}");
    // A command of the task's own, which it is found by without a shell.
    let own = command("raw_exec", "run.sh", &brought.concat());
    agent
        .submit(&format!("job \"own\" {{\n type = \"batch\"\n group \"g\" {{\n {own}\n }}\n}}\n"))
        .await
        .said(0, &[]);
    let own = agent.alloc("own").await;
    let logs = agent.ask(&["alloc", "logs", "-f", &own]).await;
    assert!(logs.stdout.starts_with("hello from "), "{logs:#?}");
}

#[tokio::test]
async fn the_advice_for_a_command_that_is_not_found_makes_the_job_run() {
    let data = Home::new();
    let config = data.path().join("ostler.hcl");
    std::fs::write(&config, KEEPS).unwrap();
    let agent = AgentProcess::start_in(data, &["--config", config.to_str().unwrap()]).await;
    let job = |brought: &str| {
        let task = command("raw_exec", "no-such-tool", brought);
        format!(
            "job \"j\" {{\n type = \"batch\"\n group \"g\" {{\n restart {{\n attempts = 0\n mode = \
             \"fail\"\n }}\n reschedule {{\n attempts = 0\n unlimited = false\n }}\n {task}\n }}\n}}\n"
        )
    };
    agent.submit(&job("")).await.said(0, &[]);
    let alloc = agent.alloc("j").await;
    let told = async || agent.ask(&["explain", &alloc]).await.stdout;
    until("it has failed", async || told().await.contains("was not found")).await;
    let told = told().await.split_whitespace().collect::<Vec<_>>().join(" ");
    let advice = "bring no-such-tool into local/ of task t (an artifact or a template)";
    assert!(told.contains(advice) && told.contains("run the job again"), "{told}");
    // That, done.
    agent.submit(&job(&template("local/no-such-tool", SCRIPT, ""))).await.said(0, &[]);
    let complete = async || {
        let allocs = agent.allocs("j").await;
        allocs.iter().any(|alloc| alloc["ClientStatus"] == "complete")
    };
    until("it has run", complete).await;
}
