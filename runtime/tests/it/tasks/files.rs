//! The directories of a task and the files its output is kept in.

use std::os::unix::fs::PermissionsExt as _;

use crate::support::TestAgent;
use crate::support::jobs::{assert_successful, batch, exit, groups, lifecycle, shell, state, wasm};

#[tokio::test(flavor = "multi_thread")]
async fn the_allocation_directory_has_its_shape_and_secrets_are_private() {
    let agent = TestAgent::start().await;
    let result = agent
        .run(&batch(
            &[
                wasm(
                    "writes",
                    "guest:toolbox",
                    &["write", "/alloc/data/note", "from", "wasm"],
                    &lifecycle("prestart", false),
                ),
                wasm("lists", "guest:toolbox", &["ls", "/alloc"], ""),
                shell(
                    "native",
                    "cat $NOMAD_ALLOC_DIR/data/note; pwd; ls $NOMAD_SECRETS_DIR $NOMAD_TASK_DIR",
                    "",
                ),
                wasm("keeps", "guest:toolbox", &["write", "/secrets/key", "42"], ""),
            ]
            .concat(),
        ))
        .await;
    assert_successful(&result);
    let root = agent.handle.data_dir().join(format!("allocs/{}", result.allocs[0].id));
    let native = root.join("native");
    assert_eq!(agent.stdout(&result, "lists"), "data\nlogs\ntmp\n");
    assert!(
        agent.stdout(&result, "native").starts_with(&format!("from wasm{}\n", native.display()))
    );
    let mode =
        |path: &str| std::fs::metadata(root.join(path)).unwrap().permissions().mode() & 0o7777;
    for path in
        ["alloc", "alloc/data", "alloc/logs", "alloc/tmp", "native", "native/local", "native/tmp"]
    {
        assert_eq!(mode(path), 0o755, "{path}");
    }
    assert_eq!((mode("native/secrets"), mode("keeps/secrets")), (0o700, 0o700));
    assert_eq!(std::fs::read_to_string(root.join("keeps/secrets/key")).unwrap(), "42");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wasm_task_that_asks_for_no_directory_has_none_and_one_that_asks_has_all() {
    let agent = TestAgent::start().await;
    let quiet = wasm("quiet", "guest:hello", &[], "");
    let asks = wasm("asks", "guest:toolbox", &["write", "/local/note", "kept"], "");
    let module = wasm("module", "guest:toolbox-p1", &["write", "/local/note", "kept"], "");
    let result = agent.run(&groups([quiet, asks, module])).await;
    assert_successful(&result);
    let dir = |task: &str| agent.alloc_dir(&result, task);
    let names = |path: std::path::PathBuf| {
        let mut names: Vec<_> =
            std::fs::read_dir(path).unwrap().map(|one| one.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(dir("quiet")), ["alloc"]);
    for task in ["asks", "module"] {
        assert_eq!(names(dir(task).join("alloc")), ["data", "logs", "tmp"]);
        assert_eq!(names(dir(task).join(task)), ["local", "secrets", "tmp"]);
        assert_eq!(
            std::fs::read_to_string(dir(task).join(task).join("local/note")).unwrap(),
            "kept"
        );
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wasm_task_sees_its_own_directories_and_nothing_else() {
    let agent = TestAgent::start().await;
    let link = "ln -s /etc $NOMAD_ALLOC_DIR/data/etc; echo private > $NOMAD_SECRETS_DIR/key";
    let other = shell("other", link, &lifecycle("prestart", false));
    let tries = [
        ("absolute", "/etc/passwd"),
        ("upwards", "/alloc/../../../../../../etc/passwd"),
        ("link", "/alloc/data/etc/passwd"),
        ("sibling", "/alloc/../other/secrets/key"),
    ];
    let groups_of = |(name, path): (&str, &str)| {
        let cat = |name, guest| other.clone() + &wasm(name, guest, &["cat", path], "");
        [cat(name, "guest:toolbox"), cat(&format!("{name}-p1"), "guest:toolbox-p1")]
    };
    let result = agent.run(&groups(tries.into_iter().flat_map(groups_of))).await;
    assert!(state(&result, "other").is_successful());
    for (name, _) in tries {
        for name in [name.to_owned(), format!("{name}-p1")] {
            assert_eq!(exit(&result, &name).exit_code, 1, "{name}");
            assert_eq!(agent.stdout(&result, &name), "", "{name}");
            assert!(agent.log(&result, &name, "stderr").starts_with("toolbox:"), "{name}");
        }
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wasm_task_may_read_and_print_a_large_file_at_once() {
    const BYTES: usize = 20 << 20;
    let agent = TestAgent::start().await;
    let make = format!("yes 0123456789abcde | head -c {BYTES} > $NOMAD_ALLOC_DIR/data/large");
    let args = ["cat", "/alloc/data/large"];
    let result = agent
        .run(&batch(
            &[
                shell("make", &make, &lifecycle("prestart", false)),
                wasm("component", "guest:toolbox", &args, ""),
                wasm("module", "guest:toolbox-p1", &args, ""),
            ]
            .concat(),
        ))
        .await;
    assert_successful(&result);
    let whole = "0123456789abcde\n".repeat(BYTES / 16);
    for task in ["component", "module"] {
        assert!(agent.stdout(&result, task) == whole, "{task}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_rotate_at_line_ends_and_only_the_newest_files_stay() {
    let agent = TestAgent::start().await;
    let logs = "logs {\n max_files = 2\n max_file_size = 1\n }";
    // 50,000 lines of 64 bytes: a little over three files.
    let result = agent
        .run(&batch(
            &[
                wasm("w", "guest:toolbox", &["write-lines", "50000", "63"], logs),
                shell("n", "seq -f '%063.0f' 1 50000", logs),
            ]
            .concat(),
        ))
        .await;
    assert_successful(&result);
    let dir = agent.handle.data_dir().join(format!("allocs/{}/alloc/logs", result.allocs[0].id));
    for task in ["w", "n"] {
        let mut files: Vec<String> = std::fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with(&format!("{task}.stdout.")))
            .collect();
        files.sort();
        assert_eq!(files, [format!("{task}.stdout.2"), format!("{task}.stdout.3")]);
        let read = |name: &String| std::fs::read_to_string(dir.join(name)).unwrap();
        let (full, last) = (read(&files[0]), read(&files[1]));
        assert_eq!(full.len(), 1 << 20, "{task}");
        for text in [&full, &last] {
            assert!(text.lines().all(|line| line.len() == 63), "{task}: only whole lines");
        }
        assert_eq!(last.len(), 50_000 * 64 - 3 * (1 << 20), "{task}: nothing is lost at the end");
    }
    assert!(std::fs::read_to_string(dir.join("n.stdout.3")).unwrap().ends_with("50000\n"));
    agent.stop().await;
}

/// A WASM task that prints its standard input; `more` goes into its `config`.
fn reader(name: &str, guest: &str, more: &str) -> String {
    format!(
        "task \"{name}\" {{\n driver = \"wasm\"\n config {{\n module = \"guest:{guest}\"\n \
         args = [\"cat\", \"-\"]\n {more}\n }}\n resources {{\n cpu = 20\n memory = 64\n }}\n}}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wasm_task_reads_its_standard_input_from_a_text_or_a_file_it_sees() {
    let agent = TestAgent::start().await;
    let make = "head -c 3000000 /dev/zero | tr '\\0' x > $NOMAD_ALLOC_DIR/data/in";
    let inputs = [
        ("nothing", ""),
        ("text", "stdin_text = \"two\\nlines\""),
        ("file", "stdin = \"/alloc/data/in\""),
    ];
    let tasks: Vec<String> = inputs
        .iter()
        .flat_map(|(name, more)| {
            [reader(name, "toolbox", more), reader(&format!("{name}-p1"), "toolbox-p1", more)]
        })
        .collect();
    let make = shell("make", make, &lifecycle("prestart", false));
    let result = agent.run(&batch(&(make + &tasks.concat()))).await;
    assert_successful(&result);
    for kind in ["", "-p1"] {
        assert_eq!(agent.stdout(&result, &format!("nothing{kind}")), "");
        assert_eq!(agent.stdout(&result, &format!("text{kind}")), "two\nlines");
        assert!(agent.stdout(&result, &format!("file{kind}")) == "x".repeat(3_000_000));
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn standard_input_is_no_way_out_of_the_tasks_directories() {
    let agent = TestAgent::start().await;
    let make = "ln -s /etc/passwd $NOMAD_ALLOC_DIR/data/link; mkfifo $NOMAD_ALLOC_DIR/data/pipe; \
                ln -s / $NOMAD_ALLOC_DIR/data/root";
    let tries = [
        ("absolute", "/etc/passwd"),
        ("upwards", "local/../../../../../../etc/passwd"),
        ("link", "/alloc/data/link"),
        ("below", "/alloc/data/root/etc/passwd"),
        ("pipe", "/alloc/data/pipe"),
        ("device", "/dev/zero"),
        ("directory", "/alloc/data"),
        ("absent", "local/none"),
    ];
    let group = |(name, path): &(&str, &str)| {
        let make = shell("make", make, &lifecycle("prestart", false));
        make + &reader(name, "toolbox-p1", &format!("stdin = \"{path}\""))
    };
    let result = agent.run(&groups(tries.iter().map(group))).await;
    for (name, _) in tries {
        let why = format!("{:?}", state(&result, name).events);
        assert!(!state(&result, name).is_successful(), "{name}: {why}");
        assert_eq!(agent.stdout(&result, name), "", "{name}");
        assert!(why.contains("standard input") || why.contains("not inside"), "{name}: {why}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wasm_task_that_does_not_find_a_file_is_told_what_it_sees() {
    let agent = TestAgent::start().await;
    let cat = |name: &str, path| wasm(name, "guest:toolbox-p1", &["cat", path], "");
    let lost = [cat("outside", "/srv/data"), cat("inside", "/local/none")];
    let wrong = wasm("wrong", "guest:toolbox-p1", &["exit", "3"], "");
    let result = agent.run(&groups(lost.into_iter().chain([wrong]))).await;
    for name in ["outside", "inside"] {
        let why = exit(&result, name).cause().unwrap_or_default();
        assert!(why.contains("sees /local, /secrets, /tmp, /alloc and nothing"), "{name}: {why}");
        assert_eq!(exit(&result, name).exit_code, 1, "{name}");
    }
    assert_eq!(exit(&result, "wrong").cause(), None);
    agent.stop().await;
}
