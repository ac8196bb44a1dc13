//! Many tasks of both kinds at once: nothing of their output is lost or mixed, and every state is
//! on the disk.

use std::fmt::Write as _;

use ostler_model::alloc::ClientStatus;
use ostler_model::saved::SavedAllocState;
use ostler_model::task::{TaskState, TaskStatus};
use ostler_state::{KeyPrefix, RecordKey, StateStore};

use crate::support::TestAgent;
use crate::support::jobs::{assert_successful, batch, shell, wasm};

const OF_EACH_KIND: usize = 25;
const LINES: usize = 3_000;
const LINE_BYTES: usize = 40;

/// What `toolbox write-lines` prints.
fn letters() -> String {
    let mut text = String::new();
    for letter in ('a'..='z').cycle().take(LINES) {
        text.extend(std::iter::repeat_n(letter, LINE_BYTES));
        text.push('\n');
    }
    text
}

fn numbers(task: &str) -> String {
    (1..=LINES).fold(String::new(), |mut text, number| {
        let _ = writeln!(text, "{task} {number}");
        text
    })
}

fn job() -> String {
    let more = "resources {\n cpu = 10\n memory = 16\n }";
    let lines = LINES.to_string();
    let bytes = LINE_BYTES.to_string();
    let blocks = (0..OF_EACH_KIND).map(|number| {
        // Half of the components, half of the core modules.
        let guest = if number % 2 == 0 { "guest:toolbox" } else { "guest:toolbox-p1" };
        let native = format!("native-{number}");
        wasm(&format!("wasm-{number}"), guest, &["write-lines", &lines, &bytes], more)
            + &shell(&native, &format!("seq -f '{native} %.0f' 1 {lines}"), more)
    });
    batch(&blocks.collect::<String>())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_output_of_fifty_tasks_is_whole_and_their_states_are_durable() {
    let agent = TestAgent::start().await;
    let result = agent.run(&job()).await;
    assert_successful(&result);
    assert_eq!(result.allocs[0].state.tasks.len(), 2 * OF_EACH_KIND);
    let letters = letters();
    for number in 0..OF_EACH_KIND {
        let (wasm, native) = (format!("wasm-{number}"), format!("native-{number}"));
        assert!(agent.stdout(&result, &wasm) == letters, "{wasm} is not whole");
        assert!(agent.stdout(&result, &native) == numbers(&native), "{native} is not whole");
    }
    let file = agent.handle.data_dir().join("state.redb");
    let data = agent.leave().await;
    let store = StateStore::open(&file).unwrap();
    assert!(store.open_report().quarantined.is_empty());
    let (mut dead, mut allocs) = (0, 0);
    for record in store.scan(&KeyPrefix::Allocs).unwrap() {
        match &record.key {
            RecordKey::TaskState(id, task) => {
                let state: TaskState = record.decode().unwrap();
                assert_eq!(*id, result.allocs[0].id);
                assert_eq!((state.status, state.failed), (TaskStatus::Dead, false), "{task}");
                assert_eq!(
                    Some(&state),
                    result.allocs[0].state.tasks.get(task).map(|task| &**task),
                    "{task}"
                );
                dead += 1;
            }
            RecordKey::AllocState(_) => {
                let state: SavedAllocState = record.decode().unwrap();
                assert_eq!(state.client_status, ClientStatus::Complete);
                let last = SavedAllocState::from(&result.allocs[0].state);
                assert_eq!(state, SavedAllocState { finished: true, ..last });
                allocs += 1;
            }
            _ => {}
        }
    }
    assert_eq!((dead, allocs), (2 * OF_EACH_KIND, 1));
    drop(data);
}
