//! What happened to an allocation, line by line.
//!
//! ```text
//! placed, events of its tasks ─► by time ─► fold: the same ones counted ─► the newest lines
//!                                                   └ what the record has no more of is said before them
//! ```

use ostler_model::alloc::DesiredStatus;
use ostler_model::time::Timestamp;
use ostler_model::words::counted;
use ostler_wire::Alloc;

use crate::alloc_task::Task;
use crate::fold::fold;
use crate::{Explanation, Happened};

/// Lines of what happened; older ones are left out.
const HAPPENED_MAX: usize = 24;

/// The events of all tasks, the same ones counted, oldest first.
pub(crate) fn happened(alloc: &Alloc<'_>, tasks: &[Task<'_>], told: &mut Explanation) {
    let mut all: Vec<(Timestamp, String)> = Vec::new();
    if alloc.create_time != Timestamp::default() {
        all.push((alloc.create_time, placed(alloc)));
    }
    for task in tasks {
        let phrases = task.events().iter().enumerate();
        all.extend(phrases.filter_map(|(at, event)| Some((event.time, task.phrase(at)?))));
    }
    all.sort_by_key(|(at, _)| *at);
    let folded = fold(all, |(_, text)| text.clone(), |(at, _)| *at);
    let left_out = folded.len().saturating_sub(HAPPENED_MAX);
    let mut lines: Vec<Happened> = Vec::new();
    if left_out > 0 {
        let at = folded.get(left_out).map_or(Timestamp::default(), |one| one.last);
        let text = format!("({left_out} earlier ones are left out)");
        lines.push(Happened { at, times: 1, text });
    }
    lines.extend(folded.into_iter().skip(left_out).map(|one| {
        let (_, text) = one.event;
        Happened { at: one.last, times: one.times, text }
    }));
    for (at, text) in tasks.iter().filter_map(not_kept) {
        // Where what there is of the task begins.
        let place = lines.iter().position(|line| line.at >= at).unwrap_or(lines.len());
        lines.insert(place, Happened { at, times: 1, text });
    }
    told.happened.extend(lines);
}

/// That it was placed. With which version is not on record where it was changed since: an update in place has it
/// go on as another.
fn placed(alloc: &Alloc<'_>) -> String {
    let version = alloc.version();
    let changed = alloc.alloc_modify_index.is_some_and(|index| index > alloc.create_index);
    match (version > 0 && changed, alloc.desired_status) {
        (false, _) => format!("placed, with version {version} of the job"),
        (true, DesiredStatus::Run) => {
            format!(
                "placed, and changed in place since; it goes on as version {version} of the job"
            )
        }
        (true, DesiredStatus::Stop) => "placed".to_owned(),
    }
}

/// How many events of a task are not on record any more, and until when; none where all are.
fn not_kept(task: &Task<'_>) -> Option<(Timestamp, String)> {
    let events = task.events();
    let gone = task.state.events_total.saturating_sub(u64::try_from(events.len()).ok()?);
    let first = events.first().filter(|_| gone > 0)?;
    let (gone, are) = (counted(gone, "older event"), if gone == 1 { "is" } else { "are" });
    let text =
        format!("({gone} of task {} {are} not kept any more, nor counted here)", task.told.task);
    Some((first.time, text))
}
