//! Bad input, as a person gives it to the binary: a clear error, nothing lost, nothing left running.

use std::path::{Path, PathBuf};
use std::process::Command;

use ostler_agent::SubmitError;
use ostler_guests::fixtures::{HOSTILE_OTHER_WORLD, TOOLBOX};
use ostler_model::clock::timeout;

use crate::support::binary::{Ended, ostler, run};
use crate::support::system::processes_of;
use crate::support::{DataDir, PATIENCE, TestAgent, parse};

/// A directory for job files beside a data directory.
struct Desk {
    files: tempfile::TempDir,
    data: DataDir,
}

impl Desk {
    fn new() -> Self {
        Self { files: tempfile::tempdir().unwrap(), data: DataDir::new() }
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.files.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Run a job file on the data directory; nothing of it may be left running.
    async fn run(&self, name: &str, bytes: impl AsRef<[u8]>) -> Ended {
        let ended = run(self.data.path(), &self.file(name, bytes)).await;
        assert_eq!(processes_of(self.data.path()), [0; 0], "left running by {name}");
        ended
    }
}

/// A job of one task that is not restarted.
fn job(driver: &str, config: &str, resources: &str) -> String {
    format!(
        r#"
        job "bad" {{
          type = "batch"
          group "g" {{
            restart {{
              attempts = 0
              mode     = "fail"
            }}
            task "t" {{
              driver = "{driver}"
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
        }}
        "#
    )
}

fn good() -> String {
    job("exec", "command = \"/bin/echo\"\n args = [\"all is well\"]", "")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_no_job_is_named_with_the_place_and_starts_no_agent() {
    let desk = Desk::new();
    let nested = format!("job \"x\" {{ type = {}1{} }}", "[".repeat(5_000), "]".repeat(5_000));
    let cyclic = r#"
        locals {
          a = local.b
          b = local.a
        }
        job "x" {
          group "g" {
            task "t" {
              driver = "exec"
              config {
                command = local.a
              }
            }
          }
        }
    "#;
    let cases: [(&str, Vec<u8>, &[&str]); 6] = [
        ("empty.hcl", vec![], &["empty.hcl"]),
        ("blank.hcl", b" \n\t\n".to_vec(), &["blank.hcl"]),
        (
            "binary.hcl",
            vec![0x7f, b'E', b'L', b'F', 0, 0xff, 0xfe],
            &["binary.hcl is not text (byte "],
        ),
        ("huge.hcl", vec![b'#'; 10_000_000], &["huge.hcl is larger than 2097152 bytes"]),
        ("nested.hcl", nested.into_bytes(), &["nested.hcl:1:", "deep"]),
        ("cyclic.hcl", cyclic.into(), &["cyclic.hcl:4:15", "refers to itself"]),
    ];
    for (name, bytes, texts) in cases {
        desk.run(name, &bytes).await.said(2, texts);
        let file = desk.file(name, &bytes);
        let validate = ["job".as_ref(), "validate".as_ref(), file.as_os_str()];
        ostler(validate).await.said(2, texts);
    }
    assert!(!desk.data.path().join("state.redb").exists(), "no agent was started");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_file_that_is_not_there_or_no_file_is_named() {
    let desk = Desk::new();
    let absent = desk.files.path().join("absent.hcl");
    run(desk.data.path(), &absent).await.said(2, &["no job file", "absent.hcl", "check the path"]);
    run(desk.data.path(), desk.files.path())
        .await
        .said(2, &["is a directory", "give a regular file"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_does_not_exist_is_refused_with_those_that_do() {
    let desk = Desk::new();
    let ended = desk.run("driver.hcl", job("exce", "command = \"/bin/true\"", "")).await;
    let texts = [
        "driver.hcl:",
        "no driver exce",
        "did you mean exec?",
        "exec, mock_driver, raw_exec, wasm",
    ];
    ended.said(2, &texts);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_that_does_not_fit_the_driver_is_refused_before_anything_runs() {
    let desk = Desk::new();
    let ended = desk.run("config.hcl", job("exec", "comand = \"/bin/true\"", "")).await;
    ended.said(2, &["config.hcl:", "\"comand\" is unknown", "did you mean command?"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_binary_that_is_absent_fails_the_task_with_a_driver_failure() {
    let desk = Desk::new();
    let ended = desk.run("absent.hcl", job("exec", "command = \"/no/such/program\"", "")).await;
    ended.said(1, &["Driver Failure", "/no/such/program", "job bad failed with exit code 1"]);
    let ended = desk.run("noexec.hcl", job("exec", "command = \"/etc/passwd\"", "")).await;
    ended.said(1, &["Driver Failure", "/etc/passwd"]);
    desk.run("good.hcl", good()).await.said(0, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wasm_module_that_cannot_be_run_fails_the_task_with_the_reason() {
    let desk = Desk::new();
    let text = desk.file("text.wasm", "hello");
    let whole = std::fs::read(TOOLBOX).unwrap();
    let cut = desk.file("cut.wasm", &whole[..whole.len() / 2]);
    let cases: [(&Path, &[&str]); 5] = [
        (Path::new("/no/such/module.wasm"), &["/no/such/module.wasm is not there"]),
        (&text, &["text.wasm", "does not begin with"]),
        (&cut, &["cut.wasm"]),
        (HOSTILE_OTHER_WORLD.as_ref(), &["wasi:cli/command", "hostile-other-world.wasm"]),
        (desk.files.path(), &[desk.files.path().to_str().unwrap()]),
    ];
    for (module, texts) in cases {
        let config = format!("module = \"{}\"", module.display());
        let ended = desk.run("wasm.hcl", job("wasm", &config, "")).await;
        ended.said(1, texts);
        ended.said(1, &["Driver Failure", "job bad failed with exit code 1"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_does_not_exist_is_refused_with_the_request() {
    let desk = Desk::new();
    let device = "device \"nvidia/gpu\" {\n count = 1\n }";
    let ended = desk.run("gpu.hcl", job("exec", "command = \"/bin/true\"", device)).await;
    ended.said(3, &["does not fit on node", "task t", "nvidia/gpu"]);
    let many = "device \"ostler/file\" {\n count = 99\n }";
    let ended = desk.run("many.hcl", job("exec", "command = \"/bin/true\"", many)).await;
    ended.said(3, &["ostler/file", "99"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_is_assigned_is_refused_with_its_holder_and_free_again_after_it() {
    let agent = TestAgent::start().await;
    let device = "device \"ostler/file\" {\n count = 1\n }";
    let holder = job("mock_driver", "run_for = \"1h\"", device).replace("\"bad\"", "\"holder\"");
    let holder = agent.handle.submit(parse(&holder)).await.unwrap();
    let holder_id = holder.allocs()[0].id().short().to_string();

    let second = || parse(&job("mock_driver", "run_for = \"1ms\"", device));
    let Err(refused) = agent.handle.submit(second()).await else { panic!("assigned twice") };
    assert!(matches!(refused, SubmitError::Refused(_)), "{refused:?}");
    let text = refused.to_string();
    assert!(text.contains("ostler/file") && text.contains(&holder_id), "{text}");

    holder.stop("the end of its time").await;
    timeout(PATIENCE, holder.wait()).await.expect("the holder ends");
    // Freed right after the end, by a task of its own.
    let placed = timeout(PATIENCE, async {
        loop {
            match agent.handle.submit(second()).await {
                Ok(job) => return job,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    });
    let job = placed.await.expect("the device is free again");
    assert!(timeout(PATIENCE, job.wait()).await.expect("it ends").is_successful());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_that_cannot_be_made_or_is_a_file_is_named_with_the_next_step() {
    let desk = Desk::new();
    let job = desk.file("good.hcl", good());
    let file = desk.file("file", "in the way");
    let why = format!("{} is a file, not a directory", file.display());
    for (dir, why) in [
        (&*file, why.as_str()),
        (&file.join("below"), &why),
        (Path::new("/proc/ostler-data"), "cannot use"),
    ] {
        let ended = run(dir, &job).await;
        ended.said(3, &["data directory", dir.to_str().unwrap(), "--data-dir", why]);
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), "in the way");
}

/// A mount that is gone at the end. `None`, aloud, where mounting is not allowed.
struct Mount(tempfile::TempDir);

impl Mount {
    fn tmpfs(options: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let args = ["-t", "tmpfs", "-o", options, "ostler-it"];
        let mounted = Command::new("mount").args(args).arg(dir.path()).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(dir));
        }
        eprintln!("SKIPPED: mounting a tmpfs is not allowed here");
        None
    }

    fn read_only(&self) {
        let mut remount = Command::new("mount");
        assert!(remount.args(["-o", "remount,ro"]).arg(self.0.path()).status().unwrap().success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazy: a failed test may have left a process there.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_data_directory_is_refused_and_its_state_is_kept() {
    let Some(mount) = Mount::tmpfs("size=64m,mode=0700") else { return };
    let desk = Desk::new();
    let job = desk.file("good.hcl", good());
    let dir = mount.0.path().join("data");
    run(&dir, &job).await.said(0, &[]);
    let state = std::fs::read(dir.join("state.redb")).unwrap();

    mount.read_only();
    let ended = run(&dir, &job).await;
    ended.said(3, &[dir.to_str().unwrap(), "cannot be written", "use another data directory"]);
    assert_eq!(std::fs::read(dir.join("state.redb")).unwrap(), state);
    let fresh = run(&mount.0.path().join("fresh"), &job).await;
    fresh.said(3, &["data directory", "Read-only file system"]);
    assert_eq!(processes_of(mount.0.path()), [0; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_said_wherever_it_strikes_and_leaves_nothing_running() {
    let desk = Desk::new();
    let job = desk.file("good.hcl", good());
    let mut completed = 0;
    // From no room for the first file to room for everything.
    for kib in [4, 64, 1_024, 65_536] {
        let Some(mount) = Mount::tmpfs(&format!("size={kib}k,mode=0700")) else { return };
        let dir = mount.0.path().join("data");
        let ended = run(&dir, &job).await;
        assert_eq!(processes_of(&dir), [0; 0]);
        if ended.code == Some(0) {
            completed += 1;
            continue;
        }
        assert!(matches!(ended.code, Some(1 | 3)), "{kib} KiB: {ended:#?}");
        ended.said(ended.code.unwrap(), &[]);
        let text = ended.stderr.to_lowercase();
        assert!(text.contains("no space left"), "{kib} KiB: {}", ended.stderr);
    }
    assert!(completed >= 1, "64 MiB are enough");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_fills_the_disk_ends_and_what_could_not_be_kept_is_said() {
    let Some(mount) = Mount::tmpfs("size=8m,mode=0700") else { return };
    let desk = Desk::new();
    let script = "head -c 12000000 /dev/zero | tr '\\\\0' x";
    let config = format!("command = \"/bin/sh\"\n args = [\"-c\", \"{script}\"]");
    let ended =
        run(&mount.0.path().join("data"), &desk.file("fill.hcl", job("exec", &config, ""))).await;
    let ended = Ended { stdout: String::new(), ..ended };
    ended.said(0, &["output of a task was dropped", "No space left", "Terminated: Exit Code: 0"]);
    assert_eq!(processes_of(mount.0.path()), [0; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_in_use_is_refused_with_the_pid_and_its_agent_goes_on() {
    let agent = TestAgent::start().await;
    let desk = Desk::new();
    let file = desk.file("good.hcl", good());
    let ended = run(agent.data.path(), &file).await;
    let pid = format!("in use by another agent (pid {})", std::process::id());
    let dir = agent.data.path().canonicalize().unwrap();
    ended.said(3, &[&pid, dir.to_str().unwrap(), "use another data directory"]);

    let result = agent.run(&good().replace("\"exec\"", "\"raw_exec\"")).await;
    assert_eq!(agent.stdout(&result, "t"), "all is well\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_configuration_is_named_with_the_place() {
    let desk = Desk::new();
    let job = desk.file("good.hcl", good());
    let config = desk.file("ostler.hcl", "name = \"x\"\nplugin \"a\" {\n  fille = \"x\"\n}\n");
    let args = ["run".as_ref(), "--config".as_ref(), config.as_os_str(), job.as_os_str()];
    ostler(args).await.said(2, &["ostler.hcl:3:3", "fille", "file"]);
}
