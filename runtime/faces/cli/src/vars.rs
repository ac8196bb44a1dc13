//! `ostler var …`
//!
//! The content of a variable is printed where that is asked for, and never in a message.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use super::answer;
use super::args::vars::{VarCommand, VarGetArgs, VarListArgs, VarPurgeArgs, VarPutArgs};
use super::connect::{self, CliError};
use super::exit::Exit;
use super::input;
use super::output::{self, age_text, fact, say, table};
use super::terminal::{TerminalInfo, one_line};
use ostler_api::client::{ApiClient, ClientError};
use ostler_api::request::ApiRequest;
use ostler_api::routes::{QueryKey, endpoints as routes};
use ostler_model::clock::Clock;
use ostler_model::limits::{API_BODY_BYTES_MAX, VAR_BYTES_MAX};
use ostler_model::time::Timestamp;
use ostler_model::vars::{Secret, VarPath};
use ostler_wire::{VariableMetadata, VariablePut, WireVariable};

/// Run one of the commands.
pub(super) async fn run(command: &VarCommand, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    match command {
        VarCommand::Put(args) => put(args, terminal).await,
        VarCommand::Get(args) => get(args, terminal).await,
        VarCommand::List(args) => list(args, terminal).await,
        VarCommand::Purge(args) => purge(args).await,
    }
}

/// The path of a variable, which is checked before the agent is asked: that may not be there.
fn variable_path(path: &str) -> Result<VarPath, CliError> {
    VarPath::new(path).map_err(|error| CliError::Wrong(error.to_string()))
}

/// The error of a refused change. The agent's answer to a conflict contains the variable, so it is
/// not in the message.
fn conflict_error(error: ClientError, path: &str) -> CliError {
    if error.is_conflict() {
        CliError::Cannot(format!(
            "variable {path} does not have the index that --check-index or ModifyIndex gives, or was changed \
             meanwhile: nothing was done; `ostler var get {path}` shows it as it is"
        ))
    } else {
        CliError::Client(error)
    }
}

async fn put(args: &VarPutArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let place = variable_path(&args.path)?;
    let given = read_items(args)?;
    let mut client = connect::connect(&args.agent)?;
    if let Some(namespace) = &given.namespace {
        if args.agent.namespace.as_ref().is_some_and(|asked| asked != namespace) {
            let other = one_line(namespace);
            return Err(CliError::Wrong(format!(
                "standard input is a variable of namespace {other}"
            )));
        }
        client = client.in_namespace(namespace);
    }
    let index = args.check_index.or(given.index.filter(|_| !args.force));
    let body = WireVariable { items: given.items, ..WireVariable::default() };
    let request = routes::PutVariable::request([&place.as_str()]).with_some(QueryKey::Cas, index);
    let request = request.read_as::<VariableMetadata<'static>>();
    let written = client.send_body(&request, &body).await;
    let written = written.map_err(|error| conflict_error(error, &args.path))?;
    if terminal.json {
        output::print_json(&written, terminal)?;
    } else {
        say(&format!("variable {} has index {} now", args.path, written.modify_index));
    }
    Ok(Exit::Success)
}

/// The content of a variable that is to be written.
#[derive(Debug, Default)]
struct VariableInput {
    items: BTreeMap<String, Secret>,
    /// The index from the JSON on standard input.
    index: Option<u64>,
    /// The namespace from the JSON on standard input.
    namespace: Option<String>,
}

fn read_items(args: &VarPutArgs) -> Result<VariableInput, CliError> {
    if let [only] = args.items.as_slice()
        && only == "-"
    {
        let text = input::read_stdin(API_BODY_BYTES_MAX as u64)?;
        return from_json(&text, &args.path);
    }
    let mut given = VariableInput::default();
    let mut stdin_read = false;
    for item in &args.items {
        let Some((key, text)) = item.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            let what = if item == "-" {
                "- must be the only argument"
            } else {
                "an item must be KEY=VALUE"
            };
            // The message leaves out the item, which may be a secret that lost its key.
            return Err(CliError::Wrong(format!("{what}; see `ostler var put --help`")));
        };
        let max = VAR_BYTES_MAX as u64;
        let bytes = match text.strip_prefix('@') {
            None => {
                text.strip_prefix('\\').filter(|rest| rest.starts_with('@')).unwrap_or(text).into()
            }
            Some("-") if std::mem::replace(&mut stdin_read, true) => {
                let message = "standard input can be read only once: give only one item as @-";
                return Err(CliError::Wrong(message.to_owned()));
            }
            Some("-") => input::read_stdin(max)?,
            Some(path) => input::read_file(Path::new(path), max)?,
        };
        let no_text = |_| {
            let key = one_line(key);
            CliError::Wrong(format!(
                "item {key} is not UTF-8: store it as base64, which templates can decode"
            ))
        };
        let text = String::from_utf8(bytes).map_err(no_text)?;
        if given.items.insert(key.to_owned(), Secret::new(text)).is_some() {
            return Err(CliError::Wrong(format!("item {} is given twice", one_line(key))));
        }
    }
    Ok(given)
}

/// Read a variable as `ostler var get --json` prints it, or only its items.
fn from_json(text: &[u8], path: &str) -> Result<VariableInput, CliError> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct IndexSpec {
        #[serde(default)]
        modify_index: u64,
    }
    // The wrong part may be a secret, which the error of the parser would contain.
    let wrong = |error: serde_json::Error| {
        CliError::Wrong(format!(
            "standard input is not a variable (line {}, column {}): expected JSON such as \
             {{\"Items\": {{\"name\": \"text\"}}}}",
            error.line(),
            error.column()
        ))
    };
    let spec: IndexSpec = serde_json::from_slice(text).map_err(wrong)?;
    let put: VariablePut = serde_json::from_slice(text).map_err(wrong)?;
    if !put.path.is_empty() && put.path != path {
        let other = one_line(&put.path);
        return Err(CliError::Wrong(format!("standard input is the variable {other}, not {path}")));
    }
    let index = Some(spec.modify_index).filter(|index| *index > 0);
    let namespace = Some(put.namespace).filter(|named| !named.is_empty());
    Ok(VariableInput { items: put.items, index, namespace })
}

async fn get(args: &VarGetArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let place = variable_path(&args.path)?;
    let client = connect::connect(&args.answer.agent)?;
    let request = routes::ReadVariable::request([&place.as_str()]);
    if terminal.json {
        let found = fetch_variable(&client, &request.read_as::<Value>(), &args.path).await?;
        output::print_json(&found, terminal)?;
        return Ok(Exit::Success);
    }
    let found = fetch_variable(&client, &request, &args.path).await?;
    let Some(name) = &args.item else {
        output::print(&text(&found, terminal), terminal)?;
        return Ok(Exit::Success);
    };
    let Some(item) = found.items.get(name) else {
        let known: Vec<_> = found.items.keys().map(|name| one_line(name)).collect();
        return Err(CliError::Wrong(format!(
            "variable {} has no item {}; it has {}",
            args.path,
            one_line(name),
            known.join(", ")
        )));
    };
    output::print(item.reveal(), terminal)?;
    Ok(Exit::Success)
}

async fn fetch_variable<T: serde::de::DeserializeOwned>(
    client: &ApiClient,
    request: &ApiRequest<(), T>,
    path: &str,
) -> Result<T, CliError> {
    client.send(request).await.map_err(|error| {
        if error.is_not_found() {
            CliError::Wrong(format!("there is no variable {path}; `ostler var list` lists them"))
        } else {
            CliError::Client(error)
        }
    })
}

fn text(of: &WireVariable<'_>, terminal: &TerminalInfo) -> String {
    const WIDTH: usize = 10;
    let mut text = String::new();
    fact(&mut text, WIDTH, "Path", &of.path);
    fact(&mut text, WIDTH, "Namespace", &of.namespace);
    fact(&mut text, WIDTH, "Index", &of.modify_index.to_string());
    let now = Clock::system().now();
    fact(&mut text, WIDTH, "Created", &age_text(Timestamp::from_nanos(of.create_time), now));
    fact(&mut text, WIDTH, "Written", &age_text(Timestamp::from_nanos(of.modify_time), now));
    let mut items = String::new();
    for (name, item) in &of.items {
        // Each item is in one line, so that no text of an item can look like another item.
        let _infallible = writeln!(items, "{} = {}", one_line(name), one_line(item.reveal()));
    }
    text + &output::section("Items", &items, terminal)
}

async fn list(args: &VarListArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let prefix = args.prefix.as_deref().unwrap_or_default();
    let client = connect::connect(&args.answer.agent)?;
    let request = connect::in_namespaces(&client, routes::ListVariables::request([]));
    let request = request.with(QueryKey::Prefix, prefix);
    let now = Clock::system().now();
    answer::get(&client, request, |all| list_text(&all, now, terminal), terminal).await
}

fn list_text(all: &[VariableMetadata], now: Timestamp, terminal: &TerminalInfo) -> String {
    if all.is_empty() {
        return "no variables\n".to_owned();
    }
    let rows = all.iter().map(|of| {
        let written = age_text(Timestamp::from_nanos(of.modify_time), now);
        [of.path.to_string(), of.namespace.to_string(), of.modify_index.to_string(), written]
    });
    table(["PATH", "NAMESPACE", "INDEX", "WRITTEN"], rows, terminal)
}

async fn purge(args: &VarPurgeArgs) -> Result<Exit, CliError> {
    let place = variable_path(&args.path)?;
    let request = routes::DeleteVariable::request([&place.as_str()]);
    let request = request.with_some(QueryKey::Cas, args.check_index);
    let client = connect::connect(&args.agent)?;
    let done = client.send_only(&request).await;
    done.map_err(|error| conflict_error(error, &args.path))?;
    say(&format!("variable {} is gone", args.path));
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

    use super::*;

    fn args(items: &[&str]) -> VarPutArgs {
        VarPutArgs {
            path: "a/b".to_owned(),
            items: items.iter().map(|item| (*item).to_owned()).collect(),
            check_index: None,
            force: false,
            json: false,
            agent: super::super::args::client::AddressArgs::default(),
        }
    }

    fn wrong(result: Result<VariableInput, CliError>) -> String {
        match result {
            Err(CliError::Wrong(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn items_are_texts_and_files_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        std::fs::write(&file, "two\nlines\n").unwrap();
        let from = format!("c=@{}", file.display());
        let given = read_items(&args(&["a=x=y", "b=", &from, "d=\\@x", "e=\\x"])).unwrap();
        let shown: Vec<_> =
            given.items.iter().map(|(name, item)| (name.as_str(), item.reveal())).collect();
        assert_eq!(
            shown,
            [("a", "x=y"), ("b", ""), ("c", "two\nlines\n"), ("d", "@x"), ("e", "\\x")]
        );
        assert_eq!(given.index, None);
    }

    #[test]
    fn what_is_no_item_is_refused_without_a_word_of_it() {
        for items in [&["hunter2"][..], &["=hunter2"], &["a=1", "-"], &["a=hunter2", "a=2"]] {
            let message = wrong(read_items(&args(items)));
            assert!(!message.contains("hunter2"), "{message}");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("bytes");
        std::fs::write(&file, [0xff]).unwrap();
        let message = wrong(read_items(&args(&[&format!("a=@{}", file.display())])));
        assert!(message.contains("base64"), "{message}");
    }

    #[test]
    fn json_has_the_items_and_the_index_that_is_checked() {
        let text = r#"{"Path": "a/b", "ModifyIndex": 7, "Items": {"k": "v"}, "CreateTime": 1}"#;
        let given = from_json(text.as_bytes(), "a/b").unwrap();
        assert_eq!((given.index, given.items["k"].reveal()), (Some(7), "v"));
        let given = from_json(br#"{"Items": {"k": "v"}}"#, "a/b").unwrap();
        assert_eq!(given.index, None);
        for bad in [r#"{"Items": {"k": 1}}"#, r#"{"Items": "hunter2"}"#, "hunter2", text] {
            let message = wrong(from_json(bad.as_bytes(), "other"));
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}
