//! Template blocks: files that tasks find when they start, and what happens when these read otherwise.

use ostler_model::event::EventKind;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::TestAgent;
use crate::support::agent_process::AgentProcess;
use crate::support::jobs::{assert_successful, batch, groups, lifecycle, shell, state, wasm};
use crate::support::system::{eventually, runs};

/// A template block of a text.
fn template(data: &str, destination: &str, more: &str) -> String {
    let data = serde_json::to_string(data).unwrap();
    format!(
        "template {{\n data = {data}\n destination = \"{destination}\"\n splay = \"0s\"\n {more}\n}}\n"
    )
}

/// A task before all others that writes the file that templates read.
fn input(text: &str) -> String {
    let script = format!("printf '{text}' > $NOMAD_ALLOC_DIR/data/in");
    shell("first", &script, &lifecycle("prestart", false))
}

/// Puts another file in its place, whole.
const CHANGE: &str = "cd $NOMAD_ALLOC_DIR/data; printf two > new; mv new in; cd - > /dev/null";

/// A template of that file.
const INPUT: &str = "{{ file (printf \"%s/data/in\" (env \"NOMAD_ALLOC_DIR\")) }}";

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_all_kinds_find_their_rendered_files_and_variables() {
    let agent = TestAgent::start().await;
    let conf = "job {{ env \"NOMAD_JOB_ID\" }} on {{ env \"attr.kernel.name\" }}\n\
                {{- range $i, $e := split \",\" (env \"LIST\") }}\n{{ $i }}={{ $e | toUpper }}{{ end }}\n";
    let lines = "FROM_TEMPLATE=\"{{ env \"LIST\" }}\" # said\nexport OTHER=1\n";
    let env = "env {\n LIST = \"a,b\"\n OTHER = \"0\"\n }\n";
    let blocks = |file: &str| {
        let more = env.to_owned() + &template(conf, file, "perms = \"0640\"");
        more + &template(lines, "secrets/env", "env = true\n change_mode = \"noop\"")
    };
    let script = "cat local/app.conf; stat -c %a local/app.conf; echo $FROM_TEMPLATE $OTHER";
    let jobs = [
        shell("native", script, &blocks("local/app.conf")),
        wasm("component", "guest:toolbox", &["cat", "/local/x/a"], &blocks("local/x/a")),
        wasm("module", "guest:toolbox-p1", &["cat", "/alloc/data/a"], &blocks("/alloc/data/a")),
        wasm(
            "args",
            "guest:toolbox",
            &["args", "${FROM_TEMPLATE}", "${OTHER}"],
            &blocks("/secrets/a"),
        ),
    ];
    let result = agent.run(&groups(jobs)).await;
    assert_successful(&result);
    let text = "job j on linux\n0=A\n1=B\n";
    assert_eq!(agent.stdout(&result, "native"), format!("{text}640\na,b 1\n"));
    assert_eq!(agent.stdout(&result, "component"), text);
    assert_eq!(agent.stdout(&result, "module"), text);
    assert_eq!(agent.stdout(&result, "args"), "a,b\n1\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_another_task_made_is_rendered_with_its_own_delimiters() {
    let agent = TestAgent::start().await;
    let write = "echo 'port <<env \"PORT\">> {{ kept }}' > $NOMAD_ALLOC_DIR/data/a.tpl";
    let block = "env {\n PORT = \"8080\"\n }\n template {\n source = \"${NOMAD_ALLOC_DIR}/data/a.tpl\"\n \
                 destination = \"local/a\"\n left_delimiter = \"<<\"\n right_delimiter = \">>\"\n }";
    let first = shell("first", write, &lifecycle("prestart", false));
    let result = agent.run(&batch(&(first + &shell("t", "cat local/a", block)))).await;
    assert_successful(&result);
    assert_eq!(agent.stdout(&result, "t"), "port 8080 {{ kept }}\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_cannot_be_rendered_fails_its_task_with_line_and_column() {
    let agent = TestAgent::start().await;
    let fails = [
        (
            "number",
            template("a\n{{ parseInt (env \"NOMAD_TASK_NAME\") }}", "local/a", ""),
            "template local/a:2:4: parseInt: \"number\" is not a whole number",
        ),
        (
            "gone",
            template("{{ file \"local/gone\" }}", "local/a", ""),
            "template local/a:1:4: file: local/gone",
        ),
        (
            "strict",
            template("{{ (parseJSON `{}`).a }}", "local/a", "error_on_missing_key = true"),
            "template local/a:1:4: the map has no key \"a\"",
        ),
        (
            "outside",
            // Not known before it runs.
            "env {\n UP = \"../..\"\n }\n".to_owned() + &template("x", "${UP}/x", ""),
            "template ../../x: destination: \"../../x\" leads out",
        ),
        (
            "unseen",
            "env {\n AT = \"etc\"\n }\n".to_owned() + &template("x", "${AT}/app.conf", ""),
            "template etc/app.conf: destination: the task would not see",
        ),
        (
            "lines",
            template("A", "local/a", "env = true"),
            "template local/a: line 1 of the environment",
        ),
    ];
    let task = |(name, block, _): &(&str, String, &str)| match *name {
        "unseen" => wasm(name, "guest:toolbox", &["args"], block),
        name => shell(name, "true", block),
    };
    let result = agent.run(&groups(fails.iter().map(task))).await;
    for (name, _, said) in &fails {
        let state = state(&result, name);
        assert!(state.failed, "{name}: {state:#?}");
        let told = state.events.iter().find(|event| event.kind == EventKind::SetupFailure);
        let told = &told.unwrap_or_else(|| panic!("{name}: {state:#?}")).message;
        assert!(told.starts_with(said), "{name}: {told}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_gets_its_signal_when_a_file_of_its_template_is_another_one() {
    let agent = TestAgent::start().await;
    let block = template(
        &format!("<{INPUT}>"),
        "local/out",
        "change_mode = \"signal\"\n change_signal = \"SIGUSR1\"",
    );
    let script = format!(
        "trap 'cat local/out; exit 0' USR1; cat local/out; echo; {CHANGE}; \
         while :; do sleep 0.05; done"
    );
    let result = agent.run(&batch(&(input("one") + &shell("t", &script, &block)))).await;
    assert_successful(&result);
    assert_eq!(agent.stdout(&result, "t"), "<one>\n<two>");
    let told = &state(&result, "t").events;
    let told = told.iter().find(|event| event.kind == EventKind::Signaling).unwrap();
    assert_eq!(told.message, "Template re-rendered");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_started_again_with_what_its_template_reads_now() {
    let agent = TestAgent::start().await;
    let more = "env = true\n wait {\n min = \"10ms\"\n max = \"1s\"\n }";
    let block = template(&format!("SEEN={INPUT}\n"), "local/env", more);
    let script =
        format!("echo $SEEN; test $SEEN = two && exit 0; {CHANGE}; while :; do sleep 0.05; done");
    let result = agent.run(&batch(&(input("one") + &shell("t", &script, &block)))).await;
    assert_successful(&result);
    assert_eq!(agent.stdout(&result, "t"), "one\ntwo\n");
    let state = state(&result, "t");
    let told = state.events.iter().find(|event| event.kind == EventKind::RestartSignaled);
    assert_eq!(told.unwrap().message, "Template with change_mode restart re-rendered");
    assert_eq!(state.restarts, 1, "with no attempts: it is no failure");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_runs_inside_the_task_and_may_fail_it() {
    let agent = AgentProcess::start().await;
    let script_block = |script: &str, more: &str| {
        let script = serde_json::to_string(script).unwrap();
        let more = format!(
            "change_mode = \"script\"\n change_script {{\n command = \"/bin/sh\"\n \
             args = [\"-c\", {script}]\n {more}\n }}"
        );
        template(INPUT, "local/out", &more)
    };
    let wait = format!("{CHANGE}; while ! test -e local/seen; do sleep 0.05; done; cat local/seen");
    let works = script_block("cp local/out local/new && mv local/new local/seen", "");
    let fails = script_block("echo broken >&2; exit 3", "fail_on_error = true");
    let jobs = [works, fails].map(|block| input("one") + &shell("t", &wait, &block));
    assert_eq!(agent.submit(&groups(jobs)).await.code, Some(0));
    let works = ended(&agent, "g0", "complete").await;
    assert_eq!(agent.ask(&["alloc", "logs", &works, "t"]).await.stdout, "two");
    let fails = ended(&agent, "g1", "failed").await;
    let status = agent.json(&["alloc", "status", "--json", &fails]).await;
    let events = status["TaskStates"]["t"]["Events"].as_array().unwrap();
    let told = events.iter().find(|event| event["Type"] == "Template").unwrap();
    let text = "Template re-rendered: script /bin/sh failed with exit code 3: broken";
    assert_eq!(told["DisplayMessage"], text, "{told:#}");
}

/// Wait until the allocation of a group of the job `j` has ended so; its id.
async fn ended(agent: &AgentProcess, group: &str, status: &str) -> String {
    let ended = async {
        loop {
            let allocs = agent.allocs("j").await;
            let of_group = |alloc: &&Value| alloc["TaskGroup"] == group;
            let alloc = allocs.iter().find(of_group).unwrap();
            if alloc["ClientStatus"] == status {
                return alloc["ID"].as_str().unwrap().to_owned();
            }
            ostler_model::clock::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    ostler_model::clock::timeout(crate::support::PATIENCE, ended).await.expect("it ends so")
}

/// A service whose template reads a file and the time.
fn service() -> String {
    let block = template(
        &format!("{{{{ timestamp \"unix\" }}}} {INPUT}"),
        "local/out",
        "change_mode = \"signal\"\n change_signal = \"SIGHUP\"",
    );
    let script = "trap 'cat local/out >> local/hups' HUP; echo $$ > local/new; \
                  mv local/new local/pid; while :; do sleep 0.05; done";
    let tasks = input("one") + &shell("t", script, &block);
    format!("job \"web\" {{\n group \"g\" {{\n {tasks}\n }}\n }}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_keeps_its_file_when_its_agent_is_killed_and_hears_of_what_changed_meanwhile() {
    let agent = AgentProcess::start().await;
    assert_eq!(agent.submit(&service()).await.code, Some(0));
    let alloc = agent.alloc("web").await;
    let dir = agent.data.path().join(format!("allocs/{alloc}"));
    let read = |name: &str| std::fs::read_to_string(dir.join("t/local").join(name)).ok();
    eventually("the task runs", || read("pid").is_some()).await;
    let (pid, out) = (read("pid").unwrap(), read("out").unwrap());
    assert!(out.ends_with(" one"), "{out}");
    let data = dir.join("alloc/data");
    let change = |text: &str| {
        std::fs::write(data.join("new"), text).unwrap();
        std::fs::rename(data.join("new"), data.join("in")).unwrap();
    };
    let alive = || runs(pid.trim().parse().unwrap());

    let killed = |agent: AgentProcess| async move {
        agent.signal(Signal::KILL);
        agent.ended().await.1
    };
    // Nothing changed: nothing is touched.
    let home = killed(agent).await;
    let agent = AgentProcess::start_in(home, &[]).await;
    recovered(&agent, &alloc).await;
    assert_eq!((read("out").as_ref(), read("hups")), (Some(&out), None));

    // Something changed while no agent looked.
    let home = killed(agent).await;
    change("two");
    let agent = AgentProcess::start_in(home, &[]).await;
    recovered(&agent, &alloc).await;
    eventually("the task hears of it", || read("hups").is_some_and(|t| t.ends_with(" two"))).await;
    assert!(alive(), "the same run");
    assert_eq!(read("pid").unwrap(), pid);
    assert_eq!(read("out"), read("hups"), "once");
    // And it is followed on.
    change("three");
    eventually("the task hears again", || read("hups").is_some_and(|t| t.ends_with(" three")))
        .await;
    assert_eq!(agent.ask(&["job", "stop", "web"]).await.code, Some(0));
}

/// Wait until the agent owns the task again.
async fn recovered(agent: &AgentProcess, alloc: &str) {
    let owned = async {
        loop {
            let status: Value = agent.json(&["alloc", "status", "--json", alloc]).await;
            if status["TaskStates"]["t"]["State"] == "running" {
                return;
            }
            ostler_model::clock::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    ostler_model::clock::timeout(crate::support::PATIENCE, owned).await.expect("it is owned");
}
