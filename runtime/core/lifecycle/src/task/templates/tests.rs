#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::alloc::dir::AllocDir;
use crate::services::NodeServices;
use crate::task::env::{EnvInput, NodeFacts};
use ostler_model::ids::JobId;
use ostler_model::job::JobKind;
use ostler_model::ports::FsIsolation;
use ostler_model::rng::Rng;
use ostler_model::service::ServiceInstance;
use ostler_model::template::ChangeMode;
use ostler_template::OutsideAnswer;
use ostler_testing::fake_variables::FakeVariables;
use ostler_testing::files::mode_left;
use ostler_testing::fixtures;

fn template(data: &str, destination: &str) -> TaskTemplate {
    TaskTemplate {
        source: TemplateSource::Data(data.to_owned()),
        destination: destination.to_owned(),
        change: ChangeMode::Restart,
        splay: Duration::ZERO,
        mode: 0o644,
        uid: None,
        gid: None,
        env: false,
        left_delimiter: "{{".to_owned(),
        right_delimiter: "}}".to_owned(),
        error_on_missing_key: false,
        wait: None,
    }
}

/// A task with templates and its directories.
struct Bench {
    root: tempfile::TempDir,
    rendering: Rendering,
    dir: PathBuf,
    services: NodeServices,
    variables: FakeVariables,
}

impl Bench {
    fn new(templates: Vec<TaskTemplate>) -> Self {
        let task = Task { templates, ..fixtures::task("web").unwrap() };
        let alloc = fixtures::allocation(JobKind::Batch, vec![task.clone()], &Rng::from_seed(7));
        let alloc = alloc.unwrap();
        let root = tempfile::tempdir().unwrap();
        let made = AllocDir::create(root.path(), alloc.id).unwrap();
        let paths = made.create_task(&task.name).unwrap();
        let dirs = TaskDirs::new(FsIsolation::None, &made.shared(), &paths.path).unwrap();
        let node = Arc::new(NodeFacts {
            attributes: [("kernel.name".to_owned(), "linux".to_owned())].into(),
            ..NodeFacts::default()
        });
        let input = EnvInput {
            alloc: &alloc,
            task: &task,
            node: &node,
            dirs: &dirs,
            of_driver: &[],
            hook_env: &[],
            network: None,
        };
        let env = TaskEnv::build(&input).unwrap();
        let (services, variables) = (NodeServices::default(), FakeVariables::default());
        let sources = Sources::new(
            Arc::new(services.clone()),
            Arc::new(variables.clone()),
            Arc::clone(&node),
            &alloc,
            &task.name,
        );
        let rendering = Rendering {
            task: task.into(),
            alloc_root: root.path().to_owned(),
            alloc: alloc.id,
            env,
            dirs,
            sources,
            sees: FsIsolation::None,
            owner: None,
        };
        Self { root, rendering, dir: paths.path, services, variables }
    }

    fn render(&self, at: u64) -> Result<(Templates, BTreeMap<String, String>), RenderError> {
        Templates::render(
            self.rendering.clone(),
            Timestamp::from_nanos(at * 1_000_000_000),
            &CancelFlag::default(),
        )
    }

    fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.dir.join(path)).unwrap()
    }
}

#[test]
fn templates_become_files_with_the_bits_that_were_asked_for_and_lines_of_the_environment() {
    let bench = Bench::new(vec![
        template("{{ env \"NOMAD_TASK_NAME\" }} {{ env \"attr.kernel.name\" }}", "local/deep/er/a"),
        TaskTemplate { mode: 0o600, ..template("x", "${NOMAD_SECRETS_DIR}/key") },
        TaskTemplate { env: true, ..template("PORT={{ add 1 2 }}\n", "local/env") },
        template("{{ file \"local/deep/er/a\" }}!", "${NOMAD_ALLOC_DIR}/data/shared"),
    ]);
    let (templates, vars) = bench.render(5).unwrap();
    assert_eq!(bench.text("local/deep/er/a"), "web linux");
    assert_eq!(vars, BTreeMap::from([("PORT".to_owned(), "3".to_owned())]));
    let mode = std::fs::metadata(bench.dir.join("secrets/key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert_eq!(bench.text("../alloc/data/shared"), "web linux!", "in their order");
    assert!(templates.may_change(), "one of them reads a file");
    let left: Vec<_> = std::fs::read_dir(bench.dir.join("local")).unwrap().flatten().collect();
    assert_eq!(left.len(), 2, "nothing half made: {left:?}");
}

#[test]
fn a_file_and_what_is_made_on_the_way_is_whose_the_task_is_and_makes_nobody_root() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root gives files to others");
        return;
    }
    let of = |path: &Path| {
        let found = std::fs::metadata(path).unwrap();
        (found.uid(), found.gid(), found.permissions().mode() & 0o7777)
    };
    let mut bench = Bench::new(vec![
        TaskTemplate { mode: 0o600, ..template("key", "local/deep/er/k") },
        TaskTemplate { mode: 0o4755, ..template("x", "${NOMAD_ALLOC_DIR}/data/program") },
        TaskTemplate { mode: 0o7755, uid: Some(4711), gid: Some(0), ..template("x", "local/a") },
    ]);
    bench.rendering.owner = Some(FileOwner { uid: 65534, gid: 65533 });
    bench.render(1).unwrap();
    assert_eq!(of(&bench.dir.join("local/deep/er/k")), (65534, 65533, 0o600));
    for dir in ["local/deep", "local/deep/er"] {
        assert_eq!(of(&bench.dir.join(dir)), (65534, 65533, mode_left(0o755).unwrap()), "{dir}");
    }
    assert_eq!(of(&bench.dir.join("../alloc/data/program")), (65534, 65533, 0o755));
    assert_eq!(of(&bench.dir.join("local/a")), (4711, 0, 0o755));
    let mut bench = Bench::new(vec![TaskTemplate { uid: Some(0), ..template("x", "local/a") }]);
    bench.render(1).unwrap();
    bench.rendering.owner = Some(FileOwner { uid: 65534, gid: 65534 });
    let error = bench.render(1).unwrap_err().to_string();
    assert!(error.contains("uid = 0 is for a task that runs as root"), "{error}");
}

#[test]
fn a_link_is_replaced_and_none_leads_out() {
    let bench = Bench::new(vec![template("new", "local/a"), template("in", "local/up/b")]);
    let outside = bench.root.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("kept"), "kept").unwrap();
    std::os::unix::fs::symlink(outside.join("kept"), bench.dir.join("local/a")).unwrap();
    std::os::unix::fs::symlink(&outside, bench.dir.join("local/up")).unwrap();
    let error = bench.render(1).unwrap_err();
    assert!(matches!(error, RenderError::Disk { node: false, .. }), "{error}");
    assert_eq!(bench.text("local/a"), "new");
    assert_eq!(std::fs::read_to_string(outside.join("kept")).unwrap(), "kept");
    assert!(!outside.join("b").exists());
}

#[test]
fn no_link_of_a_task_leads_a_template_into_the_logs_of_others() {
    let bench = Bench::new(vec![template("forged", "../alloc/data/way/web.stdout.0")]);
    let shared = bench.dir.parent().unwrap().join("alloc");
    std::fs::write(shared.join("logs/web.stdout.0"), "honest").unwrap();
    std::os::unix::fs::symlink("../logs", shared.join("data/way")).unwrap();
    let error = bench.render(1).unwrap_err();
    assert!(matches!(error, RenderError::Disk { node: false, .. }), "{error}");
    assert_eq!(std::fs::read_to_string(shared.join("logs/web.stdout.0")).unwrap(), "honest");
    std::fs::remove_file(shared.join("data/way")).unwrap();
    std::fs::create_dir(shared.join("data/real")).unwrap();
    std::os::unix::fs::symlink("real", shared.join("data/way")).unwrap();
    bench.render(1).unwrap();
    assert_eq!(bench.text("../alloc/data/real/web.stdout.0"), "forged");
}

#[test]
fn what_cannot_be_rendered_is_said_with_template_line_and_column() {
    for (template, said) in [
        (template("a\n {{ parseInt \"x\" }}", "local/a"), "template local/a:2:5: parseInt: \"x\""),
        (
            template("{{ file \"local/gone\" }}", "local/a"),
            "template local/a:1:4: file: local/gone",
        ),
        (
            template("{{ file \"/etc/passwd\" }}", "local/a"),
            "template local/a:1:4: file: \"/etc/passwd\" leads out",
        ),
        (
            template("{{ nomadVar \"a\" }}", "local/a"),
            "template local/a:1:4: nomadVar: this task may not read the variable a; it may read \
             nomad/jobs, nomad/jobs/",
        ),
        (template("x", "../b/a"), "template ../b/a: destination: \"../b/a\" leads out"),
        (
            template("x", "local"),
            "template local: destination: \"local\" is a directory of the task",
        ),
        (
            template("x", "../alloc/logs/web.stdout.0"),
            "template ../alloc/logs/web.stdout.0: destination: \"../alloc/logs/web.stdout.0\" is in a part of the shared directory that tasks only read",
        ),
        (template("x", "${NOPE}/../../a"), "template ${NOPE}/../../a: destination: "),
        (
            TaskTemplate { env: true, ..template("A=1\nB", "local/a") },
            "template local/a: line 2 of the environment",
        ),
        (
            TaskTemplate {
                source: TemplateSource::File("local/none".into()),
                ..template("", "local/a")
            },
            "template local/a: source: local/none",
        ),
    ] {
        let error = Bench::new(vec![template]).render(1).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}\n{said}");
    }
}

#[test]
fn a_source_is_a_file_of_the_task() {
    let source = TaskTemplate {
        source: TemplateSource::File("${NOMAD_TASK_DIR}/a.tpl".into()),
        left_delimiter: "[[".into(),
        right_delimiter: "]]".into(),
        ..template("", "local/a")
    };
    let bench = Bench::new(vec![source]);
    std::fs::write(bench.dir.join("local/a.tpl"), "{{ [[ env \"NOMAD_TASK_NAME\" ]] }}").unwrap();
    let (templates, _) = bench.render(1).unwrap();
    assert_eq!(bench.text("local/a"), "{{ web }}");
    assert!(!templates.may_change(), "nothing of it is followed");
}

#[test]
fn a_run_of_an_earlier_agent_keeps_its_files_until_something_they_read_changed() {
    let all = vec![
        template("{{ timestamp \"unix\" }}", "local/time"),
        template("{{ timestamp \"unix\" }} {{ file \"local/in\" }}", "local/both"),
        template("{{ file \"local/in\" }}", "local/only"),
    ];
    let bench = Bench::new(all);
    std::fs::write(bench.dir.join("local/in"), "one").unwrap();
    bench.render(100).unwrap();
    let earlier = Templates::of_earlier_agent(bench.rendering.clone());
    assert!(earlier.may_change());
    let round = earlier.again_at(200);
    assert_eq!((round.len(), bench.text("local/both").as_str()), (0, "100 one"), "as it was");
    assert_eq!(bench.text("local/time"), "100");
    std::fs::write(bench.dir.join("local/in"), "two").unwrap();
    let changed = Templates::of_earlier_agent(bench.rendering.clone()).again_at(300);
    assert_eq!(changed, ["local/both", "local/only"]);
    assert_eq!(bench.text("local/both"), "300 two");
    assert_eq!(bench.text("local/time"), "100", "the time alone changes nothing");
    assert!(earlier.has_changes());
}

#[test]
fn what_was_written_and_not_told_is_told_by_the_next_agent_until_it_was() {
    let quiet = TaskTemplate { change: ChangeMode::Noop, ..template(IN, "local/quiet") };
    let bench = Bench::new(vec![quiet, template(IN, "local/loud"), template("x", "local/fixed")]);
    let input = |text: &str| std::fs::write(bench.dir.join("local/in"), text).unwrap();
    input("one");
    let (templates, _) = bench.render(1).unwrap();
    input("two");
    assert_eq!(templates.again_at(2), ["local/quiet", "local/loud"]);
    assert_eq!(bench.text("local/loud"), "two");
    // Its agent is killed, and the next one too: nothing of it reads otherwise any more.
    let earlier = || Templates::of_earlier_agent(bench.rendering.clone());
    for _ in 0..2 {
        let next = earlier();
        assert_eq!(next.again_at(3), ["local/loud"]);
        assert!(next.again_at(4).is_empty(), "in its first look");
    }
    earlier().mark_told();
    assert!(earlier().again_at(5).is_empty(), "it was told");
    // What changed meanwhile comes to what was not told.
    input("three");
    assert_eq!(earlier().again_at(6), ["local/quiet", "local/loud"]);
    input("four");
    assert_eq!(earlier().again_at(7), ["local/quiet", "local/loud"]);
    // The next run begins with all of it.
    bench.render(8).unwrap();
    assert!(earlier().again_at(9).is_empty());
    let left: Vec<_> = std::fs::read_dir(bench.dir.parent().unwrap()).unwrap().flatten().collect();
    assert_eq!(left.len(), 2, "the task's directory and the shared one: {left:?}");
}

const IN: &str = "{{ file \"local/in\" }}";

#[test]
fn that_a_task_is_to_be_told_is_kept_before_its_file_is_written() {
    let bench = Bench::new(vec![template(IN, "local/out")]);
    std::fs::write(bench.dir.join("local/in"), "one").unwrap();
    let (templates, _) = bench.render(1).unwrap();
    std::fs::write(bench.dir.join("local/in"), "two").unwrap();
    // In its place stands a directory: it cannot be kept, so nothing is written either.
    let around = bench.dir.parent().unwrap();
    let file = around.join(untold::file_of(&bench.rendering.task.name));
    std::fs::create_dir(&file).unwrap();
    let round =
        templates.render_again(Timestamp::from_nanos(2_000_000_000), &CancelFlag::default());
    assert!(round.trouble.unwrap().contains("to be told"), "it is said");
    assert!(round.changed.is_empty());
    assert_eq!(bench.text("local/out"), "one");
    std::fs::remove_dir(&file).unwrap();
    // Killed between the two: the file is the old one, and so is what it reads.
    std::fs::write(bench.dir.join("local/in"), "one").unwrap();
    std::fs::write(&file, "0\n7\nx\n").unwrap();
    let next = Templates::of_earlier_agent(bench.rendering.clone());
    assert_eq!(next.again_at(3), ["local/out"]);
}

#[test]
fn a_template_that_cannot_be_rendered_again_leaves_its_file_and_says_so_once() {
    let bench = Bench::new(vec![template("{{ file \"local/in\" }}", "local/out")]);
    let input = bench.dir.join("local/in");
    std::fs::write(&input, "one").unwrap();
    let (templates, _) = bench.render(1).unwrap();
    std::fs::remove_file(&input).unwrap();
    assert!(templates.has_changes());
    let round =
        templates.render_again(Timestamp::from_nanos(2_000_000_000), &CancelFlag::default());
    assert!(round.trouble.unwrap().contains("local/in"), "it is said");
    assert!(!templates.has_changes(), "not looked at again before there is something new");
    assert_eq!(
        templates
            .render_again(Timestamp::from_nanos(3_000_000_000), &CancelFlag::default())
            .trouble,
        None,
        "once"
    );
    assert_eq!(bench.text("local/out"), "one");
    std::fs::write(&input, "two").unwrap();
    assert!(templates.has_changes());
    assert_eq!(templates.again_at(4), ["local/out"]);
    assert_eq!(bench.text("local/out"), "two");
}

impl Templates {
    /// The destinations that were written again.
    fn again_at(&self, seconds: u64) -> Vec<String> {
        let round = self
            .render_again(Timestamp::from_nanos(seconds * 1_000_000_000), &CancelFlag::default());
        assert_eq!(round.trouble, None);
        round.changed.into_iter().map(|template| template.destination).collect()
    }
}

/// An instance of a service of another allocation.
fn instance(alloc: AllocId, name: &str, port: u16, tags: &[&str]) -> ServiceInstance {
    ServiceInstance {
        id: format!("{alloc}-{name}-{port}"),
        name: name.to_owned(),
        namespace: "default".to_owned(),
        job: JobId::new("other").unwrap(),
        alloc,
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        meta: BTreeMap::new(),
        address: "127.0.0.1".to_owned(),
        port,
        create_index: 0,
        modify_index: 0,
    }
}

#[test]
fn a_variable_of_the_task_is_read_and_each_write_of_it_is_seen() {
    let text =
        "{{ with nomadVar \"nomad/jobs\" }}{{ .k }}{{ end }} {{ nomadVarExists \"nomad/jobs/\" }}";
    let bench = Bench::new(vec![template(text, "local/a")]);
    let error = bench.render(1).unwrap_err();
    assert_eq!(error.to_string(), "template local/a waits for nomad.var(nomad/jobs)");
    bench.variables.put("nomad/jobs", &[("k", "one")]).unwrap();
    let (templates, _) = bench.render(1).unwrap();
    assert_eq!(bench.text("local/a"), "one true");
    assert!(templates.may_change() && !templates.has_changes());
    bench.variables.put("unrelated", &[("k", "x")]).unwrap();
    assert!(!templates.has_changes(), "another variable is nothing to it");
    bench.variables.put("nomad/jobs", &[("k", "two")]).unwrap();
    assert!(templates.has_changes());
    assert_eq!(templates.again_at(2), ["local/a"]);
    assert_eq!(bench.text("local/a"), "two true");
    bench.variables.put("nomad/jobs", &[("k", "two")]).unwrap();
    assert!(templates.has_changes(), "it was written again");
    assert!(templates.again_at(3).is_empty(), "and reads the same");
    bench.variables.remove("nomad/jobs").unwrap();
    let round =
        templates.render_again(Timestamp::from_nanos(4_000_000_000), &CancelFlag::default());
    assert!(round.trouble.unwrap().contains("waits for nomad.var(nomad/jobs)"));
    assert_eq!(bench.text("local/a"), "two true", "the file stays");
}

#[test]
fn a_task_reads_and_lists_its_own_variables_and_no_others() {
    let job = {
        let bench = Bench::new(vec![]);
        bench.rendering.sources.answer(&Dependency::Variable { path: "a".into(), required: true })
    };
    let OutsideAnswer::Refused(said) = job else { panic!("{job:?}") };
    let own = said.rsplit_once("it may read ").unwrap().1.split(", ").nth(1).unwrap().to_owned();
    let list = "{{ range nomadVarList }}{{ .Path }} {{ end }}|{{ nomadVarExists \"nomad/jobs\" }}";
    let bench = Bench::new(vec![template(list, "local/a")]);
    for path in ["a", "nomad/jobs/else", &own] {
        bench.variables.put(path, &[("k", "v")]).unwrap();
    }
    let (templates, _) = bench.render(1).unwrap();
    assert_eq!(bench.text("local/a"), format!("{own} |false"));
    bench.variables.put("nomad/jobs/else2", &[("k", "v")]).unwrap();
    assert!(!templates.has_changes(), "what it cannot see is nothing to it");
    bench.variables.put("nomad/jobs", &[("k", "v")]).unwrap();
    assert_eq!(templates.again_at(2), ["local/a"]);
    assert_eq!(bench.text("local/a"), format!("nomad/jobs {own} |true"));
    for text in ["nomadVar \"nomad/jobs/else\"", "nomadVarExists \"a\"", "nomadVarList \"a\""] {
        let bench = Bench::new(vec![template(&format!("x\n{{{{ {text} }}}}"), "local/a")]);
        let error = bench.render(1).unwrap_err().to_string();
        assert!(error.starts_with("template local/a:2:4: "), "{error}");
        assert!(error.contains("it may read nomad/jobs, nomad/jobs/"), "{error}");
    }
    let safe = Bench::new(vec![template("{{ nomadVarListSafe }}", "local/a")]);
    let error = safe.render(1).unwrap_err();
    assert!(matches!(error, RenderError::Missing { .. }), "{error}");
}

#[test]
fn what_is_in_a_variable_is_in_no_error() {
    for (text, said) in [
        (
            "{{ with nomadVar \"nomad/jobs\" }}\n{{ parseInt .k }}{{ end }}",
            ":2:4: parseInt: \"(secret)\"",
        ),
        (
            "{{ with nomadVar \"nomad/jobs\" }}{{ if eq .k \"hunter2\" }}{{ parseInt .k }}{{ end }}{{ end }}",
            "it fails with what is in the variables that it reads, which is not shown",
        ),
    ] {
        let bench = Bench::new(vec![template(text, "local/a")]);
        bench.variables.put("nomad/jobs", &[("k", "hunter2")]).unwrap();
        let error = bench.render(1).unwrap_err().to_string();
        assert!(error.contains(said) && !error.contains("hunter2"), "{error}");
    }
    let lines = template("{{ with nomadVar \"nomad/jobs\" }}{{ .k }}=x{{ end }}", "local/env");
    let bench = Bench::new(vec![TaskTemplate { env: true, ..lines }]);
    bench.variables.put("nomad/jobs", &[("k", "0hunter2")]).unwrap();
    let error = bench.render(1).unwrap_err().to_string();
    assert!(error.contains("line 1 of the environment") && !error.contains("hunter2"), "{error}");
}

#[test]
fn services_are_followed_by_name_and_tag_and_chosen_alike_for_a_key() {
    let all = vec![
        template("{{ range nomadService \"db\" }}{{ .Port }} {{ end }}", "local/db"),
        template("{{ range nomadService \"fast.db\" }}{{ .Port }} {{ end }}", "local/fast"),
        template("{{ range nomadService 2 \"key\" \"db\" }}{{ .Port }} {{ end }}", "local/two"),
        template("{{ range nomadServices }}{{ .Name }} {{ end }}", "local/all"),
    ];
    let bench = Bench::new(all);
    let (a, b) = (AllocId::new(Rng::from_seed(1).uuid()), AllocId::new(Rng::from_seed(2).uuid()));
    let (templates, _) = bench.render(1).unwrap();
    assert_eq!(bench.text("local/db"), "", "none is no reason to wait");
    bench.services.set(a, (1..=5).map(|port| instance(a, "db", port, &[])).collect());
    assert!(templates.has_changes());
    assert_eq!(templates.again_at(2), ["local/db", "local/two", "local/all"]);
    assert_eq!(bench.text("local/db"), "1 2 3 4 5 ");
    let two = bench.text("local/two");
    assert_eq!(two.split_whitespace().count(), 2);
    bench.services.set(b, vec![instance(b, "web", 9, &[])]);
    assert_eq!(templates.again_at(3), ["local/all"], "another service is nothing to the rest");
    assert_eq!((bench.text("local/all").as_str(), bench.text("local/two")), ("db web ", two));
    bench.services.set(b, vec![instance(b, "db", 6, &["fast"])]);
    let changed = templates.again_at(4);
    assert!(changed.contains(&"local/fast".to_owned()), "{changed:?}");
    assert_eq!(bench.text("local/fast"), "6 ");
    for name in ["db?ns=other", "db@mars", "a b"] {
        let bench =
            Bench::new(vec![template(&format!("{{{{ nomadService \"{name}\" }}}}"), "local/a")]);
        let error = bench.render(1).unwrap_err().to_string();
        assert!(
            error.starts_with("template local/a:1:4: nomadService: ") && error.contains(name),
            "{error}"
        );
    }
}

#[test]
fn a_new_agent_finds_a_rendered_variable_as_it_was() {
    let bench = Bench::new(vec![template(
        "{{ with nomadVar \"nomad/jobs\" }}{{ .k }}{{ end }}",
        "local/a",
    )]);
    bench.variables.put("nomad/jobs", &[("k", "one")]).unwrap();
    bench.render(1).unwrap();
    let earlier = Templates::of_earlier_agent(bench.rendering.clone());
    assert!(earlier.again_at(2).is_empty());
    bench.variables.put("nomad/jobs", &[("k", "two")]).unwrap();
    let later = Templates::of_earlier_agent(bench.rendering.clone());
    assert_eq!(later.again_at(3), ["local/a"], "it was changed while no agent ran");
}
