//! Decodes `template` blocks of tasks. A template text that stands in the job is parsed here, so that its mistakes
//! are reported as problems of the job.

use std::time::Duration;

use super::task::signal;
use super::task_path::{TaskPlaces, UNSEEN};
use crate::diagnostic::Span;
use crate::keys::FieldBounds::{Time, Whole};
use crate::keys::{Context, MOST, Setting, Texts, keys, keyword, neutral};
use ostler_model::limits::{TEMPLATE_DELIMITER_BYTES_MAX, TEMPLATE_WAIT_MAX, TEMPLATES_MAX};
use ostler_model::template::{
    ChangeMode, ChangeScript, TEMPLATE_MODE_MAX, TaskTemplate, TemplateSource, TemplateWait,
};
use ostler_template::{Delimiters, Template};

/// Nomad's default of `splay`.
const SPLAY: Duration = Duration::from_secs(5);
/// Nomad's default of `max`, as a multiple of `min`.
const WAIT_FACTOR: u32 = 4;
/// Nomad's default of a script's `timeout`.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest number that `perms` is parsed as: the permission bits, and the three bits before them.
const MODE_MAX: u32 = 0o7777;

keys! {
    struct TemplateKeys: "a template" {
        /// The template itself.
        data / EmbeddedTmpl: Setting<String>, "needed, or `source`";
        /// A file of the task that is the template, such as one that an artifact brought.
        source / SourcePath: Setting<String>, "needed, or `data`";
        /// The file that is made, from the task's directory on: `local/app.conf`.
        destination / DestPath: Setting<String> => (
            "a template needs a destination, such as \"local/app.conf\"",
            "a template needs a DestPath, such as local/app.conf"
        );
        /// What happens when it reads otherwise while the task runs: `restart`, `signal`, `script` or `noop`.
        change_mode / ChangeMode: Setting<ChangeWord> = ChangeWord::Restart;
        /// Of `signal`: which one.
        change_signal / ChangeSignal: Setting<String>, "`SIGHUP`";
        /// Of `script`: a command that runs inside the task.
        change_script / ChangeScript: Option<ScriptKeys>;
        /// A wait of up to this, at random, before the task is told.
        splay / Splay: Setting<Duration> [Time(Duration::ZERO, TEMPLATE_WAIT_MAX)] = SPLAY;
        /// Permission bits of the file, octal.
        perms / Perms: Setting<String>, "`0644`";
        /// Owner of the file, a number.
        uid / Uid: Setting<i64> [Whole(-1, MOST)], "the task's";
        /// Group of the file, a number.
        gid / Gid: Setting<i64> [Whole(-1, MOST)], "the task's";
        /// The file has lines `NAME=value` for the environment of the task.
        env / Envvars: Setting<bool> = false;
        /// Stands before actions.
        left_delimiter / LeftDelim: Setting<String>, "`{{`";
        /// Stands behind actions.
        right_delimiter / RightDelim: Setting<String>, "`}}`";
        /// A key that a map lacks is an error; otherwise it reads `<no value>`.
        error_on_missing_key / ErrMissingKey: Setting<bool> = false;
        /// Changes that come together are rendered once.
        wait / Wait: Option<WaitKeys>;
        /// Does nothing, as in Nomad since 0.11: a warning says so.
        vault_grace / VaultGrace: Setting<Duration>, "none";
    }
    not_yet {
        "once" / Once [neutral("", &["false"])];
    }
}

keys! {
    struct ScriptKeys: "change_script" {
        /// The program, as the task sees it.
        command / Command: Setting<String> => (
            "change_script needs a command", "ChangeScript needs a Command"
        );
        /// Its arguments.
        args / Args: Texts, "none";
        /// It is ended after this.
        timeout / Timeout: Setting<Duration> [Time(Duration::ZERO, TEMPLATE_WAIT_MAX)] = SCRIPT_TIMEOUT;
        /// The task fails when the script does.
        fail_on_error / FailOnError: Setting<bool> = false;
    }
}

keys! {
    struct WaitKeys: "wait" {
        /// Time without another change.
        min / Min: Setting<Duration> [Time(Duration::ZERO, TEMPLATE_WAIT_MAX)], "none";
        /// Longest wait, from the first change on.
        max / Max: Setting<Duration> [Time(Duration::ZERO, TEMPLATE_WAIT_MAX)], "four times `min`";
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeWord {
    Noop,
    Restart,
    Signal,
    Script,
}

keyword! {
    ChangeWord, "change mode":
        "restart" = Restart, "noop" = Noop, "signal" = Signal, "script" = Script;
}

/// Decode the templates of a task that begins at `at`.
pub(super) fn templates(
    all: Vec<TemplateKeys>,
    at: Span,
    places: TaskPlaces<'_>,
    cx: &mut Context<'_>,
) -> Vec<TaskTemplate> {
    if all.len() > TEMPLATES_MAX {
        cx.error(at, format!("a task has at most {TEMPLATES_MAX} templates, not {}", all.len()));
        return Vec::new();
    }
    all.into_iter().filter_map(|keys| template(keys, places, cx)).collect()
}

fn template(
    keys: TemplateKeys,
    places: TaskPlaces<'_>,
    cx: &mut Context<'_>,
) -> Option<TaskTemplate> {
    let at = keys.at;
    if keys.vault_grace.value.is_some_and(|grace| !grace.is_zero()) {
        let message = format!("{} does nothing, as in Nomad; leave it out", keys.vault_grace.key);
        cx.sink.warn(keys.vault_grace.key_at, message);
    }
    let left = delimiter(keys.left_delimiter, "{{", cx);
    let right = delimiter(keys.right_delimiter, "}}", cx);
    let change = change(
        (keys.change_mode, keys.change_signal, keys.change_script),
        keys.env.value == Some(true),
        cx,
    );
    let mode = mode(keys.perms, cx);
    let wait = keys.wait.and_then(|wait| template_wait(wait, cx));
    let source = source(keys.data, keys.source, (left.as_ref()?, right.as_ref()?), at, cx);
    let destination = keys.destination.with_place().and_then(|(path, at)| {
        if path.is_empty() || path.contains('\0') || path.ends_with('/') {
            return cx.refuse(at, "the destination is not a path of a file");
        }
        match places.destination(&path, at, cx) {
            Some((place, _)) if place.is_directory => {
                cx.error(at, "the destination is a directory of the task, not a file in one");
            }
            Some((_, false)) => cx.error(at, UNSEEN),
            _ => {}
        }
        Some(path)
    });
    let id = |given: Setting<i64>| given.value.and_then(|id| u32::try_from(id).ok());
    Some(TaskTemplate {
        source: source?,
        destination: destination?,
        change: change?,
        splay: keys.splay.get(),
        mode: mode?,
        uid: id(keys.uid),
        gid: id(keys.gid),
        env: keys.env.get(),
        left_delimiter: left?,
        right_delimiter: right?,
        error_on_missing_key: keys.error_on_missing_key.get(),
        wait,
    })
}

fn delimiter(given: Setting<String>, usual: &str, cx: &mut Context<'_>) -> Option<String> {
    let key = given.key;
    let Some((text, at)) = given.with_place().filter(|(text, _)| !text.is_empty()) else {
        return Some(usual.to_owned());
    };
    if text.len() > TEMPLATE_DELIMITER_BYTES_MAX || text.contains(char::is_whitespace) {
        let max = TEMPLATE_DELIMITER_BYTES_MAX;
        return cx.refuse(at, format!("{key} must be one word of at most {max} bytes"));
    }
    Some(text)
}

/// Decode the source of a template. A text that stands in the job has to be a valid template.
fn source(
    data: Setting<String>,
    source: Setting<String>,
    (left, right): (&str, &str),
    at: Span,
    cx: &mut Context<'_>,
) -> Option<TemplateSource> {
    let (data_key, source_key) = (cx.name("data", "EmbeddedTmpl"), cx.name("source", "SourcePath"));
    let filled = |given: Setting<String>| given.with_place().filter(|(text, _)| !text.is_empty());
    // A value that cannot be used was reported already.
    let is_unusable = |given: &Setting<String>| given.was_given && given.value.is_none();
    let told = is_unusable(&data) || is_unusable(&source);
    match (filled(data), filled(source)) {
        (Some((text, at)), None) => {
            match Template::parse("template", &text, &Delimiters::new(left, right)) {
                Ok(_) => Some(TemplateSource::Data(text)),
                Err(error) => cx.refuse(at, error.to_string()),
            }
        }
        (None, Some((path, at))) if path.contains('\0') => {
            cx.refuse(at, format!("{source_key} is not a path"))
        }
        (None, Some((path, _))) => Some(TemplateSource::File(path)),
        (Some(_), Some((_, at))) => {
            cx.refuse(at, format!("a template has {data_key} or {source_key}, not both"))
        }
        (None, None) if told => None,
        (None, None) => cx.refuse(at, format!("a template needs {data_key} or {source_key}")),
    }
}

fn mode(perms: Setting<String>, cx: &mut Context<'_>) -> Option<u32> {
    let key = perms.key;
    let Some((text, at)) = perms.with_place().filter(|(text, _)| !text.is_empty()) else {
        return Some(0o644);
    };
    let read = u32::from_str_radix(&text, 8);
    match read.ok().filter(|mode| *mode <= MODE_MAX && !text.starts_with('+')) {
        Some(mode) if mode > TEMPLATE_MODE_MAX => cx.refuse(
            at,
            format!(
                "{key} may not hold set-user-id, set-group-id or sticky bits: a template is not a program that \
                 runs as another user; write \"{:04o}\"",
                mode & TEMPLATE_MODE_MAX
            ),
        ),
        Some(mode) => Some(mode),
        None => cx.refuse(at, format!("{key} must be an octal number such as \"0644\"")),
    }
}

type ChangeParts = (Setting<ChangeWord>, Setting<String>, Option<ScriptKeys>);

fn change(
    (word, signal_name, script): ChangeParts,
    env: bool,
    cx: &mut Context<'_>,
) -> Option<ChangeMode> {
    let (mode_key, at) = (word.key, word.at);
    let word = word.value?;
    let (signal_key, script_key) =
        (cx.name("change_signal", "ChangeSignal"), cx.name("change_script", "ChangeScript"));
    if word != ChangeWord::Signal
        && let Some(given) = signal_name.place()
    {
        cx.sink.warn(given, no_effect_message(signal_key, mode_key, "signal"));
    }
    if word != ChangeWord::Script
        && let Some(script) = &script
    {
        cx.sink.warn(script.at, no_effect_message(script_key, mode_key, "script"));
    }
    match word {
        ChangeWord::Noop => Some(ChangeMode::Noop),
        ChangeWord::Restart => Some(ChangeMode::Restart),
        ChangeWord::Signal if env => cx.refuse(
            at,
            "a running task does not read its environment again: with env the change mode is \
             restart, script or noop",
        ),
        ChangeWord::Signal => match signal_name.with_place().filter(|(name, _)| !name.is_empty()) {
            None => Some(ChangeMode::Signal("SIGHUP".to_owned())),
            Some((name, at)) => signal((name.to_ascii_uppercase(), at), cx).map(ChangeMode::Signal),
        },
        ChangeWord::Script => {
            let Some(script) = script else {
                return cx.refuse(at, format!("{mode_key} = \"script\" needs a {script_key}"));
            };
            let args = script.args.plain().unwrap_or_default();
            Some(ChangeMode::Script(ChangeScript {
                command: script.command.non_empty(cx)?,
                args,
                timeout: script.timeout.get(),
                fail_on_error: script.fail_on_error.get(),
            }))
        }
    }
}

/// The message about a key that belongs to another change mode.
fn no_effect_message(key: &str, mode_key: &str, mode: &str) -> String {
    format!("{key} has no effect unless {mode_key} is \"{mode}\"")
}

fn template_wait(keys: WaitKeys, cx: &mut Context<'_>) -> Option<TemplateWait> {
    let (at, key) = (keys.max.at, keys.max.key);
    let min = keys.min.value.unwrap_or_default();
    let max = keys.max.value.unwrap_or(min.saturating_mul(WAIT_FACTOR));
    if max < min {
        return cx.refuse(at, format!("{key} of wait is shorter than its min"));
    }
    Some(TemplateWait { min, max }).filter(|wait| !wait.max.is_zero())
}

/// The keys that describe a template.
pub(crate) fn keys(template: &TaskTemplate) -> TemplateKeys {
    let (data, source) = match &template.source {
        TemplateSource::Data(text) => (Some(text.clone()), None),
        TemplateSource::File(path) => (None, Some(path.clone())),
    };
    let (word, signal, script) = match &template.change {
        ChangeMode::Noop => (ChangeWord::Noop, None, None),
        ChangeMode::Restart => (ChangeWord::Restart, None, None),
        ChangeMode::Signal(name) => (ChangeWord::Signal, Some(name.clone()), None),
        ChangeMode::Script(script) => (ChangeWord::Script, None, Some(script)),
    };
    TemplateKeys {
        data: data.into(),
        source: source.into(),
        destination: template.destination.clone().into(),
        change_mode: word.into(),
        change_signal: signal.into(),
        change_script: script.map(script_keys),
        splay: template.splay.into(),
        perms: format!("{:04o}", template.mode).into(),
        uid: template.uid.map(i64::from).into(),
        gid: template.gid.map(i64::from).into(),
        env: template.env.into(),
        left_delimiter: template.left_delimiter.clone().into(),
        right_delimiter: template.right_delimiter.clone().into(),
        error_on_missing_key: template.error_on_missing_key.into(),
        wait: template.wait.map(|wait| WaitKeys {
            min: wait.min.into(),
            max: wait.max.into(),
            ..WaitKeys::default()
        }),
        vault_grace: Duration::ZERO.into(),
        ..TemplateKeys::default()
    }
}

fn script_keys(script: &ChangeScript) -> ScriptKeys {
    let args: Vec<_> = script.args.iter().map(|arg| (arg.clone(), Span::default())).collect();
    ScriptKeys {
        command: script.command.clone().into(),
        args: args.into(),
        timeout: script.timeout.into(),
        fail_on_error: script.fail_on_error.into(),
        ..ScriptKeys::default()
    }
}
