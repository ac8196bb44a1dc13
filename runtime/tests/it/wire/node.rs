//! One of our nodes behind the proxy, and a server that can ask it as stock servers do.

use ostler_cluster::msgpack::Value;
use ostler_cluster::rpc::{field, text};
use ostler_cluster::session::{ClusterSession, MULTIPLEX, Stream};
use ostler_testing::recorded::{self, Part, RecordedMessage, values};
use ostler_testing::servers::ServerDouble;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use super::messages::messages;
use super::proxy::Proxy;
use crate::cluster::joined;
use crate::devices::granted;
use crate::support::agent_process::{AgentProcess, Home};
use crate::support::system::eventually;

/// A node that runs what was recorded of a stock server.
pub struct Placed {
    pub double: ServerDouble,
    pub proxy: Proxy,
    pub agent: AgentProcess,
    /// A service.
    pub alloc: String,
    /// A service with a device.
    pub card: String,
    connection: watch::Receiver<Option<ClusterSession>>,
}

impl Placed {
    pub async fn start() -> Self {
        let double = ServerDouble::default();
        let (told, connection) = watch::channel(None);
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let of_server = double.clone();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                if socket.read_u8().await.ok() != Some(MULTIPLEX) {
                    continue;
                }
                let (session, mut arrivals) = ClusterSession::drive(socket.compat(), true);
                told.send_replace(Some(session.clone()));
                let double = of_server.clone();
                tokio::spawn(async move {
                    // A connection ends with its last handle, also when another one has come.
                    let _session = session;
                    while let Some(stream) = arrivals.recv().await {
                        tokio::spawn(double.clone().answer_calls(stream));
                    }
                });
            }
        });
        let mut proxy = Proxy::bind().await;
        proxy.lead_to(port);
        let put = |case| {
            let fields = placed(case);
            let fields: Vec<_> =
                fields.iter().map(|(key, of)| (key.as_str(), of.clone())).collect();
            double.book().put(None, &fields)
        };
        let (alloc, card) = (put(""), put("device"));
        let home = Home::new();
        let devices = home.path().join("devices");
        std::fs::create_dir(&devices).unwrap();
        std::fs::write(devices.join("sample"), "").unwrap();
        let config = format!(
            "name = \"box\"\nplugin \"raw_exec\" {{\n enabled = true\n}}\nplugin \"mock_device\" {{\n \
             config {{\n  groups = [{{ count = 1 }}]\n }}\n}}\nclient {{\n node_class = \"ours\"\n \
             meta {{\n  rack = \"r1\"\n }}\n}}\n{}",
            granted("files", "dir", &devices)
        );
        let agent = joined(home, proxy.port, &config).await;
        let node = Self { proxy, agent, alloc, card, connection, double };
        let healthy = |message: &RecordedMessage| {
            let allocs = field(&values(message)[1], "Alloc").and_then(Value::as_array).cloned();
            allocs.unwrap().iter().any(|alloc| field(alloc, "DeploymentStatus").is_some())
        };
        eventually("it is healthy", || node.said("Node.UpdateAlloc").iter().any(healthy)).await;
        let runs = |id: &str| node.double.book().reported_status(id) == "running";
        eventually("it runs too", || runs(&node.card)).await;
        node
    }

    /// Every message that was said.
    pub fn messages(&self) -> Vec<RecordedMessage> {
        self.proxy.said().iter().flat_map(|said| messages(said, "Ostler")).collect()
    }

    /// Requests that it made.
    pub fn said(&self, method: &str) -> Vec<RecordedMessage> {
        let mut all = self.messages();
        all.retain(|message| message.method == method && message.part == Part::Request);
        all
    }

    /// A stream of the server's.
    pub async fn stream(&self) -> Stream {
        let session = self.connection.borrow().clone();
        session.expect("it has connected").open().await.unwrap()
    }
}

/// A recorded allocation, as it was placed.
fn placed(case: &str) -> Vec<(String, Value)> {
    let recorded = recorded::of("Alloc.GetAllocs", case, Part::Answer).unwrap();
    let allocs = field(&values(&recorded)[1], "Allocs").and_then(Value::as_array).cloned();
    let with_device = |alloc: &Value| {
        let tasks = field(alloc, "AllocatedResources").and_then(|of| field(of, "Tasks"));
        let mut tasks = tasks.and_then(Value::as_map).unwrap().iter();
        tasks.any(|(_, task)| field(task, "Devices").is_some_and(Value::is_array))
    };
    let mut allocs = allocs.unwrap().into_iter();
    let alloc = allocs.find(|alloc| with_device(alloc) == (case == "device")).unwrap();
    let fields = alloc.as_map().unwrap().iter().map(|(key, value)| {
        let key = text(key).unwrap().to_owned();
        let value = match key.as_str() {
            "DesiredStatus" => "run".into(),
            "ClientStatus" => "pending".into(),
            "PreviousAllocation" => "".into(),
            _ => value.clone(),
        };
        (key, value)
    });
    fields.filter(|(key, _)| key != "AllocModifyIndex").collect()
}
