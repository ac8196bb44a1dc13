//! The timeline of an allocation, line by line.
//!
//! ```text
//! placement, events of its tasks ─► by time ─► fold: repeated ones counted ─► the newest lines
//!                                                  └ lost events are mentioned before the rest
//! ```

use ostler_model::alloc::DesiredStatus;
use ostler_model::time::Timestamp;
use ostler_model::words::count_noun;
use ostler_wire::Alloc;

use crate::alloc_task::TaskHistory;
use crate::fold::fold;
use crate::{Explanation, TimelineEntry};

/// The most lines of the timeline; older ones are left out.
const HAPPENED_MAX: usize = 24;

/// Add the events of all tasks, repeated ones counted, oldest first.
pub(crate) fn add_timeline(alloc: &Alloc<'_>, tasks: &[TaskHistory<'_>], told: &mut Explanation) {
    let mut all: Vec<(Timestamp, String)> = Vec::new();
    if alloc.create_time != Timestamp::default() {
        all.push((alloc.create_time, placement_text(alloc)));
    }
    for task in tasks {
        let phrases = task.events().iter().enumerate();
        all.extend(phrases.filter_map(|(at, event)| Some((event.time, task.phrase(at)?))));
    }
    all.sort_by_key(|(at, _)| *at);
    let folded = fold(all, |(_, text)| text.clone(), |(at, _)| *at);
    let left_out = folded.len().saturating_sub(HAPPENED_MAX);
    let mut lines: Vec<TimelineEntry> = Vec::new();
    if left_out > 0 {
        let at = folded.get(left_out).map_or(Timestamp::default(), |one| one.last);
        let text = format!("({left_out} earlier ones are left out)");
        lines.push(TimelineEntry { at, times: 1, text });
    }
    lines.extend(folded.into_iter().skip(left_out).map(|one| {
        let (_, text) = one.event;
        TimelineEntry { at: one.last, times: one.times, text }
    }));
    for (at, text) in tasks.iter().filter_map(lost_events) {
        // The line goes where the remaining events of the task begin.
        let place = lines.iter().position(|line| line.at >= at).unwrap_or(lines.len());
        lines.insert(place, TimelineEntry { at, times: 1, text });
    }
    told.happened.extend(lines);
}

/// The line that the allocation was placed. The version of that moment is not on record where the
/// allocation was changed since: after an update in place it goes on with another version.
fn placement_text(alloc: &Alloc<'_>) -> String {
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

/// The number of a task's events that are not on record any more, and the time until which they are
/// lost. `None` where all events are there.
fn lost_events(task: &TaskHistory<'_>) -> Option<(Timestamp, String)> {
    let events = task.events();
    let gone = task.state.events_total.saturating_sub(u64::try_from(events.len()).ok()?);
    let first = events.first().filter(|_| gone > 0)?;
    let (gone, are) = (count_noun(gone, "older event"), if gone == 1 { "is" } else { "are" });
    let text =
        format!("({gone} of task {} {are} no longer kept, nor counted here)", task.told.task);
    Some((first.time, text))
}
