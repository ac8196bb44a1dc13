//! Templates that read otherwise while their agent goes.

use super::*;
use ostler_model::template::{ChangeMode, TaskTemplate, TemplateSource};
use ostler_testing::fake_variables::FakeVariables;

const SPLAY: Duration = Duration::from_secs(10_000);
const VARIABLE: &str = "nomad/jobs";

fn template(change: ChangeMode) -> TaskTemplate {
    let text = format!("{{{{ with nomadVar \"{VARIABLE}\" }}}}{{{{ .k }}}}{{{{ end }}}}");
    TaskTemplate {
        source: TemplateSource::Data(text),
        destination: "local/v".to_owned(),
        change,
        splay: SPLAY,
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

struct Agents {
    bench: Bench,
    variables: FakeVariables,
}

impl Agents {
    fn new(change: ChangeMode) -> Self {
        let bench = Bench::new(Task { templates: vec![template(change)], ..web() });
        bench.node.script("web", vec![native(Script::runs()); 3]);
        Self { bench, variables: FakeVariables::default() }
    }

    fn next(&self) -> TaskHandle {
        let (bench, variables) = (&self.bench, Arc::new(self.variables.clone()));
        let scope = bench.scope_on(NodeContext { variables, ..bench.context() });
        TaskHandle::restore(scope, bench.gate.subscribe(), Arc::default(), bench.recorded())
    }

    /// In order, or killed.
    async fn goes(&mut self, handle: TaskHandle, killed: bool) {
        // What is told is durable.
        self.bench.pass(SECOND).await;
        if killed {
            handle.owner.abort();
        } else {
            handle.shutdown().await;
        }
        handle.wait_gone().await;
        self.bench.reopen();
    }

    /// The file reads so.
    async fn written(&self, text: &str) {
        let dir = self.bench.context().alloc_root.join(self.bench.allocation.id.to_string());
        let file = dir.join("web/local/v");
        while std::fs::read_to_string(&file).ok().as_deref() != Some(text) {
            clock::sleep(Duration::from_millis(1)).await;
        }
    }

    fn set(&self, text: &str) {
        self.variables.put(VARIABLE, &[("k", text)]).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_signal_that_waits_for_its_splay_when_the_agent_goes_is_sent_once_by_the_next_one() {
    for killed in [true, false] {
        let mut agents = Agents::new(ChangeMode::Signal("SIGUSR1".to_owned()));
        let sent = |agents: &Agents| agents.bench.count("signal web SIGUSR1");
        agents.set("one");
        let handle = agents.next();
        until_running(&handle).await;
        agents.set("two");
        agents.written("two").await;
        agents.goes(handle, killed).await;
        assert_eq!(sent(&agents), 0, "it waits");
        let handle = agents.next();
        until(&handle, |s| has(s, "Signaling")).await;
        agents.goes(handle, killed).await;
        assert_eq!(sent(&agents), 1);
        let handle = agents.next();
        agents.bench.pass(2 * SPLAY).await;
        assert_eq!((sent(&agents), handle.state().status), (1, TaskStatus::Running), "once");
        assert_eq!(agents.bench.count("start web"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_that_waits_for_its_splay_when_the_agent_goes_is_made_once_by_the_next_one() {
    for killed in [true, false] {
        let mut agents = Agents::new(ChangeMode::Restart);
        agents.set("one");
        let handle = agents.next();
        until_running(&handle).await;
        agents.set("two");
        agents.written("two").await;
        agents.goes(handle, killed).await;
        assert_eq!(agents.bench.count("start web"), 1, "it waits");
        let handle = agents.next();
        until(&handle, |s| s.restarts == 1 && s.status == TaskStatus::Running).await;
        agents.goes(handle, killed).await;
        let handle = agents.next();
        agents.bench.pass(2 * SPLAY).await;
        assert_eq!((handle.state().restarts, agents.bench.count("start web")), (1, 2), "once");
    }
}
