//! Writes services and checks in the form of Nomad's API.

use super::{label, spanned_texts};
use crate::decode::check::{CheckKeys, CheckRestartKeys, CheckType, Protocol};
use crate::decode::service::ServiceKeys;
use crate::keys::TextListMap;
use ostler_model::job::{Check, CheckKind, CheckRestart, CheckTls, OnUpdate, Service};

pub(super) fn service(service: &Service) -> ServiceKeys {
    let of = service.runs_in.as_ref().or(service.task.as_ref());
    ServiceKeys {
        name: service.name.clone().into(),
        port: service.port.clone().into(),
        address_mode: service.address_mode.into(),
        address: service.address.clone().into(),
        tags: texts(&service.tags),
        canary_tags: texts(&service.canary_tags),
        meta: service.meta.clone(),
        canary_meta: service.canary_meta.clone(),
        task: of.map(ToString::to_string).into(),
        provider: "nomad".to_owned().into(),
        on_update: OnUpdate::RequireHealthy.into(),
        checks: service.checks.iter().map(check).collect(),
        ..ServiceKeys::default()
    }
}

/// Texts as the value of a key. An empty list is left out, as Nomad does.
fn texts(texts: &[String]) -> crate::keys::Texts {
    Some(spanned_texts(texts)).filter(|texts| !texts.is_empty()).into()
}

fn check(check: &Check) -> CheckKeys {
    let keys = CheckKeys {
        name: check.name.clone().into(),
        port: check.port.clone().into(),
        address_mode: check.address_mode.into(),
        interval: check.interval.into(),
        timeout: check.timeout.into(),
        initial_status: Some(check.initial).filter(|s| *s != Default::default()).into(),
        success_before_passing: check.success_before_passing.into(),
        failures_before_critical: check.failures_before_critical.into(),
        failures_before_warning: check.failures_before_warning.into(),
        check_restart: check.restart.map(restart),
        on_update: check.on_update.into(),
        task: check.task.as_ref().map(ToString::to_string).into(),
        tls_skip_verify: false.into(),
        grpc_use_tls: false.into(),
        ..CheckKeys::default()
    };
    match &check.kind {
        CheckKind::Tcp => CheckKeys { kind: CheckType::Tcp.into(), ..keys },
        CheckKind::Http(http) => CheckKeys {
            kind: CheckType::Http.into(),
            path: http.path.clone().into(),
            method: http.method.clone().into(),
            protocol: http.tls.as_ref().map(|_| Protocol::Https).into(),
            header: TextListMap(
                http.headers.iter().map(|(name, of)| (label(name), spanned_texts(of))).collect(),
            ),
            body: Some(http.body.clone()).filter(|body| !body.is_empty()).into(),
            ..set_tls(keys, http.tls.as_ref())
        },
        CheckKind::Grpc { service, tls } => CheckKeys {
            kind: CheckType::Grpc.into(),
            grpc_service: Some(service.clone()).filter(|name| !name.is_empty()).into(),
            grpc_use_tls: tls.is_some().into(),
            ..set_tls(keys, tls.as_ref())
        },
        CheckKind::Script { command, args } => CheckKeys {
            kind: CheckType::Script.into(),
            command: command.clone().into(),
            args: texts(args),
            ..keys
        },
    }
}

fn set_tls(keys: CheckKeys, tls: Option<&CheckTls>) -> CheckKeys {
    CheckKeys {
        tls_skip_verify: tls.is_some_and(|tls| tls.skip_verify).into(),
        tls_server_name: tls.and_then(|tls| tls.server_name.clone()).into(),
        ..keys
    }
}

fn restart(restart: CheckRestart) -> CheckRestartKeys {
    CheckRestartKeys {
        limit: restart.limit.into(),
        grace: restart.grace.into(),
        ignore_warnings: restart.ignore_warnings.into(),
        ..CheckRestartKeys::default()
    }
}
