//! Tokens of the API, and the names by which it may be asked for.

use super::{parse, problems};
use ostler_model::access::SecretSource;

#[test]
fn tokens_of_the_api_are_read_and_what_is_wrong_with_one_is_said() {
    let sha = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let acl = parse(&format!(
        "acl {{\n enabled = true\n token \"ci\" {{\n sha256 = \"{sha}\"\n policies = [\"submit@web\", \"read\"]\n }}\n \
         token \"ops\" {{\n secret_file = \"ops.token\"\n policies = [\"admin\"]\n }}\n}}\n\
         http_hosts = [\"Node1.example\"]"
    ));
    let ci = &acl.acl.tokens["ci"];
    assert_eq!(ci.secret, SecretSource::Digest(sha.parse().unwrap()));
    let policies: Vec<_> = ci.policies.iter().map(ToString::to_string).collect();
    assert_eq!(policies, ["submit@web", "read"]);
    let file = SecretSource::File("/etc/ostler/ops.token".into());
    assert_eq!((acl.acl.enabled, &acl.acl.tokens["ops"].secret), (true, &file));
    assert_eq!(acl.http_hosts, ["node1.example"]);
    for (wrong, why) in [
        (
            "acl {\n token \"a\" {\n secret_file = \"x\"\n policies = [\"read\"]\n }\n}",
            "enabled = true",
        ),
        (
            "acl {\n enabled = true\n token \"a\" { policies = [\"read\"] }\n}",
            "sha256 and secret_file",
        ),
        ("acl {\n enabled = true\n token \"a\" { secret_file = \"x\" }\n}", "needs policies"),
        (
            "acl {\n enabled = true\n token \"a\" {\n secret_file = \"x\"\n policies = [\"write\"]\n }\n}",
            "is not a policy",
        ),
        (
            "acl {\n enabled = true\n token \"a\" {\n sha256 = \"abc\"\n policies = [\"read\"]\n }\n}",
            "sha256:",
        ),
        ("http_hosts = [\"a b\"]", "not a host name"),
        ("tls {\n verify_https_client = true\n}", "needs a ca_file"),
    ] {
        let error = problems(wrong).join("\n");
        assert!(error.contains(why), "{wrong}: {error}");
    }
}
