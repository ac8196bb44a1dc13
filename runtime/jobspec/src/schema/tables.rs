//! The tables themselves. The order is that of suggestions among equals.

use super::Shape::{Bool, Duration, Free, Integer, IntegerNotZero, Text, TextList, TextMap};
use super::{Field, Missed, Schema, Shape};

const fn field(hcl: &'static str, json: &'static str, shape: Shape) -> Field {
    Field { hcl, json, shape }
}

const fn later(hcl: &'static str, json: &'static str) -> Field {
    hinted(hcl, json, "")
}

const fn hinted(hcl: &'static str, json: &'static str, hint: &'static str) -> Field {
    Field { hcl, json, shape: Shape::Unsupported { hint, neutral: &[], missed: None } }
}

const fn neutral(hcl: &'static str, json: &'static str, neutral: &'static [&'static str]) -> Field {
    Field { hcl, json, shape: Shape::Unsupported { hint: "", neutral, missed: None } }
}

/// Works as if it were not there or had one of these values.
const fn left_out(
    hcl: &'static str,
    json: &'static str,
    neutral: &'static [&'static str],
) -> Field {
    Field { hcl, json, shape: Shape::Unsupported { hint: "leave it out", neutral, missed: None } }
}

/// Accepted in some values, which a warning says to do nothing.
const fn missed(hcl: &'static str, json: &'static str, missed: &'static Missed) -> Field {
    let (hint, missed) = ("leave it out", Some(missed));
    Field { hcl, json, shape: Shape::Unsupported { hint, neutral: &[], missed } }
}

const fn reschedule(json: &'static str) -> Field {
    let (hint, missed) = ("", Some(&RESCHEDULE));
    Field {
        hcl: "reschedule",
        json,
        shape: Shape::Unsupported { hint, neutral: NO_RESCHEDULE, missed },
    }
}

const fn served(json: &'static str) -> Field {
    Field { hcl: "", json, shape: Shape::Served }
}

const fn once(hcl: &'static str, json: &'static str, schema: &'static Schema) -> Field {
    Field { hcl, json, shape: Shape::Block { schema, label: None, many: false } }
}

const fn many(hcl: &'static str, json: &'static str, schema: &'static Schema) -> Field {
    Field { hcl, json, shape: Shape::Block { schema, label: None, many: true } }
}

const fn labelled(
    hcl: &'static str,
    json: &'static str,
    label: &'static str,
    schema: &'static Schema,
) -> Field {
    Field { hcl, json, shape: Shape::Block { schema, label: Some(label), many: true } }
}

/// A job.
pub(in super::super) static JOB: Schema = Schema {
    what: "a job",
    fields: &[
        field("id", "ID", Text),
        field("name", "Name", Text),
        field("region", "Region", Text),
        field("datacenters", "Datacenters", TextList),
        field("type", "Type", Text),
        field("namespace", "Namespace", Text),
        field("priority", "Priority", IntegerNotZero),
        field("meta", "Meta", TextMap),
        many("constraint", "Constraints", &CONSTRAINT),
        labelled("group", "TaskGroups", "Name", &GROUP),
        // Ostler's own. A name that nobody can write in HCL.
        field("source dir", "SourceDir", Text),
        hinted("task", "", "put the task into a group"),
        later("affinity", "Affinities"),
        later("spread", "Spreads"),
        once("update", "Update", &UPDATE),
        once("migrate", "Migrate", &MIGRATE),
        reschedule("Reschedule"),
        later("periodic", "Periodic"),
        later("parameterized", "ParameterizedJob"),
        later("multiregion", "Multiregion"),
        later("all_at_once", "AllAtOnce"),
        later("vault", "Vault"),
        later("consul", "Consul"),
        later("vault_token", "VaultToken"),
        later("consul_token", "ConsulToken"),
        neutral("node_pool", "NodePool", &["default"]),
        later("ui", "UI"),
        later("version_tag", "VersionTag"),
        later("", "Payload"),
        later("", "Stop"),
        later("", "ParentID"),
        later("", "Dispatched"),
        later("", "DispatchIdempotencyToken"),
        neutral("vault_namespace", "VaultNamespace", &["default"]),
        neutral("consul_namespace", "ConsulNamespace", &["default"]),
        served("NomadTokenID"),
        served("Status"),
        served("StatusDescription"),
        served("Stable"),
        served("Version"),
        served("SubmitTime"),
        served("CreateIndex"),
        served("ModifyIndex"),
        served("JobModifyIndex"),
    ],
};

static GROUP: Schema = Schema {
    what: "a group",
    fields: &[
        field("count", "Count", Integer),
        field("meta", "Meta", TextMap),
        many("constraint", "Constraints", &CONSTRAINT),
        once("restart", "RestartPolicy", &RESTART),
        many("network", "Networks", &NETWORK),
        labelled("task", "Tasks", "Name", &TASK),
        field("shutdown_delay", "ShutdownDelay", Duration),
        later("affinity", "Affinities"),
        once("update", "Update", &UPDATE),
        once("migrate", "Migrate", &MIGRATE),
        once("ephemeral_disk", "EphemeralDisk", &EPHEMERAL_DISK),
        many("service", "Services", &SERVICE),
        field("max_run_duration", "MaxRunDuration", Duration),
        later("spread", "Spreads"),
        reschedule("ReschedulePolicy"),
        later("volume", "Volumes"),
        later("scaling", "Scaling"),
        later("vault", "Vault"),
        later("consul", "Consul"),
        later("disconnect", "Disconnect"),
        later("stop_after_client_disconnect", "StopAfterClientDisconnect"),
        later("max_client_disconnect", "MaxClientDisconnect"),
        later("prevent_reschedule_on_lost", "PreventRescheduleOnLost"),
    ],
};

pub(super) static TASK: Schema = Schema {
    what: "a task",
    fields: &[
        field("driver", "Driver", Text),
        field("config", "Config", Free),
        field("env", "Env", TextMap),
        field("meta", "Meta", TextMap),
        many("constraint", "Constraints", &CONSTRAINT),
        once("resources", "Resources", &RESOURCES),
        once("restart", "RestartPolicy", &RESTART),
        field("kill_timeout", "KillTimeout", Duration),
        field("kill_signal", "KillSignal", Text),
        field("leader", "Leader", Bool),
        once("lifecycle", "Lifecycle", &LIFECYCLE),
        once("logs", "LogConfig", &LOGS),
        field("user", "User", Text),
        field("shutdown_delay", "ShutdownDelay", Duration),
        many("service", "Services", &SERVICE),
        later("affinity", "Affinities"),
        later("artifact", "Artifacts"),
        later("template", "Templates"),
        later("vault", "Vault"),
        later("consul", "Consul"),
        later("identity", "Identities"),
        later("", "Identity"),
        later("csi_plugin", "CSIPluginConfig"),
        later("volume_mount", "VolumeMounts"),
        later("dispatch_payload", "DispatchPayload"),
        later("scaling", "ScalingPolicies"),
        later("kind", "Kind"),
        later("action", "Actions"),
        later("schedule", "Schedule"),
        later("secret", "Secrets"),
    ],
};

/// Moving a network from a task to its group.
const TASK_NETWORK: &str = "put the network into the group";

static RESOURCES: Schema = Schema {
    what: "resources",
    fields: &[
        field("cpu", "CPU", Integer),
        field("memory", "MemoryMB", Integer),
        field("memory_max", "MemoryMaxMB", IntegerNotZero),
        labelled("device", "Devices", "Name", &DEVICE),
        hinted("network", "Networks", TASK_NETWORK),
        later("cores", "Cores"),
        later("disk", "DiskMB"),
        later("iops", "IOPS"),
        once("numa", "NUMA", &NUMA),
        later("secrets", "SecretsMB"),
    ],
};

static NUMA: Schema = Schema {
    what: "numa",
    fields: &[field("affinity", "Affinity", Text), field("devices", "Devices", TextList)],
};

static DEVICE: Schema = Schema {
    what: "a device",
    fields: &[
        field("count", "Count", Integer),
        many("constraint", "Constraints", &CONSTRAINT),
        many("affinity", "Affinities", &AFFINITY),
    ],
};

static CONSTRAINT: Schema = Schema {
    what: "a constraint",
    fields: &[
        field("attribute", "LTarget", Text),
        field("operator", "Operand", Text),
        field("value", "RTarget", Text),
        field("version", "", Text),
        field("semver", "", Text),
        field("regexp", "", Text),
        field("set_contains", "", Text),
        field("set_contains_all", "", Text),
        field("set_contains_any", "", Text),
        later("distinct_hosts", ""),
        later("distinct_property", ""),
    ],
};

static AFFINITY: Schema = Schema {
    what: "an affinity",
    fields: &[
        field("attribute", "LTarget", Text),
        field("operator", "Operand", Text),
        field("value", "RTarget", Text),
        field("weight", "Weight", Integer),
        field("version", "", Text),
        field("semver", "", Text),
        field("regexp", "", Text),
        field("set_contains", "", Text),
        field("set_contains_all", "", Text),
        field("set_contains_any", "", Text),
    ],
};

static RESTART: Schema = Schema {
    what: "restart",
    fields: &[
        field("attempts", "Attempts", Integer),
        field("interval", "Interval", Duration),
        field("delay", "Delay", Duration),
        field("mode", "Mode", Text),
        later("render_templates", "RenderTemplates"),
    ],
};

static LIFECYCLE: Schema = Schema {
    what: "lifecycle",
    fields: &[field("hook", "Hook", Text), field("sidecar", "Sidecar", Bool)],
};

static LOGS: Schema = Schema {
    what: "logs",
    fields: &[
        field("max_files", "MaxFiles", Integer),
        field("max_file_size", "MaxFileSizeMB", Integer),
        field("disabled", "Disabled", Bool),
        hinted("enabled", "Enabled", "use disabled"),
    ],
};

static NETWORK: Schema = Schema {
    what: "a network",
    fields: &[
        field("mode", "Mode", Text),
        labelled("port", "ReservedPorts", "Label", &PORT),
        labelled("", "DynamicPorts", "Label", &PORT),
        later("mbits", "MBits"),
        later("dns", "DNS"),
        later("hostname", "Hostname"),
        later("cni", "CNI"),
        later("", "Device"),
        later("", "CIDR"),
        later("", "IP"),
    ],
};

static PORT: Schema = Schema {
    what: "a port",
    fields: &[
        field("static", "Value", IntegerNotZero),
        field("to", "To", IntegerNotZero),
        neutral("host_network", "HostNetwork", &["default"]),
        later("ignore_collision", "IgnoreCollision"),
    ],
};

/// What asks for no rescheduling, which is what happens.
const NO_RESCHEDULE: &[&str] = &[r#"{"Attempts": 0, "Unlimited": false}"#];

/// What Nomad fills in for rescheduling, by kind of job.
static RESCHEDULE: Missed = Missed {
    values: &[
        r#"{"Attempts": 0, "Interval": 0, "Delay": 30000000000, "DelayFunction": "exponential",
        "MaxDelay": 3600000000000, "Unlimited": true}"#,
        r#"{"Attempts": 1, "Interval": 86400000000000, "Delay": 5000000000,
        "DelayFunction": "constant", "MaxDelay": 0, "Unlimited": false}"#,
    ],
    instead: "an allocation that failed is not placed again",
    in_json: true,
};

static STAGGER: Missed = Missed {
    values: &["30s"],
    instead: "all allocations of a group are replaced at once",
    in_json: false,
};

static PROGRESS_DEADLINE: Missed = Missed {
    values: &["10m"],
    instead: "healthy_deadline alone says how long an allocation has",
    in_json: false,
};

static MIGRATE_PARALLEL: Missed =
    Missed { values: &["1"], instead: "a drain stops all allocations at once", in_json: false };

static UPDATE: Schema = Schema {
    what: "update",
    fields: &[
        field("health_check", "HealthCheck", Text),
        field("min_healthy_time", "MinHealthyTime", Duration),
        field("healthy_deadline", "HealthyDeadline", Duration),
        field("max_parallel", "MaxParallel", Integer),
        left_out("canary", "Canary", &["0"]),
        left_out("auto_revert", "AutoRevert", &["false"]),
        left_out("auto_promote", "AutoPromote", &["false"]),
        missed("stagger", "Stagger", &STAGGER),
        missed("progress_deadline", "ProgressDeadline", &PROGRESS_DEADLINE),
    ],
};

static MIGRATE: Schema = Schema {
    what: "migrate",
    fields: &[
        field("health_check", "HealthCheck", Text),
        field("min_healthy_time", "MinHealthyTime", Duration),
        field("healthy_deadline", "HealthyDeadline", Duration),
        missed("max_parallel", "MaxParallel", &MIGRATE_PARALLEL),
    ],
};

static EPHEMERAL_DISK: Schema = Schema {
    what: "ephemeral_disk",
    fields: &[
        field("sticky", "Sticky", Bool),
        field("migrate", "Migrate", Bool),
        field("size", "SizeMB", Integer),
    ],
};

static SERVICE: Schema = Schema {
    what: "a service",
    fields: &[
        field("name", "Name", Text),
        field("port", "PortLabel", Text),
        field("provider", "Provider", Text),
        field("task", "TaskName", Text),
        many("check", "Checks", &CHECK),
        neutral("tags", "Tags", &["[]"]),
        neutral("canary_tags", "CanaryTags", &["[]"]),
        neutral("enable_tag_override", "EnableTagOverride", &["false"]),
        neutral("address_mode", "AddressMode", &["auto", "host"]),
        neutral("on_update", "OnUpdate", &["require_healthy"]),
        neutral("cluster", "Cluster", &["default"]),
        neutral("namespace", "Namespace", &["default"]),
        later("address", "Address"),
        later("check_restart", "CheckRestart"),
        later("connect", "Connect"),
        later("identity", "Identity"),
        later("kind", "Kind"),
        later("meta", "Meta"),
        later("canary_meta", "CanaryMeta"),
        later("tagged_addresses", "TaggedAddresses"),
        later("weights", "Weights"),
        later("id", "Id"),
    ],
};

static CHECK: Schema = Schema {
    what: "a check",
    fields: &[
        field("name", "Name", Text),
        field("type", "Type", Text),
        field("path", "Path", Text),
        field("method", "Method", Text),
        field("port", "PortLabel", Text),
        field("interval", "Interval", Duration),
        field("timeout", "Timeout", Duration),
        neutral("protocol", "Protocol", &["http"]),
        neutral("address_mode", "AddressMode", &["auto", "host"]),
        neutral("on_update", "OnUpdate", &["require_healthy"]),
        neutral("success_before_passing", "SuccessBeforePassing", &["0"]),
        neutral("failures_before_critical", "FailuresBeforeCritical", &["0"]),
        neutral("failures_before_warning", "FailuresBeforeWarning", &["0"]),
        neutral("expose", "Expose", &["false"]),
        neutral("tls_skip_verify", "TLSSkipVerify", &["false"]),
        neutral("initial_status", "InitialStatus", &["critical"]),
        later("tls_server_name", "TLSServerName"),
        later("header", "Header"),
        later("body", "Body"),
        later("command", "Command"),
        later("args", "Args"),
        later("check_restart", "CheckRestart"),
        later("grpc_service", "GRPCService"),
        later("grpc_use_tls", "GRPCUseTLS"),
        later("task", "TaskName"),
        later("notes", "Notes"),
        later("id", "Id"),
    ],
};

/// What may stand beside `Job` in a request to Nomad's API. All of it is for the API, not the job.
pub(in super::super) const ENVELOPE: [&str; 14] = [
    "Job",
    "Region",
    "Namespace",
    "SecretID",
    "AuthToken",
    "EnforceIndex",
    "JobModifyIndex",
    "PolicyOverride",
    "PreserveCounts",
    "PreserveResources",
    "EvalPriority",
    "Diff",
    "Submission",
    "IdempotencyToken",
];
