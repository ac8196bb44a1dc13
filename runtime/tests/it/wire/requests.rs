//! What our nodes ask of servers, held against what stock nodes ask.

use std::collections::BTreeMap;

use ostler_testing::recorded::{self, Part, RecordedMessage, Side};

use super::held::{Differences, Known, LACKED, UNKNOWN, differences, fields, without};
use super::node::Placed;
use crate::support::binary::ostler;
use crate::support::system::eventually;

/// What is asked, and how ours differs.
const ASKED: [(&str, &[Known]); 7] = [
    ("Node.Register", REGISTER),
    ("Node.UpdateStatus", &[COMMON, NO_EVENT, (OF_SERVERS, LACKED, &["UpdatedAt"])]),
    ("Node.GetClientAllocs", QUERY),
    ("Alloc.GetAllocs", QUERY),
    ("Node.UpdateAlloc", UPDATE),
    ("Node.EmitEvents", &[COMMON, (OF_SERVERS, LACKED, &["NodeEvents.*[].CreateIndex"])]),
    ("Status.Ping", &[]),
];

const OF_SERVERS: &str = "set by servers, which look at no value of a node's";
const NOTHING: &str =
    "a stock node says that there is none, or zero; so does the absence of the field";

/// Of every request.
const COMMON: Known = (NOTHING, LACKED, &["AuthToken", "Forwarded", "Namespace"]);

const REGISTER: &[Known] = &[
    COMMON,
    NO_EVENT,
    (
        OF_SERVERS,
        LACKED,
        &[
            "Node.ComputedClass",
            "Node.CreateIndex",
            "Node.Drain",
            "Node.DrainStrategy",
            "Node.Events",
            "Node.ModifyIndex",
            "Node.StatusDescription",
            "Node.StatusUpdatedAt",
        ],
    ),
    (
        NOTHING,
        LACKED,
        &[
            "Node.CSIControllerPlugins",
            "Node.CSINodePlugins",
            "Node.HostVolumes",
            "Node.Links",
            "Node.NodeResources.Networks[].DNS",
            "Node.NodeResources.Networks[].DynamicPorts",
            "Node.NodeResources.Networks[].ReservedPorts",
            "Node.NodeResources.NodeNetworks[].Addresses[].Gateway",
            "Node.NodeResources.NodeNetworks[].Addresses[].ReservedPorts",
            "Node.NodeResources.NodeNetworks[].MacAddress",
            "Node.Reserved.Devices",
            "Node.Reserved.IOPS",
            "Node.Reserved.Networks",
            "Node.Resources.Devices",
            "Node.Resources.IOPS",
            "Node.Resources.Networks",
            "Node.Resources.Networks[]",
        ],
    ),
    (
        "the recorded node has no device with attributes or a place",
        UNKNOWN,
        &[
            "Node.NodeResources.Devices[].Attributes.*",
            "Node.NodeResources.Devices[].Attributes.*.Bool",
            "Node.NodeResources.Devices[].Attributes.*.Int",
            "Node.NodeResources.Devices[].Attributes.*.String",
            "Node.NodeResources.Devices[].Attributes.*.Unit",
            "Node.NodeResources.Devices[].Instances[].Locality.PciBusID",
        ],
    ),
];

const NO_EVENT: Known = (NOTHING, LACKED, &["NodeEvent"]);

const QUERY: &[Known] = &[COMMON, (NOTHING, LACKED, &["MaxQueryTime", "Prefix"])];

const UPDATE: &[Known] = &[
    COMMON,
    (OF_SERVERS, LACKED, &["AllocsStopped", "AllocsUpdated", "Evals", "Job"]),
    ("an allocation has no network of its own", LACKED, &["Alloc[].NetworkStatus"]),
    (
        "texts for people come in DisplayMessage alone, which is all that is shown of an event",
        LACKED,
        &[
            "Alloc[].TaskStates.*.Events[].Details.*",
            "Alloc[].TaskStates.*.Events[].DiskLimit",
            "Alloc[].TaskStates.*.Events[].DownloadError",
            "Alloc[].TaskStates.*.Events[].DriverError",
            "Alloc[].TaskStates.*.Events[].DriverMessage",
            "Alloc[].TaskStates.*.Events[].ExitCode",
            "Alloc[].TaskStates.*.Events[].FailedSibling",
            "Alloc[].TaskStates.*.Events[].GenericSource",
            "Alloc[].TaskStates.*.Events[].KillError",
            "Alloc[].TaskStates.*.Events[].KillReason",
            "Alloc[].TaskStates.*.Events[].KillTimeout",
            "Alloc[].TaskStates.*.Events[].Message",
            "Alloc[].TaskStates.*.Events[].RestartReason",
            "Alloc[].TaskStates.*.Events[].SetupError",
            "Alloc[].TaskStates.*.Events[].Signal",
            "Alloc[].TaskStates.*.Events[].StartDelay",
            "Alloc[].TaskStates.*.Events[].TaskSignal",
            "Alloc[].TaskStates.*.Events[].TaskSignalReason",
            "Alloc[].TaskStates.*.Events[].ValidationError",
            "Alloc[].TaskStates.*.Events[].VaultError",
        ],
    ),
];

#[tokio::test]
async fn what_a_node_asks_has_the_fields_of_what_stock_nodes_ask_but_for_those_with_a_reason() {
    let node = Placed::start().await;
    std::fs::remove_file(node.agent.data.path().join("devices/sample")).unwrap();
    eventually("events", || !node.said("Node.EmitEvents").is_empty()).await;
    let at = format!("127.0.0.1:{}", node.proxy.port);
    ostler(["node", "join-check", "--servers", &at]).await.said(0, &[]);
    let (ours, recorded) = (node.messages(), recorded::all().unwrap());
    let mut all = BTreeMap::<_, Differences>::new();
    for (method, known) in ASKED {
        let is = |message: &&RecordedMessage| {
            (message.method.as_str(), message.part, message.from)
                == (method, Part::Request, Side::Client)
        };
        let asked: Vec<_> = ours.iter().filter(is).collect();
        assert!(!asked.is_empty(), "{method} is asked");
        let found = differences(&fields(asked), &fields(recorded.iter().filter(is)));
        all.insert(method, without(found, known));
    }
    all.retain(|_, found| !found.is_empty());
    assert!(all.is_empty(), "{all:#?}");
}
