//! The table of the records. A new record is one row here, and a type for its value.
//!
//! ```text
//! Name(parts of the key), key type: shown value type = number "name", AREA [last bytes] "last text";
//!
//!   bytes of a key   byte of the area │ bytes of the parts │ last bytes        (`keys::shape`)
//!   text of a key    text of the area │ text of the parts  │ last text
//! ```
//! A record that begins with `ALLOC` is removed with its allocation, and one that begins with the
//! id of a job is beside that job. A row without a value type is of a type above this crate: that
//! crate says so with one [`Record`]. A dump has the values that are `shown`; what is not `secret` of the others
//! the agent says (`agent/inspect/values.rs`). Numbers and bytes are in files: they never change, and one is
//! never used again for something else.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::inspect::{InspectedRecord, ValueError};
use super::keys::shape::{
    ALLOC, JOB, KeyArea, KeyShape, LEDGER, MANAGER, META, NAMESPACE, NODE, PLUGIN, VARIABLE,
};
use super::keys::text::KeyTextError;
use super::keys::{EndedBlock, KeyError};
use super::stats::Stats;
use ostler_model::access::TokenRecords;
use ostler_model::alloc::Allocation;
use ostler_model::cow_arc::CowArc;
use ostler_model::ids::{AllocId, JobId, Namespace, PluginName, TaskName};
use ostler_model::rollout::{JobDeployments, JobVersions};
use ostler_model::saved::{
    AcknowledgedState, DeploymentStatus, DeviceManagerState, DriverManagerState, EndedPlaces,
    JobRecord, NamespaceRecord, NetworkStatus, NodeBoot, NodeRegistration, PluginHandle,
    SavedAllocState,
};
use ostler_model::scheduling::NodeScheduling;
use ostler_model::task::TaskState;
use ostler_model::vars::{VarKey, Variable};

/// A type whose values are records, all of one kind.
pub trait Record: Serialize + DeserializeOwned {
    /// The type of the keys under which they are.
    type Key: TypedKey;
}

impl<V: Record + Clone> Record for CowArc<V> {
    type Key = V::Key;
}

/// A key whose type says of which kind its record is.
pub trait TypedKey: Deref<Target = RecordKey> {
    /// The kind of the record.
    const KIND: RecordKind;
}

/// A key under which there can be a value of the type `V`.
pub trait KeyFor<V: ?Sized> {
    /// The key of any record.
    fn record_key(&self) -> &RecordKey;
}

/// The tests of this crate put any value under any key.
#[cfg(test)]
impl<V: ?Sized> KeyFor<V> for RecordKey {
    fn record_key(&self) -> &RecordKey {
        self
    }
}

macro_rules! records {
    (@json $entry:ident shown $value:ty) => { Some($entry.json_as::<$value>()) };
    (@json $entry:ident $(secret $value:ty)?) => { None };
    ($(
        $(#[doc = $doc:literal])+
        $name:ident $(($($part:ident: $type:ty),+))?, $key:ident $(: $shown:ident $value:ty)?
            = $number:literal $word:literal, $area:ident $tail:tt $end:literal;
    )+) => {
        /// The name of a record.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum RecordKey {
            $($(#[doc = $doc])+ $name $(($($type),+))?,)+
        }

        /// The type of the record under a key. It is part of every record, so that a record under
        /// the wrong key is noticed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum RecordKind {
            $($(#[doc = $doc])+ $name = $number,)+
        }

        impl RecordKind {
            /// The name of the kind, for people and in JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $word,)+ }
            }

            /// The value of a record of this kind as JSON; `None` if it is secret, or its type above this crate.
            pub(super) fn json(self, entry: &InspectedRecord<'_>) -> Option<JsonResult> {
                match self { $(Self::$name => records!(@json entry $($shown $value)?),)+ }
            }
        }

        impl RecordKey {
            /// The type of the record under this key.
            #[must_use]
            pub fn kind(&self) -> RecordKind {
                match self { $(Self::$name { .. } => RecordKind::$name,)+ }
            }

            /// The allocation with which this record is removed; `None` if it belongs to none.
            #[must_use]
            pub fn alloc(&self) -> Option<AllocId> {
                match self {
                    $(Self::$name $(($($part),+))? => {
                        <($($($type,)+)?) as KeyShape>::alloc(($($($part,)+)?))
                    })+
                }
            }

            /// Replace `out` by the key's bytes.
            pub fn encode_into(&self, out: &mut Vec<u8>) {
                out.clear();
                match self {
                    $(Self::$name $(($($part),+))? => {
                        out.push($area.byte);
                        <($($($type,)+)?) as KeyShape>::push(($($($part,)+)?), out);
                        out.extend_from_slice(&$tail);
                    })+
                }
            }

            /// The key whose bytes are an area, what `strip` leaves of them for its parts, and last
            /// bytes.
            fn find(
                bytes: &[u8],
                strip: impl for<'a> Fn(&'a [u8], &[u8]) -> Option<&'a [u8]>,
            ) -> Option<Result<Self, KeyError>> {
                let (area, rest) = bytes.split_first()?;
                $(if *area == $area.byte
                    && let Some(parts) = strip(rest, &$tail)
                    && let Some(parsed) = <($($($type,)+)?) as KeyShape>::parse(parts)
                {
                    return Some(
                        parsed.map(|($($($part,)+)?)| Self::$name $(($($part),+))?)
                    );
                })+
                None
            }
        }

        impl fmt::Display for RecordKey {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name $(($($part),+))? => {
                        f.write_str($area.text)?;
                        <($($($type,)+)?) as KeyShape>::show(($($($part,)+)?), f)?;
                        f.write_str($end)
                    })+
                }
            }
        }

        impl FromStr for RecordKey {
            type Err = KeyTextError;

            fn from_str(text: &str) -> Result<Self, KeyTextError> {
                $(if let Some(parts) = $area.text_between(text, $end)
                    && let Some(read) = <($($($type,)+)?) as KeyShape>::read(parts)
                {
                    return read.map(|($($($part,)+)?)| Self::$name $(($($part),+))?);
                })+
                Err(KeyTextError::unknown(text))
            }
        }

        /// Any key of each record.
        #[cfg(test)]
        pub(crate) fn any_of_each() -> Vec<super::keys::tests::BoxedStrategy<RecordKey>> {
            use super::keys::tests::{AnyParts, Strategy as _};

            vec![$(
                <($($($type,)+)?)>::any_parts()
                    .prop_map(|($($($part,)+)?)| RecordKey::$name $(($($part),+))?)
                    .boxed()
            ),+]
        }

        /// The areas, each as often as it has records.
        const AREAS: &[KeyArea] = &[$($area),+];

        $(
            $(#[doc = $doc])+
            #[derive(Clone, Debug)]
            pub struct $key(RecordKey);

            impl $key {
                /// The key with these parts.
                #[must_use]
                pub fn of($($($part: $type),+)?) -> Self {
                    Self(RecordKey::$name $(($($part),+))?)
                }
            }

            impl Deref for $key {
                type Target = RecordKey;

                fn deref(&self) -> &RecordKey {
                    &self.0
                }
            }

            impl TypedKey for $key {
                const KIND: RecordKind = RecordKind::$name;
            }

            impl<V: Record<Key = Self>> KeyFor<V> for $key {
                fn record_key(&self) -> &RecordKey {
                    &self.0
                }
            }

            $(impl Record for $value {
                type Key = $key;
            })?
        )+
    };
}

/// The value of a record as JSON.
type JsonResult = Result<serde_json::Value, ValueError>;

records! {
    /// Version of the record schema.
    Meta, MetaKey: shown u16 = 1 "schema", META [0x01] "schema";
    /// The counts since the file was made.
    Counters, CountersKey: shown Stats = 9 "counters", META [0x02] "counters";
    /// The allocation as it was placed.
    Alloc(alloc: AllocId), AllocKey: shown Allocation = 2 "allocation", ALLOC [0x01] "";
    /// The state of the allocation.
    AllocState(alloc: AllocId), AllocStateKey: shown SavedAllocState
        = 3 "allocation-state", ALLOC [0x02] "/state";
    /// Whether the allocation counts as healthy.
    DeploymentStatus(alloc: AllocId), DeploymentStatusKey: shown DeploymentStatus
        = 10 "deployment-status", ALLOC [0x03] "/deployment";
    /// The network that the allocation was given.
    NetworkStatus(alloc: AllocId), NetworkStatusKey: shown NetworkStatus
        = 11 "network-status", ALLOC [0x04] "/network";
    /// The state of the allocation that its server last acknowledged.
    AcknowledgedState(alloc: AllocId), AcknowledgedStateKey: shown AcknowledgedState
        = 12 "acknowledged-state", ALLOC [0x05] "/acknowledged";
    /// What the task runner needs to own the task again: `task::handle::LocalState`.
    TaskLocal(alloc: AllocId, task: TaskName), TaskLocalKey
        = 4 "task-local", ALLOC [0x01] "/local";
    /// The task's public state.
    TaskState(alloc: AllocId, task: TaskName), TaskStateKey: shown TaskState
        = 5 "task-state", ALLOC [0x02] "/state";
    /// The device instances that each allocation holds: `device::ledger::DeviceLedger`.
    DeviceLedger, DeviceLedgerKey = 6 "device-ledger", LEDGER [] "ledger";
    /// The agent's record of a plugin.
    PluginHandle(name: PluginName), PluginHandleKey: shown PluginHandle
        = 7 "plugin-handle", PLUGIN [] "";
    /// The node's identity and registration.
    NodeRegistration, NodeRegistrationKey: shown NodeRegistration
        = 8 "node-registration", NODE [0x01] "registration";
    /// The boot of the machine in which the agent last restored its allocations.
    NodeBoot, NodeBootKey: shown NodeBoot = 17 "node-boot", NODE [0x02] "boot";
    /// The tokens that were created over the API.
    Tokens, TokensKey: secret TokenRecords = 30 "tokens", NODE [0x10] "tokens";
    /// The eligibility of the node and the state of its drain.
    NodeScheduling, NodeSchedulingKey: shown NodeScheduling
        = 22 "node-scheduling", NODE [0x03] "scheduling";
    /// The plugin that serves each driver.
    DriverManager, DriverManagerKey: shown DriverManagerState
        = 13 "driver-manager", MANAGER [0x01] "driver";
    /// The plugin that serves each device group.
    DeviceManager, DeviceManagerKey: shown DeviceManagerState
        = 14 "device-manager", MANAGER [0x02] "device";
    /// A job that is to run.
    Job(job: JobId), JobRecordKey: shown JobRecord = 15 "job", JOB [] "";
    /// The ends of collected allocations of a group, by place, in blocks of places.
    EndedPlaces(block: Box<EndedBlock>), EndedPlacesKey: shown EndedPlaces
        = 16 "ended-places", JOB [] "";
    /// Earlier versions of a job.
    JobVersions(job: JobId), JobVersionsKey: shown JobVersions
        = 18 "job-versions", JOB [0x00, 0x00, 0x01] "/versions";
    /// Deployments of a job.
    JobDeployments(job: JobId), JobDeploymentsKey: shown JobDeployments
        = 19 "job-deployments", JOB [0x00, 0x00, 0x02] "/deployments";
    /// A variable that the agent keeps.
    Variable(of: Box<VarKey>), VariableKey: secret Variable = 20 "variable", VARIABLE [] "";
    /// The index of the last change of any variable. The index of a removal is nowhere else.
    VariablesIndex, VariablesIndexKey: shown u64
        = 21 "variables-index", VARIABLE [0x00, 0x01] "index";
    /// A namespace that was created over the API.
    Namespace(name: Namespace), NamespaceKey: shown NamespaceRecord = 23 "namespace", NAMESPACE [] "";
}

impl RecordKey {
    /// The key's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_into(&mut out);
        out
    }

    /// The key of these bytes.
    ///
    /// # Errors
    /// When no key has these bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, KeyError> {
        let known = Self::find(bytes, |rest, tail| rest.strip_suffix(tail));
        known.unwrap_or_else(|| Err(refuse(bytes)))
    }
}

/// Why bytes are not a key.
fn refuse(bytes: &[u8]) -> KeyError {
    let (Some(area), Some(tag)) = (bytes.first(), bytes.last()) else { return KeyError::Length };
    if !AREAS.iter().any(|known| known.byte == *area) {
        return KeyError::Unknown { tag: *area };
    }
    // With another last byte they would be a key.
    let but_for_last = RecordKey::find(bytes, |rest, tail| {
        let ((_, rest), (_, tail)) = (rest.split_last()?, tail.split_last()?);
        rest.strip_suffix(tail)
    });
    match but_for_last {
        Some(Ok(_)) => KeyError::Unknown { tag: *tag },
        Some(Err(error)) => error,
        None => KeyError::Length,
    }
}
