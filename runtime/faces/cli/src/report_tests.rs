#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use super::*;
use ostler_model::alloc::AllocState;
use ostler_model::rng::Rng;

fn alloc() -> AllocId {
    AllocId::new(Rng::from_seed(1).uuid())
}

fn line(bytes: &[u8], stream: TaskStream) -> OutputLine {
    let label = Arc::new(Label { text: "web ".into(), number: 0 });
    let output = OutputLine::empty_line(alloc(), TaskName::new("web").unwrap(), label);
    OutputLine { bytes: bytes.to_vec(), stream, ..output }
}

fn ended() -> RunReport {
    let state = AllocState { client_status: ClientStatus::Failed, ..AllocState::default() };
    RunReport::Result {
        job: JobId::new("shop").unwrap(),
        successful: false,
        exit_code: 3,
        allocs: vec![AllocResult { id: alloc(), name: "shop.front[0]".into(), state }],
    }
}

#[test]
fn every_report_as_json_is_one_object_with_its_type() {
    let label = Arc::new(Label { text: "web".into(), number: 0 });
    let task = TaskName::new("web").unwrap();
    let failure = RunFailure::new("no", 3);
    let reports = [
        (RunReport::Output(line(b"a\"\xff", TaskStream::Stderr)), "output"),
        (RunReport::Progress { message: "x".into() }, "progress"),
        (RunReport::EventsMissed { alloc: alloc(), task, label }, "events_missed"),
        (RunReport::Error(failure), "error"),
        (ended(), "result"),
    ];
    let mut rendered = RenderBuffers::default();
    for (report, _) in &reports {
        render_json(report, &mut rendered);
    }
    assert!(rendered.stderr.is_empty());
    let text = String::from_utf8(rendered.stdout).unwrap();
    let objects: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for ((_, name), object) in reports.iter().zip(&objects) {
        assert_eq!(object["type"], *name);
        assert!(object.get("label").is_none());
    }
    assert_eq!(objects[0]["text"], "a\"\u{fffd}");
    assert_eq!(objects[0]["stream"], "stderr");
    assert_eq!(objects[3]["exit_code"], 3);
    assert_eq!(objects[4]["allocs"][0]["state"]["client_status"], "failed");
}
