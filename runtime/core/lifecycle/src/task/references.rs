//! Lists all texts of a task in which references are replaced, to report those that nobody knows
//! ([`super::interpolate`] has the rule). The table of docs/job-language.md has the same keys.

use super::env::TaskEnv;
use super::interpolate::{UnknownReference, strings_of};
use ostler_model::job::{Check, CheckKind, Service, Task};
use ostler_model::template::{ChangeMode, TaskTemplate, TemplateSource};

/// The key of a text in the job file, and the text.
type Text<'j> = (&'static str, &'j str);

/// The unknown references in the texts of a task, each once.
pub fn unknown_of_task(task: &Task, env: &TaskEnv) -> Vec<UnknownReference> {
    let mut unknown = env.unknown.clone();
    for one in env.unknown_in(texts_of(task).into_iter().map(|(_, text)| text)) {
        if !unknown.iter().any(|known| known.reference == one.reference) {
            unknown.push(one);
        }
    }
    unknown
}

/// The unknown references in the texts of a service and its checks, each once.
pub fn unknown_of_service(service: &Service, env: &TaskEnv) -> Vec<UnknownReference> {
    env.unknown_in(texts_of_service(service).into_iter().map(|(_, text)| text))
}

/// The texts that are replaced before a start, except `env` and `meta`, which may refer to less.
fn texts_of(task: &Task) -> Vec<Text<'_>> {
    let mut texts: Vec<Text<'_>> =
        strings_of(&task.config).into_iter().map(|text| ("config", text)).collect();
    texts.extend(task.user.as_deref().map(|user| ("user", user)));
    let mounts = task.volume_mounts.iter();
    texts.extend(mounts.map(|mount| ("volume_mount.destination", mount.destination.as_str())));
    for artifact in &task.artifacts {
        texts.push(("artifact.source", &artifact.source));
        texts.push(("artifact.destination", &artifact.destination));
        texts.extend(artifact.options.values().map(|value| ("artifact.options", value.as_str())));
        texts.extend(artifact.headers.values().map(|value| ("artifact.headers", value.as_str())));
    }
    texts.extend(task.templates.iter().flat_map(texts_of_template));
    texts
}

/// The texts of a template. References in the template itself are not replaced.
fn texts_of_template(template: &TaskTemplate) -> Vec<Text<'_>> {
    let mut texts = vec![("template.destination", template.destination.as_str())];
    if let TemplateSource::File(path) = &template.source {
        texts.push(("template.source", path));
    }
    if let ChangeMode::Script(script) = &template.change {
        texts.push(("change_script.command", &script.command));
        texts.extend(script.args.iter().map(|arg| ("change_script.args", arg.as_str())));
    }
    texts
}

fn texts_of_service(service: &Service) -> Vec<Text<'_>> {
    let mut texts = vec![("service.name", service.name.as_str())];
    texts.extend(service.port.as_deref().map(|port| ("service.port", port)));
    texts.extend(service.address.as_deref().map(|address| ("service.address", address)));
    texts.extend(service.tags.iter().map(|tag| ("service.tags", tag.as_str())));
    let meta = service.meta.iter().flat_map(|(key, value)| [key, value]);
    texts.extend(meta.map(|text| ("service.meta", text.as_str())));
    texts.extend(service.canary_tags.iter().map(|tag| ("service.canary_tags", tag.as_str())));
    let meta = service.canary_meta.iter().flat_map(|(key, value)| [key, value]);
    texts.extend(meta.map(|text| ("service.canary_meta", text.as_str())));
    texts.extend(service.checks.iter().flat_map(texts_of_check));
    texts
}

fn texts_of_check(check: &Check) -> Vec<Text<'_>> {
    let mut texts: Vec<Text<'_>> =
        check.port.as_deref().into_iter().map(|port| ("check.port", port)).collect();
    match &check.kind {
        CheckKind::Tcp => {}
        CheckKind::Http(http) => {
            texts.extend([("check.path", http.path.as_str()), ("check.body", &http.body)]);
            for (name, values) in &http.headers {
                texts.extend(
                    std::iter::once(name).chain(values).map(|text| ("check.header", text.as_str())),
                );
            }
        }
        CheckKind::Grpc { service, .. } => texts.push(("check.grpc_service", service)),
        CheckKind::Script { command, args } => {
            texts.push(("check.command", command));
            texts.extend(args.iter().map(|arg| ("check.args", arg.as_str())));
        }
    }
    texts
}

#[cfg(test)]
#[path = "references_tests.rs"]
mod tests;
