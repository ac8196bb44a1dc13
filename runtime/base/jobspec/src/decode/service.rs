//! Decodes `service` blocks of groups and tasks. Their checks are in [`super::check`].

use std::collections::{BTreeMap, BTreeSet};

use super::check::{self, CheckKeys, CheckRestartKeys};
use crate::diagnostic::{Span, quote_text};
use crate::keys::{
    Context, FieldShape, IgnoredValues, MESH, Setting, Texts, hint, keys, left_out, neutral,
};
use ostler_model::ids::TaskName;
use ostler_model::job::{AddressMode, NetworkSpec, OnUpdate, Service};
use ostler_model::limits::{
    SERVICE_ADDRESS_BYTES_MAX, SERVICE_NAME_BYTES_MAX, SERVICE_WORD_BYTES_MAX, SERVICE_WORDS_MAX,
};
use ostler_model::network::NetworkMode;

const CONSUL: &str = "it belongs to services that Consul keeps";

static OVERRIDE: IgnoredValues = IgnoredValues {
    values: &["true"],
    instead: "only the job can change the tags of a service",
    in_json: true,
};

keys! {
    struct ServiceKeys: "a service" {
        /// Letters, digits, dashes and `${…}`.
        name / Name: Setting<String>, "`JOB-GROUP`, in a task `JOB-GROUP-TASK`";
        /// Label of a port of the group's network, or the number of a port.
        port / PortLabel: Setting<String>, "none";
        /// Which address it is reached at: the driver's where the task has one, else the node's
        /// (`auto`), the node's (`host`), that of the allocation's own network (`alloc`), or the driver's
        /// (`driver`).
        address_mode / AddressMode: Setting<AddressMode> = AddressMode::Auto;
        /// An address of its own, with `address_mode` auto.
        address / Address: Setting<String>, "that of `address_mode`";
        /// For those who look for it.
        tags / Tags: Texts, "none";
        /// In place of `tags` while the allocation is a canary.
        canary_tags / CanaryTags: Texts, "`tags`";
        /// For those who look for it.
        meta / Meta: BTreeMap<String, String>;
        /// In place of `meta` while the allocation is a canary.
        canary_meta / CanaryMeta: BTreeMap<String, String>;
        /// Who keeps the list of services: `nomad`, which is the agent.
        provider / Provider: Setting<String>, "`nomad`";
        /// Of a service of the group: the task that stands for it, where its scripts run.
        task / TaskName: Setting<String>, "the task it stands in; of a group's: none";
        /// What a deployment asks of its checks: that they pass, that they are not critical
        /// (`ignore_warnings`), or nothing (`ignore`).
        on_update / OnUpdate: Setting<OnUpdate> = OnUpdate::RequireHealthy;
        /// When its checks restart the task, unless they say it themselves.
        check_restart / CheckRestart: Option<CheckRestartKeys>;
        /// What is asked to find out whether it works.
        checks "check" / Checks: Vec<CheckKeys>;
    }
    not_yet {
        "enable_tag_override" / EnableTagOverride [
            FieldShape::Unsupported {
                hint: "",
                neutral: &["false"],
                missed: Some(&OVERRIDE),
                left_out: false,
                is_said_by_being_there: false,
            }
        ] => false;
        "cluster" / Cluster [neutral(CONSUL, &["default"])];
        "namespace" / Namespace [neutral("a service is in the namespace of its job", &["default"])];
        "connect" / Connect [left_out(MESH)] => null; "kind" / Kind [left_out(MESH)];
        "identity" / Identity [hint(CONSUL)]; "tagged_addresses" / TaggedAddresses [hint(CONSUL)];
        "weights" / Weights [hint(CONSUL)];
        "id" / Id [hint("the agent gives services their ids")] => "";
    }
}

/// The job, the group and the task that services belong to.
#[derive(Clone, Copy)]
pub(super) struct ServiceScope<'a> {
    /// The job's id; absent when it is wrong.
    pub job: Option<&'a str>,
    /// The group's name; absent when it is wrong.
    pub group: Option<&'a str>,
    /// The group's network.
    pub network: Option<&'a NetworkSpec>,
    /// The task that the services belong to; absent for services of the whole group.
    pub task: Option<&'a TaskName>,
    /// The names of the group's tasks.
    pub tasks: &'a [String],
}

impl ServiceScope<'_> {
    /// The name of a service that gives none.
    fn default_name(&self) -> Option<String> {
        let (job, group) = (self.job?, self.group?);
        Some(match self.task {
            None => format!("{job}-{group}"),
            Some(task) => format!("{job}-{group}-{task}"),
        })
    }

    /// Check a port: it has to be a label of the group's ports, a number, or have references.
    pub(super) fn check_port(&self, given: &Setting<String>, cx: &mut Context<'_>) {
        let Some(port) = &given.value else { return };
        let ports = || self.network.iter().flat_map(|network| &network.ports);
        if ports().any(|known| known.label == *port) || port.contains("${") {
            return;
        }
        if !port.is_empty() && port.chars().all(|c| c.is_ascii_digit()) {
            if !matches!(port.parse::<u16>(), Ok(1..)) {
                cx.error(given.at, format!("{port} is not a port; ports are 1 to 65535"));
            }
            return;
        }
        let instead = cx.sink.nearest(port, ports().map(|port| port.label.as_str()));
        let message = format!(
            "the group's network has no port {}; give a label from there, or a number",
            quote_text(port)
        );
        cx.sink.suggest(given.at, message, instead);
    }

    /// Check that a service of this scope can have an address of this mode.
    pub(super) fn check_mode(&self, given: &Setting<AddressMode>, cx: &mut Context<'_>) {
        match given.value {
            Some(AddressMode::Alloc) if self.task.is_some() => {
                cx.error(given.at, "alloc is only for services of a group; use host or driver");
            }
            Some(AddressMode::Alloc) if !self.has_own_network() => {
                let message = "alloc needs a network that the allocation has for itself, and its \
                               group shares that of the node; use host";
                cx.error(given.at, message);
            }
            Some(AddressMode::Driver) if self.task.is_none() => {
                cx.error(given.at, "driver is only for services of a task; use host or alloc");
            }
            Some(AddressMode::Driver) => {
                let message = "only a driver that gives tasks a network has an address; without one \
                               the service is not listed, and its checks fail";
                cx.sink.warn(given.at, message);
            }
            _ => {}
        }
    }

    /// Whether allocations have a network of their own, not the node's.
    fn has_own_network(&self) -> bool {
        self.network.is_some_and(|network| {
            matches!(network.mode, NetworkMode::Bridge | NetworkMode::Cni(_))
        })
    }

    /// The task of the group with this name; another name is reported.
    pub(super) fn find_task(
        &self,
        name: String,
        at: Span,
        cx: &mut Context<'_>,
    ) -> Option<TaskName> {
        if !self.tasks.contains(&name) {
            let instead = cx.sink.nearest(&name, self.tasks.iter().map(String::as_str));
            let message = format!("the group has no task {}", quote_text(&name));
            cx.sink.suggest(at, message, instead);
            return None;
        }
        TaskName::new(name).ok()
    }

    /// Replace `${JOB}` and similar references in a text, as Nomad does when a job is registered.
    fn with_names(&self, text: String) -> String {
        let (Some(job), Some(group)) = (self.job, self.group) else { return text };
        let task = self.task.map_or("group", TaskName::as_str);
        let base = format!("{job}-{group}-{task}");
        let names =
            [("${JOB}", job), ("${TASKGROUP}", group), ("${TASK}", task), ("${BASE}", &base)];
        names.iter().fold(text, |text, (name, value)| text.replace(name, value))
    }
}

/// Decode the services of a group, or of one of its tasks.
pub(super) fn services(
    blocks: Vec<ServiceKeys>,
    scope: ServiceScope<'_>,
    cx: &mut Context<'_>,
) -> Vec<Service> {
    let mut names = BTreeSet::new();
    let mut services = Vec::with_capacity(blocks.len());
    for keys in blocks {
        let at = keys.name.at;
        let Some(service) = service(keys, scope, cx) else { continue };
        if !names.insert((service.name.clone(), service.port.clone())) {
            let name = quote_text(&service.name);
            let message = format!(
                "a service {name} with this port is already defined; give this one another name or port"
            );
            cx.error(at, message);
        }
        services.push(service);
    }
    services
}

fn service(keys: ServiceKeys, scope: ServiceScope<'_>, cx: &mut Context<'_>) -> Option<Service> {
    check_provider(&keys, cx);
    let name = service_name(keys.name, scope, cx);
    scope.check_port(&keys.port, cx);
    scope.check_mode(&keys.address_mode, cx);
    check_words(&keys.tags, &keys.meta, keys.at, cx);
    check_words(&keys.canary_tags, &keys.canary_meta, keys.at, cx);
    check_address(&keys.address, keys.address_mode.value, cx);
    let runs_in = match (keys.task.with_place(), scope.task) {
        (None, _) => None,
        (Some((name, at)), None) => scope.find_task(name, at, cx),
        (Some((name, at)), Some(task)) => {
            if task.as_str() != name {
                let message = "a service in a task is of that task; put it into the group to name \
                               another";
                cx.error(at, message);
            }
            None
        }
    };
    let name = name?;
    let of = check::CheckScope {
        service: &name,
        has_port: keys.port.value.is_some(),
        runs_in: runs_in.as_ref(),
        restart: keys.check_restart.as_ref(),
        on_update: keys.on_update.value.unwrap_or_default(),
    };
    let checks = check::checks(keys.checks, of, scope, cx);
    Some(Service {
        name,
        port: keys.port.value,
        task: scope.task.cloned(),
        runs_in,
        tags: keys.tags.plain().unwrap_or_default(),
        canary_tags: keys.canary_tags.plain().unwrap_or_default(),
        meta: keys.meta,
        canary_meta: keys.canary_meta,
        address_mode: keys.address_mode.get(),
        address: keys.address.value,
        checks,
    })
}

/// Check the tags and the meta of a service: they are bounded, because they are stored for as long as it runs.
fn check_words(tags: &Texts, meta: &BTreeMap<String, String>, at: Span, cx: &mut Context<'_>) {
    let long =
        |text: &str| text.len() > SERVICE_WORD_BYTES_MAX || text.chars().any(char::is_control);
    tags.check(cx, |tag| {
        long(tag).then(|| {
            format!("a tag has at most {SERVICE_WORD_BYTES_MAX} bytes and no control characters")
        })
    });
    if tags.value.as_ref().is_some_and(|tags| tags.len() > SERVICE_WORDS_MAX) {
        cx.error(tags.at, format!("a service has at most {SERVICE_WORDS_MAX} tags"));
    }
    if meta.len() > SERVICE_WORDS_MAX || meta.iter().any(|(key, text)| long(key) || long(text)) {
        let message = format!(
            "the meta of a service has at most {SERVICE_WORDS_MAX} pairs with names and texts of \
             {SERVICE_WORD_BYTES_MAX} bytes and no control characters"
        );
        cx.error(at, message);
    }
}

/// Check an address that a service gives itself. It overrides the address of every mode, so no mode
/// may be given.
fn check_address(given: &Setting<String>, mode: Option<AddressMode>, cx: &mut Context<'_>) {
    let Some((address, at)) = given.clone().with_place() else { return };
    if !matches!(mode, None | Some(AddressMode::Auto)) {
        cx.error(at, "a service with an address of its own has address_mode auto");
    }
    let odd = |c: char| c.is_control() || c.is_whitespace();
    if address.len() > SERVICE_ADDRESS_BYTES_MAX || address.chars().any(odd) {
        let message = format!("an address has at most {SERVICE_ADDRESS_BYTES_MAX} bytes, no space");
        cx.error(at, message);
    }
}

/// The name of a service: the given one, or one that is made of job, group and task.
fn service_name(
    given: Setting<String>,
    scope: ServiceScope<'_>,
    cx: &mut Context<'_>,
) -> Option<String> {
    let name = match given.value {
        None if given.was_given => return None,
        name => name.map(|name| scope.with_names(name)).or_else(|| scope.default_name())?,
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let fixed = without_references(&name);
    if name.is_empty() || fixed.len() > SERVICE_NAME_BYTES_MAX || !fixed.chars().all(allowed) {
        let message = format!(
            "service name {} must have 1 to {SERVICE_NAME_BYTES_MAX} letters, digits and dashes",
            quote_text(&name)
        );
        return cx.refuse(given.at, message);
    }
    Some(name)
}

/// The text without its references `${…}`, which are replaced later.
pub(super) fn without_references(text: &str) -> String {
    let mut fixed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        fixed.push_str(before);
        rest = after.split_once('}').map_or("", |(_, after)| after);
    }
    fixed + rest
}

/// In Nomad a service that names nobody is Consul's, and whoever wrote it may look for it there.
fn check_provider(keys: &ServiceKeys, cx: &mut Context<'_>) {
    let Some((provider, at)) = keys.provider.clone().with_place() else {
        if !keys.provider.was_given {
            let message = cx.name(
                "a service without provider is one of Consul in Nomad; here it is listed by this node \
                 alone; write provider = \"nomad\" to say so",
                "a service without Provider is one of Consul in Nomad; here it is listed by this node \
                 alone; set it to nomad to say so",
            );
            cx.sink.warn(keys.at, message);
        }
        return;
    };
    if provider == "nomad" {
        return;
    }
    if provider == "consul" {
        let message = cx.name(
            "provider consul needs a Consul agent, and this agent uses none; write provider = \
             \"nomad\", and the agent keeps the service itself",
            "Provider consul needs a Consul agent, and this agent uses none; write nomad, and the \
             agent keeps the service itself",
        );
        cx.error(at, message);
        return;
    }
    let instead = cx.sink.nearest(&provider, ["nomad"]);
    cx.sink.suggest(
        at,
        format!("{} is not a provider; write nomad", quote_text(&provider)),
        instead,
    );
}
