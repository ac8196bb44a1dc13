use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use futures_util::io::{AsyncReadExt, AsyncWriteExt};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_util::compat::TokioAsyncReadCompatExt;

use super::*;
use crate::rpc::{self, Calls, field, text};
use crate::session::{CALLS, MULTIPLEX, Stream};
use crate::tls::TlsFiles;

const WALL: Duration = Duration::from_secs(20);

/// A server on loopback: the calls that it got, and what it refuses.
#[derive(Clone, Default)]
struct Double {
    asked: Arc<Mutex<Vec<(String, Value)>>>,
    refuses: Option<&'static str>,
    tls: Option<TlsAcceptor>,
    /// Whether it accepts connections and does not answer.
    silent: bool,
    /// Whether it says that there is no leader.
    leaderless: bool,
}

impl Double {
    async fn start(self) -> ServerAddress {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                if self.silent {
                    held.push(stream);
                } else {
                    drop(tokio::spawn(self.clone().take(stream)));
                }
            }
        });
        ServerAddress { host: at.ip().to_string(), port: at.port() }
    }

    async fn take(self, mut stream: tokio::net::TcpStream) -> Option<()> {
        let mut socket: Box<dyn ostler_net::Stream> = match &self.tls {
            None => Box::new(stream),
            Some(tls) if stream.read_u8().await.ok()? == dial::TLS => {
                Box::new(tls.accept(stream).await.ok()?)
            }
            Some(_) => return None,
        };
        if socket.read_u8().await.ok()? != MULTIPLEX {
            return None;
        }
        let (session, mut arrivals) = ClusterSession::drive(socket.compat(), true);
        while let Some(stream) = arrivals.recv().await {
            tokio::spawn(self.clone().calls(stream));
        }
        drop(session);
        Some(())
    }

    async fn calls(self, mut stream: Stream) {
        let mut first = [0];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(first, [CALLS]);
        let (mut calls, mut piece) = (Calls::new(1 << 20), [0; 1024]);
        while let Ok(length @ 1..) = stream.read(&mut piece).await {
            calls.extend(&piece[..length]);
            while let Some((header, body)) = calls.take_next().unwrap() {
                let answer = self.answer(&header.method, &body);
                self.asked.lock().unwrap().push((header.method.clone(), body));
                let answer = answer.as_ref().map_err(|why| *why);
                stream.write_all(&rpc::answer(&header.method, header.seq, answer)).await.unwrap();
                stream.flush().await.unwrap();
            }
        }
    }

    fn answer(&self, method: &str, body: &Value) -> Result<Value, &'static str> {
        if self.refuses == Some(method) {
            return Err("Permission denied");
        }
        let region = field(body, "Region").and_then(text);
        if region.is_some_and(|region| region != "eu") {
            return Err("No path to region");
        }
        let server = map([("RPCAdvertiseAddr", "10.0.0.7:4647".into())]);
        match method {
            "Status.Leader" if self.leaderless => Ok("".into()),
            "Status.Leader" => Ok("10.0.0.7:4647".into()),
            "Node.Register" | "Node.UpdateStatus" => Ok(map([
                ("HeartbeatTTL", 12_500_000_000_u64.into()),
                ("NumNodes", 3.into()),
                ("Servers", Value::Array(vec![server])),
            ])),
            _ => Ok(map([])),
        }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().iter().map(|(method, _)| method.clone()).collect()
    }
}

fn ask(servers: Vec<ServerAddress>) -> JoinCheckRequest {
    let (region, datacenter, name) = ("eu".to_owned(), "dc2".to_owned(), "check".to_owned());
    JoinCheckRequest { servers, region, datacenter, name, tls: None, wall: WALL }
}

async fn findings(ask: &JoinCheckRequest) -> Vec<JoinFinding> {
    let mut told = Vec::new();
    let found = join_check(ask, &Rng::from_seed(1), |finding| told.push(finding.clone())).await;
    assert_eq!(found, told, "each is told as it ends");
    found
}

/// The steps that work, and the one that does not.
fn words(findings: &[JoinFinding]) -> Vec<String> {
    let word = |finding: &JoinFinding| {
        format!("{}{}", if finding.works { "" } else { "!" }, finding.step.word())
    };
    findings.iter().map(word).collect()
}

#[tokio::test]
async fn the_whole_way_works_and_leaves_no_node_behind() {
    let double = Double::default();
    let found = findings(&ask(vec![double.clone().start().await])).await;
    let expected =
        ["name", "connection", "answer", "region", "registration", "heartbeat", "removal"];
    assert_eq!(words(&found), expected, "{found:#?}");
    assert!(can_join(&found));
    assert!(
        found[4].found.contains("one of 3 nodes; servers: 10.0.0.7:4647"),
        "{}",
        found[4].found
    );
    assert!(found[5].found.contains("within 12.5 s"), "{}", found[5].found);
    let asked = double.asked.lock().unwrap();
    let methods: Vec<_> = asked.iter().map(|(method, _)| method.as_str()).collect();
    let expected =
        ["Status.Ping", "Status.Leader", "Node.Register", "Node.UpdateStatus", "Node.Deregister"];
    assert_eq!(methods, expected);
    let node = field(&asked[2].1, "Node").unwrap();
    let of = |name| field(node, name).and_then(text).unwrap().to_owned();
    assert_eq!((of("Datacenter"), of("Name")), ("dc2".to_owned(), "check".to_owned()));
    assert_eq!(of("SchedulingEligibility"), "ineligible", "it takes no work");
    for (_, body) in &asked[3..] {
        assert_eq!(field(body, "NodeID").and_then(text), Some(of("ID").as_str()));
    }
}

#[tokio::test]
async fn a_region_that_the_server_does_not_know_gets_no_node() {
    let double = Double::default();
    let there = ask(vec![double.clone().start().await]);
    let found = findings(&JoinCheckRequest { region: "us".to_owned(), ..there }).await;
    assert_eq!(words(&found), ["name", "connection", "answer", "!region"]);
    assert!(found[3].found.contains("No path to region"), "{}", found[3].found);
    assert!(found[3].advice.as_ref().unwrap().contains("\"us\""));
    assert!(!can_join(&found));
    assert_eq!(double.asked(), ["Status.Ping", "Status.Leader"]);
}

#[tokio::test]
async fn a_region_without_a_leader_is_said_to_have_none() {
    let double = Double { leaderless: true, ..Double::default() };
    let found = findings(&ask(vec![double.start().await])).await;
    assert_eq!(words(&found), ["name", "connection", "answer", "!region"]);
    assert!(found[3].found.contains("no leader"), "{}", found[3].found);
}

#[tokio::test]
async fn a_server_that_is_away_does_not_hide_one_that_is_there() {
    let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = gone.local_addr().unwrap().port();
    drop(gone);
    let gone = ServerAddress { host: "127.0.0.1".to_owned(), port };
    let nameless = ServerAddress { host: "server.invalid".to_owned(), port };
    let there = Double::default().start().await;
    let found = findings(&ask(vec![nameless, gone, there])).await;
    assert_eq!(words(&found)[..3], ["!name", "name", "!connection"]);
    assert_eq!(words(&found)[6..], ["region", "registration", "heartbeat", "removal"]);
    assert!(!can_join(&found), "two of the servers cannot be reached");
}

#[tokio::test]
async fn a_refused_registration_and_a_refused_removal_are_told_apart() {
    let double = Double { refuses: Some("Node.Register"), ..Double::default() };
    let found = findings(&ask(vec![double.start().await])).await;
    assert_eq!(words(&found).last().unwrap(), "!registration");
    assert!(found.last().unwrap().advice.as_ref().unwrap().contains("introduction token"));
    assert!(!can_join(&found));
    let double = Double { refuses: Some("Node.Deregister"), ..Double::default() };
    let found = findings(&ask(vec![double.clone().start().await])).await;
    assert_eq!(words(&found).last().unwrap(), "!removal");
    assert!(can_join(&found), "that is no obstacle");
    assert_eq!(double.asked().last().unwrap(), "Node.UpdateStatus", "it is down at least");
    let asked = double.asked.lock().unwrap();
    assert_eq!(field(&asked.last().unwrap().1, "Status").and_then(text), Some("down"));
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up_in_time() {
    let there = Double { silent: true, ..Double::default() }.start().await;
    let found =
        findings(&JoinCheckRequest { wall: Duration::from_millis(200), ..ask(vec![there]) }).await;
    assert_eq!(words(&found), ["name", "connection", "!answer"]);
    assert!(found[2].found.contains("did not answer Status.Ping within 200ms"));
}

/// An authority, which signs a certificate for each name.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn acceptor(&self, name: &str) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    fn known(&self, verify_name: bool) -> ServerTls {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), self.0.pem()).unwrap();
        let authorities = file.path().to_owned();
        ServerTls::read(&TlsFiles { authorities, own: None, verify_name }, "eu").unwrap()
    }
}

#[tokio::test]
async fn with_tls_another_authority_or_name_is_refused() {
    let (ours, other) = (Authority::new(), Authority::new());
    let serve = |tls| Double { tls: Some(tls), ..Double::default() }.start();
    let right = serve(ours.acceptor("server.eu.nomad")).await;
    let wrong = serve(ours.acceptor("client.eu.nomad")).await;
    let with = |server: &ServerAddress, tls| JoinCheckRequest { tls, ..ask(vec![server.clone()]) };

    let found = findings(&with(&right, Some(ours.known(true)))).await;
    assert_eq!(words(&found)[..4], ["name", "connection", "tls", "answer"], "{found:#?}");
    assert!(can_join(&found));
    for (server, known) in
        [(&right, other.known(true)), (&right, other.known(false)), (&wrong, ours.known(true))]
    {
        let found = findings(&with(server, Some(known))).await;
        assert_eq!(words(&found), ["name", "connection", "!tls"]);
    }
    let found = findings(&with(&wrong, Some(ours.known(false)))).await;
    assert!(can_join(&found), "no name was asked for: {found:#?}");
    let found = findings(&with(&right, None)).await;
    assert_eq!(words(&found), ["name", "connection", "!answer"]);
    assert!(found[2].advice.as_ref().unwrap().contains("TLS"), "{found:#?}");
}

#[test]
fn files_that_have_no_certificates_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "nothing").unwrap();
    let files = |authorities| TlsFiles { authorities, own: None, verify_name: true };
    let error = ServerTls::read(&files(empty.clone()), "eu").unwrap_err();
    assert!(error.to_string().contains("empty.pem has no readable certificate"), "{error}");
    let error = ServerTls::read(&files(dir.path().join("none.pem")), "eu").unwrap_err();
    assert!(error.to_string().contains("none.pem"), "{error}");
    let error = ServerTls::read(&files(empty), "a b").unwrap_err();
    assert!(error.to_string().contains("region \"a b\""), "{error}");
}
