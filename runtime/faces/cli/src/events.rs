//! `ostler events` and `ostler monitor`: what happened, and what the agent logs.

use serde_json::Value;

use super::args::events::{EventsArgs, MonitorArgs};
use super::connect::{self, CliError};
use super::exit::Exit;
use super::lines::LineReader;
use super::output::{self, age_text};
use super::terminal::{TerminalInfo, one_line, paint};
use ostler_agent::{EventTopic, KeptEvent};
use ostler_api::client::ApiClient;
use ostler_api::request::ApiRequest;
use ostler_api::routes::{QueryKey, endpoints as routes};
use ostler_explain::moment;
use ostler_model::clock::Clock;
use ostler_model::time::Timestamp;
use ostler_model::words::count_noun;

/// How many events are shown without `--lines`.
const LINES: usize = 50;
/// Colour of events that are trouble.
const RED: &str = "31";

/// The agent's answer to a request for events.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct EventsAnswer {
    events: Vec<KeptEvent>,
    position: u64,
}

/// Show what happened, and with --follow what happens.
pub(super) async fn events(args: &EventsArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let work = show_events(args, terminal);
    if args.follow {
        connect::run_until_interrupted("events are still recorded", work).await
    } else {
        work.await
    }
}

/// Show the past events, and with `--follow` those that come after them.
async fn show_events(args: &EventsArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.agent)?;
    let now = Clock::system().now();
    let request = events_request(args, &client, now);
    let EventsAnswer { mut events, position } = client.send(&request).await?;
    let most = args.lines.map(|lines| usize::try_from(lines).unwrap_or(usize::MAX));
    let unless_named = if args.since.is_some() { usize::MAX } else { LINES };
    let left_out = events.len().saturating_sub(most.unwrap_or(unless_named));
    events.drain(..left_out);
    if left_out > 0 && most.is_none() {
        output::say(&format!("{} before these; -n shows more", count_noun(left_out, "event")));
    }
    if events.is_empty() && !args.follow && !terminal.json {
        output::print("no such events are recorded\n", terminal)?;
    }
    for event in &events {
        show_event(event, now, terminal)?;
    }
    if !args.follow {
        return Ok(Exit::Success);
    }
    let request = request.with(QueryKey::Follow, true).with(QueryKey::After, position);
    follow(&client, &request, terminal).await
}

fn events_request(
    args: &EventsArgs,
    client: &ApiClient,
    now: Timestamp,
) -> ApiRequest<(), EventsAnswer> {
    let EventsArgs { job, alloc, task, plugin, device, since, trouble, .. } = args;
    let topic = match (plugin, device) {
        (Some(_), _) => Some(EventTopic::Plugin),
        (None, Some(_)) => Some(EventTopic::Device),
        (None, None) => None,
    };
    let since = since.map(|since| {
        let since = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        now.nanos().saturating_sub(since)
    });
    connect::in_namespaces(client, routes::ListNodeEvents::request([]))
        .with_some(QueryKey::Job, job.as_ref())
        .with_some(QueryKey::Alloc, alloc.as_ref())
        .with_some(QueryKey::Task, task.as_ref())
        .with_some(QueryKey::Name, plugin.as_ref())
        .with_some(QueryKey::Name, device.as_ref())
        .with_some(QueryKey::Topic, topic.map(EventTopic::as_str))
        .with_some(QueryKey::Since, since)
        .with_some(QueryKey::Trouble, trouble.then_some(true))
        .read_as()
}

async fn follow(
    client: &ApiClient,
    request: &ApiRequest<(), EventsAnswer>,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let mut lines = LineReader::new(client.read_pieces(request).await?);
    while let Some(line) = lines.next().await? {
        let Ok(value) = serde_json::from_slice::<Value>(&line) else { continue };
        if value.get("missed").is_some() {
            output::warning(terminal, "events came faster than they were read; some are not shown");
        }
        // A sign of life has no sequence number.
        if let Ok(event) = serde_json::from_value::<KeptEvent>(value)
            && event.seq > 0
        {
            show_event(&event, Clock::system().now(), terminal)?;
        }
    }
    output::say("the agent ended");
    Ok(Exit::Success)
}

fn show_event(event: &KeptEvent, now: Timestamp, terminal: &TerminalInfo) -> Result<(), Exit> {
    if terminal.json {
        let text = output::visible_json(serde_json::to_string(event).unwrap_or_default());
        return output::print(&format!("{text}\n"), terminal);
    }
    let text = line(event, now);
    let text = if event.what.trouble { paint(&text, RED, terminal.stdout_colours()) } else { text };
    output::print(&format!("{text}\n"), terminal)
}

/// `05:16:00  task web of web, 0f01c0de: Terminated: Exit Code: 3 (x37, first 2m00s ago)`
fn line(event: &KeptEvent, now: Timestamp) -> String {
    let what = &event.what;
    let alloc = what.alloc.get(..8).unwrap_or(&what.alloc);
    let subject = match what.topic {
        EventTopic::Node => "node".to_owned(),
        EventTopic::Job => format!("job {}", what.job),
        EventTopic::Allocation => format!("allocation {alloc} of {}", what.job),
        EventTopic::Task => format!("task {} of {}, {alloc}", what.task, what.job),
        EventTopic::Deployment => {
            format!("deployment {} of {}", what.name.get(..8).unwrap_or(&what.name), what.job)
        }
        EventTopic::Plugin => format!("plugin {}", what.name),
        EventTopic::Device => format!("device {}", what.name),
    };
    let message = match what.message.as_str() {
        "" => String::new(),
        message => format!(": {message}"),
    };
    let times = match event.times {
        0 | 1 => String::new(),
        times => format!(" (x{times}, first {})", age_text(event.first, now)),
    };
    one_line(&format!("{}  {subject}: {}{message}{times}", moment(event.last, now), what.kind))
}

/// Follow the agent's log.
pub(super) async fn monitor(args: &MonitorArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.agent)?;
    let request = routes::StreamAgentLog::request([])
        .with(QueryKey::Plain, true)
        .with(QueryKey::LogJson, terminal.json)
        .with(QueryKey::LogLevel, args.log_level.name());
    let work = async {
        // The stream begins before the last lines are read, so that a line that comes between them
        // is rather shown twice than never.
        let mut lines = LineReader::new(client.read_pieces(&request).await?);
        if args.lines > 0 {
            let last = routes::ReadAgentLog::request([])
                .with(QueryKey::Lines, args.lines)
                .with(QueryKey::LogJson, terminal.json);
            let mut last = LineReader::new(client.read_pieces(&last).await?);
            while let Some(line) = last.next().await? {
                print_line(&line, terminal)?;
            }
        }
        while let Some(line) = lines.next().await? {
            print_line(&line, terminal)?;
        }
        output::say("the agent ended");
        Ok(Exit::Success)
    };
    connect::run_until_interrupted("the agent keeps running", work).await
}

fn print_line(line: &[u8], terminal: &TerminalInfo) -> Result<(), Exit> {
    let text = one_line(&String::from_utf8_lossy(line));
    if text.is_empty() { Ok(()) } else { output::print(&format!("{text}\n"), terminal) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_agent::EventNote;

    #[test]
    fn an_event_is_a_line_with_its_count() {
        let second = |seconds: u64| Timestamp::from_nanos(seconds * 1_000_000_000);
        let what = EventNote {
            topic: EventTopic::Task,
            kind: "Terminated".to_owned(),
            job: "web".to_owned(),
            alloc: "0f01c0de-0000-4000-8000-000000000000".to_owned(),
            task: "nginx".to_owned(),
            message: "Exit Code: 3\nno".to_owned(),
            ..EventNote::default()
        };
        let event = KeptEvent { seq: 9, first: second(60), last: second(170), times: 37, what };
        let expected = "00:02:50  task nginx of web, 0f01c0de: Terminated: Exit Code: 3; no (x37, first 2m00s ago)";
        assert_eq!(line(&event, second(180)), expected);
    }
}
