//! Types shared by drivers and device plugins, with constructors.

pub use crate::bindings::driver::ostler::plugin::types::{
    Attribute, DeviceNode, Diagnostic, EnvVar, Health, HealthState, Milliseconds, Mount,
    NamedAttribute, Scalar, StatEntry, StatValue, Timestamp, Watches,
};

impl Health {
    /// The plugin's driver or device is here and usable.
    pub fn healthy() -> Self {
        Self { state: HealthState::Healthy, reason: String::new() }
    }

    /// It is here but cannot be used now; `reason` is one sentence for a person.
    pub fn unhealthy(reason: impl Into<String>) -> Self {
        Self { state: HealthState::Unhealthy, reason: reason.into() }
    }

    /// It is not on this node, which is no error.
    pub fn undetected(reason: impl Into<String>) -> Self {
        Self { state: HealthState::Undetected, reason: reason.into() }
    }
}

impl From<bool> for Scalar {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}

impl From<i64> for Scalar {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f64> for Scalar {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<String> for Scalar {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<&str> for Scalar {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl NamedAttribute {
    /// An attribute without a unit.
    pub fn new(name: impl Into<String>, value: impl Into<Scalar>) -> Self {
        Self { name: name.into(), attribute: Attribute { value: value.into(), unit: None } }
    }

    /// Give the attribute a unit (`GiB`, `MHz`, `W` …). Only numbers have one.
    pub fn unit(mut self, unit: impl Into<String>) -> Self {
        self.attribute.unit = Some(unit.into());
        self
    }
}

impl EnvVar {
    /// One environment variable.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

impl Mount {
    /// A file or directory of the node that the task sees and cannot change.
    pub fn read_only(host_path: impl Into<String>, task_path: impl Into<String>) -> Self {
        Self { host_path: host_path.into(), task_path: task_path.into(), read_only: true }
    }
}

impl StatValue {
    /// No measurement yet: set exactly the members that were measured.
    pub fn empty() -> Self {
        Self {
            description: None,
            unit: None,
            int_numerator: None,
            int_denominator: None,
            float_numerator: None,
            float_denominator: None,
            text: None,
            boolean: None,
        }
    }

    /// A number with a fraction, for example degrees. It must be finite.
    pub fn float(value: f64, unit: &str, description: &str) -> Self {
        Self {
            float_numerator: Some(value),
            unit: Some(unit.to_owned()).filter(|unit| !unit.is_empty()),
            description: Some(description.to_owned()),
            ..Self::empty()
        }
    }

    /// A whole number, for example bytes used.
    pub fn int(value: i64, unit: &str, description: &str) -> Self {
        Self {
            int_numerator: Some(value),
            unit: Some(unit.to_owned()).filter(|unit| !unit.is_empty()),
            description: Some(description.to_owned()),
            ..Self::empty()
        }
    }
}

impl Watches {
    /// A check that watches nothing.
    pub fn none() -> Self {
        Self { paths: vec![], subsystems: vec![] }
    }
}
