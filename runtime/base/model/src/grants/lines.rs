//! Grants as text of the configuration, which an operator pastes to add a grant. Pure.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::{ANY_MORE, Authority, CommandGrant, FileGrant, GrantAddition, Grants};
use crate::config::{AnswerGrants, NodeGrant};
use crate::isolation::IsolationGrant;

/// Placeholder for a directory that only the operator knows.
const EXAMPLE_DIR: &str = "/path/it/needs";
const EXAMPLE_PROGRAM: &str = "/usr/bin/program";
const EXAMPLE_PLACE: &str = "192.0.2.1:443";

/// The plugin's block of the configuration, with the existing grants and the added ones. The
/// existing grants are needed because a block replaces the built-in grants as a whole. Empty when
/// there is nothing to write.
#[must_use]
pub fn grant_lines(plugin: &str, granted: &Grants, added: &[GrantAddition]) -> String {
    let mut grants = granted.clone();
    let mut asked = false;
    for one in added {
        asked |= add(&mut grants, one);
    }
    if !asked {
        return String::new();
    }
    block_lines(plugin, &grants)
}

/// The plugin's block of the configuration with these grants.
#[must_use]
pub fn block_lines(plugin: &str, grants: &Grants) -> String {
    format!("plugin {} {{\n  grants {{\n{}  }}\n}}\n", quote_text(plugin), body(grants))
}

/// Add a grant. Returns `false` when the configuration has none of this kind.
fn add(grants: &mut Grants, added: &GrantAddition) -> bool {
    match added {
        GrantAddition::Ask(Authority::Files) => {
            grants.files.push(FileGrant { path: EXAMPLE_DIR.into(), write: false });
        }
        GrantAddition::Ask(Authority::Command) => grants.commands.push(CommandGrant {
            program: EXAMPLE_PROGRAM.into(),
            args: vec![vec!["--query".to_owned(), "*".to_owned()]],
        }),
        GrantAddition::Ask(Authority::Process) => grants.process = true,
        GrantAddition::Ask(Authority::WasmTask) => grants.wasm_task = true,
        GrantAddition::Ask(Authority::Network) => grants.connect.extend(EXAMPLE_PLACE.parse()),
        GrantAddition::Ask(_) => return false,
        GrantAddition::Command { program, args } => add_command(grants, program, args),
        GrantAddition::User(user) => grants.users.push(user.clone()),
        GrantAddition::Program(program) => {
            push_once(grants.programs.get_or_insert_default(), program)
        }
        GrantAddition::Dir(dir) => push_once(&mut grants.dirs, dir),
        GrantAddition::Without(parts) => {
            let isolation = grants.isolation.get_or_insert_default();
            isolation.without.extend(parts.iter().copied());
        }
        GrantAddition::MountOf(path) => {
            push_once(&mut grants.isolation.get_or_insert_default().mounts, path)
        }
        GrantAddition::Capability(name) => {
            push_once(&mut grants.isolation.get_or_insert_default().capabilities, name);
        }
        answer => add_answer(&mut grants.answers, answer),
    }
    true
}

fn add_answer(answers: &mut AnswerGrants, added: &GrantAddition) {
    match added {
        GrantAddition::Mount { path, write } => {
            let mounts = answers.mounts.get_or_insert_default();
            match mounts.iter_mut().find(|grant| grant.path.as_path() == std::path::Path::new(path))
            {
                Some(grant) => grant.write |= write,
                None => mounts.push(FileGrant { path: path.into(), write: *write }),
            }
        }
        GrantAddition::Node { path, permissions } => {
            let nodes = answers.device_nodes.get_or_insert_default();
            match nodes.iter_mut().find(|grant| grant.path == *path) {
                Some(grant) => {
                    let missing = permissions.chars().filter(|c| !grant.permissions.contains(*c));
                    let missing: String = missing.collect();
                    grant.permissions.push_str(&missing);
                }
                None => {
                    nodes.push(NodeGrant { path: path.clone(), permissions: permissions.clone() })
                }
            }
        }
        GrantAddition::TaskEnv(name) => push_once(answers.task_env.get_or_insert_default(), name),
        GrantAddition::Group(pattern) => push_once(answers.groups.get_or_insert_default(), pattern),
        GrantAddition::Driver(name) => answers.driver = Some(name.clone()),
        GrantAddition::Attribute(name) => {
            push_once(answers.attributes.get_or_insert_default(), name)
        }
        _ => {}
    }
}

fn push_once(list: &mut Vec<String>, text: &str) {
    if !list.iter().any(|known| known == text) {
        list.push(text.to_owned());
    }
}

/// Add arguments to the program's block, because a second block of the program would be refused.
fn add_command(grants: &mut Grants, program: &str, args: &[String]) {
    let known = grants.commands.iter_mut().find(|grant| {
        grant.program.as_path() == std::path::Path::new(program)
            || grant.program.file_name().is_some_and(|name| name == program)
    });
    match known {
        Some(grant) => grant.args.push(args.to_vec()),
        None => {
            let full = if program.starts_with('/') {
                program.to_owned()
            } else {
                format!("/usr/bin/{program}")
            };
            grants.commands.push(CommandGrant { program: full.into(), args: vec![args.to_vec()] });
        }
    }
}

fn body(grants: &Grants) -> String {
    let Grants {
        files,
        commands,
        process,
        isolation,
        users,
        programs,
        dirs,
        wasm_task,
        connect,
        env,
        deny,
        answers,
    } = grants;
    let mut text = String::new();
    paths("files", files, &mut text);
    for CommandGrant { program, args } in commands {
        let lists: Vec<String> = args.iter().map(|list| texts(list)).collect();
        let program = quote_text(&program.to_string_lossy());
        let _ = writeln!(text, "    command {program} {{ args = [{}] }}", lists.join(", "));
    }
    if *process {
        text.push_str("    process = true\n");
    }
    if let Some(isolation) = isolation {
        text.push_str(&isolation_block(isolation));
    }
    if !users.is_empty() {
        let _ = writeln!(text, "    users = {}", texts(users));
    }
    if let Some(programs) = programs {
        let _ = writeln!(text, "    programs = {}", texts(programs));
    }
    list("dirs", dirs, &mut text);
    if *wasm_task {
        text.push_str("    wasm_task = true\n");
    }
    if !connect.is_empty() {
        let places: Vec<String> = connect.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "    connect = {}", texts(&places));
    }
    list("env", env, &mut text);
    list("deny", deny, &mut text);
    answers_body(answers, &mut text);
    text
}

fn answers_body(answers: &AnswerGrants, text: &mut String) {
    let AnswerGrants { mounts, device_nodes, task_env, groups, driver, attributes } = answers;
    paths("mounts", mounts.as_deref().unwrap_or_default(), text);
    for NodeGrant { path, permissions } in device_nodes.iter().flatten() {
        let (path, permissions) = (quote_text(path), quote_text(permissions));
        let _ = writeln!(text, "    device_nodes {path} {{ permissions = {permissions} }}");
    }
    for (name, given) in [("task_env", task_env), ("groups", groups)] {
        list(name, given.as_deref().unwrap_or_default(), text);
    }
    if let Some(driver) = driver {
        let _ = writeln!(text, "    driver = {}", quote_text(driver));
    }
    if let Some(attributes) = attributes {
        let _ = writeln!(text, "    attributes = {}", texts(attributes));
    }
}

fn paths(name: &str, grants: &[FileGrant], text: &mut String) {
    for FileGrant { path, write } in grants {
        let path = quote_text(&path.to_string_lossy());
        let _ = writeln!(text, "    {name} {path} {{ write = {write} }}");
    }
}

fn list(name: &str, given: &[String], text: &mut String) {
    if !given.is_empty() {
        let _ = writeln!(text, "    {name} = {}", texts(given));
    }
}

fn isolation_block(grant: &IsolationGrant) -> String {
    let IsolationGrant { without, base, hidden, mounts, capabilities, user, processes_max } = grant;
    let paths = |list: &[PathBuf]| {
        let list: Vec<String> = list.iter().map(|path| path.display().to_string()).collect();
        texts(&list)
    };
    let mut lines = Vec::new();
    if !without.is_empty() {
        let words: Vec<String> = without.iter().map(|part| part.word().to_owned()).collect();
        lines.push(format!("without = {}", texts(&words)));
    }
    lines.extend(base.as_ref().map(|base| format!("base = {}", paths(base))));
    for (name, list) in [("hidden", paths(hidden)), ("mounts", texts(mounts))] {
        if list != "[]" {
            lines.push(format!("{name} = {list}"));
        }
    }
    if !capabilities.is_empty() {
        lines.push(format!("capabilities = {}", texts(capabilities)));
    }
    lines.extend(user.as_ref().map(|user| format!("user = {}", quote_text(user))));
    lines.extend(processes_max.map(|most| format!("processes_max = {most}")));
    if lines.is_empty() {
        "    isolation {}\n".to_owned()
    } else {
        let lines: String = lines.iter().map(|line| format!("      {line}\n")).collect();
        format!("    isolation {{\n{lines}    }}\n")
    }
}

fn texts(list: &[String]) -> String {
    let quoted: Vec<String> = list.iter().map(|text| quote_text(text)).collect();
    format!("[{}]", quoted.join(", "))
}

/// A text in quotes, as the language of the configuration has it.
fn quote_text(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted.replace("${", "$${").replace("%{", "%%{")
}

/// The grants of an authority in a few words: `files(/sys, /run/x rw)`. Empty when there are none.
#[must_use]
pub fn granted_words(grants: &Grants, authority: Authority) -> String {
    let word = authority.word();
    match authority {
        Authority::Files => word_with_list(word, grants.files.iter().map(path_words)),
        Authority::Command => word_with_list(
            word,
            grants.commands.iter().map(|grant| {
                let any = grant.args.iter().any(|list| list.first().is_some_and(|a| a == ANY_MORE));
                format!("{}{}", grant.program.display(), if any { " …" } else { "" })
            }),
        ),
        Authority::Process if grants.process => {
            let users = grants.users.iter().map(|user| format!("as {user}"));
            let dirs = grants.dirs.iter().map(|dir| format!("in {dir}"));
            let programs = grants.programs.iter().flatten().cloned();
            let isolated = grants.isolation.iter().map(isolated_words);
            match word_with_list(word, isolated.chain(programs).chain(users).chain(dirs)) {
                narrowed if narrowed.is_empty() => word.to_owned(),
                narrowed => narrowed,
            }
        }
        Authority::WasmTask if grants.wasm_task => word.to_owned(),
        Authority::Network => word_with_list(word, grants.connect.iter().map(ToString::to_string)),
        _ => String::new(),
    }
}

/// What answers may cause beyond the plugin's own names, and what is denied, in a few words each.
#[must_use]
pub fn answer_words(grants: &Grants) -> Vec<String> {
    let AnswerGrants { mounts, device_nodes, task_env, groups, driver, attributes } =
        &grants.answers;
    let node = |grant: &NodeGrant| format!("{} {}", grant.path, grant.permissions);
    let words = [
        word_with_list("mounts", mounts.iter().flatten().map(path_words)),
        word_with_list("device_nodes", device_nodes.iter().flatten().map(node)),
        word_with_list("task_env", task_env.iter().flatten().cloned()),
        word_with_list("groups", groups.iter().flatten().cloned()),
        word_with_list("driver", driver.iter().cloned()),
        word_with_list("attributes", attributes.iter().flatten().cloned()),
        word_with_list("deny", grants.deny.iter().cloned()),
    ];
    words.into_iter().filter(|words| !words.is_empty()).collect()
}

fn path_words(grant: &FileGrant) -> String {
    format!("{}{}", grant.path.display(), if grant.write { " rw" } else { "" })
}

fn word_with_list(word: &str, items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { String::new() } else { format!("{word}({})", items.join(", ")) }
}

fn isolated_words(grant: &IsolationGrant) -> String {
    let demanded = grant.required_parts();
    match (demanded.is_empty(), grant.without.is_empty()) {
        (true, _) => "isolated as far as possible".to_owned(),
        (false, true) => "isolated".to_owned(),
        (false, false) => {
            let words: Vec<&str> = grant.without.iter().map(|part| part.word()).collect();
            format!("isolated without {}", words.join(" "))
        }
    }
}
