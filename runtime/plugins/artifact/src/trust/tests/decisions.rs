//! Tests the verdict, over every combination of its inputs.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;

use super::*;
use ostler_model::digest::Digest;
use ostler_model::plugin::PluginKind;
use ostler_model::trust::{ListedDigest, PluginSource, PublicKey, TrustScope, TrustedKey, Voucher};

static KEY: LazyLock<PublicKey> =
    LazyLock::new(|| PublicKey::parse(&Signer::new(1).public_key()).unwrap());

/// Everything a decision is made from.
#[derive(Clone, Debug)]
struct Case {
    policy: Policy,
    demand: Demand,
    name: String,
    source: PluginSource,
    kind: Option<PluginKind>,
    digest: Digest,
    key: TrustedKey,
    signed: u8,
}

impl Case {
    fn signed(&self) -> SignatureCheck<'_> {
        let key = &self.key;
        match self.signed {
            0 => SignatureCheck::Not,
            1 => SignatureCheck::Unreadable(SignatureError::NotText),
            2 => SignatureCheck::Unknown { key: key.key.id() },
            3 => SignatureCheck::Wrong { key },
            _ => SignatureCheck::By { key, comment: "c".to_owned() },
        }
    }

    fn verdict(&self) -> Result<Voucher, TrustRefusal> {
        let subject = PluginOrigin {
            name: &self.name,
            source: self.source,
            place: "/p/x.wasm",
            kind: self.kind,
            digest: self.digest,
        };
        verdict(&self.policy, &self.demand, &subject, &self.signed())
    }

    fn required(&self) -> bool {
        self.demand.require_signature.unwrap_or(self.policy.require.contains(&self.source))
    }

    fn covers(&self, scope: &TrustScope) -> bool {
        let name = scope.plugins.is_empty()
            || scope
                .plugins
                .iter()
                .any(|p| *p == self.name || (p == "acme-*" && self.name == "acme-x"));
        name && (scope.kinds.is_empty()
            || self.kind.is_some_and(|kind| scope.kinds.contains(&kind)))
    }
}

fn sources() -> impl Strategy<Value = PluginSource> {
    prop::sample::select(vec![PluginSource::PluginDir, PluginSource::File, PluginSource::Oci])
}

fn kinds() -> impl Strategy<Value = PluginKind> {
    prop::sample::select(vec![PluginKind::Driver, PluginKind::Device])
}

fn digests() -> impl Strategy<Value = Digest> {
    prop::sample::select(vec![Digest::compute(b"1"), Digest::compute(b"2")])
}

fn scopes() -> impl Strategy<Value = TrustScope> {
    let names = prop::sample::select(vec!["acme-*".to_owned(), "exec".to_owned(), "y".to_owned()]);
    let names = prop::collection::vec(names, 0..2);
    (names, prop::collection::vec(kinds(), 0..2))
        .prop_map(|(plugins, kinds)| TrustScope { plugins, kinds })
}

fn cases() -> impl Strategy<Value = Case> {
    let reason = || prop::option::of(Just("lost".to_owned()));
    let key = (scopes(), reason()).prop_map(|(scope, revoked)| TrustedKey {
        name: "release".into(),
        key: KEY.clone(),
        scope,
        revoked,
        line: 1,
    });
    let listed = (digests(), scopes(), reason())
        .prop_map(|(digest, scope, revoked)| (digest, ListedDigest { scope, revoked, line: 2 }));
    let listed = prop::collection::btree_map(digests(), listed.prop_map(|(_, l)| l), 0..2);
    let require = prop::collection::btree_set(sources(), 0..3);
    let demand = (prop::option::of(digests()), prop::option::of(any::<bool>()))
        .prop_map(|(digest, require_signature)| Demand { digest, require_signature });
    let name = prop::sample::select(vec!["acme-x".to_owned(), "exec".to_owned(), "z".to_owned()]);
    let subject = (name, sources(), prop::option::of(kinds()), digests());
    (key, listed, require, demand, subject, 0_u8..5, 0_u8..3).prop_map(
        |(key, digests, require, demand, (name, source, kind, digest), signed, file)| {
            let keys = vec![key.clone()];
            let trust = TrustFile { file: "trust.hcl".into(), keys, digests };
            let file = match file {
                0 => None,
                1 => Some(Err("it is broken".to_owned())),
                _ => Some(Ok(Arc::new(trust))),
            };
            // Without a trust file no key is known.
            let signed = if matches!(file, Some(Ok(_))) { signed } else { signed.min(2) };
            let policy = Policy { file, require };
            Case { policy, demand, name, source, kind, digest, key, signed }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn nothing_is_used_where_somebody_must_vouch_and_nobody_does(case in cases()) {
        let Ok(voucher) = case.verdict() else { return Ok(()) };
        if !case.required() {
            return Ok(());
        }
        match voucher {
            Voucher::Key { .. } => {
                prop_assert!(matches!(case.signed(), SignatureCheck::By { .. }), "nobody signed it");
                prop_assert!(case.key.revoked.is_none() && case.covers(&case.key.scope));
            }
            Voucher::Digest { .. } => {
                let listed = &case.policy.trust().unwrap().digests[&case.digest];
                prop_assert!(listed.revoked.is_none() && case.covers(&listed.scope));
            }
            other => prop_assert!(false, "{other:?} does not stand in for a signature"),
        }
    }

    #[test]
    fn what_is_revoked_damaged_or_not_what_was_pinned_is_never_used(case in cases()) {
        let listed = case.policy.trust().and_then(|trust| trust.digests.get(&case.digest));
        let revoked_key = matches!(case.signed(), SignatureCheck::By { key, .. } if key.revoked.is_some());
        let never = listed.is_some_and(|listed| listed.revoked.is_some())
            || revoked_key
            || matches!(case.signed(), SignatureCheck::Wrong { .. } | SignatureCheck::Unreadable(_))
            || case.demand.digest.is_some_and(|pinned| pinned != case.digest)
            || matches!(case.policy.file, Some(Err(_)));
        if never {
            prop_assert!(case.verdict().is_err());
        }
    }

    #[test]
    fn requiring_more_never_lets_more_in(case in cases(), source in sources()) {
        let mut stricter = case.clone();
        stricter.policy.require.insert(source);
        if case.verdict().is_err() {
            prop_assert!(stricter.verdict().is_err());
        }
        stricter.demand.require_signature = Some(true);
        if case.verdict().is_err() {
            prop_assert!(stricter.verdict().is_err());
        }
    }

    #[test]
    fn who_vouches_is_the_same_whether_it_is_required_or_not(case in cases()) {
        let mut required = case.clone();
        required.demand.require_signature = Some(true);
        if let Ok(voucher) = required.verdict() {
            prop_assert_eq!(case.verdict(), Ok(voucher));
        }
    }

    #[test]
    fn what_is_built_in_is_part_of_the_agent_unless_other_bytes_are_pinned(case in cases()) {
        let built_in = Case { source: PluginSource::BuiltIn, ..case };
        let others = built_in.demand.digest.is_some_and(|pinned| pinned != built_in.digest);
        match built_in.verdict() {
            Ok(voucher) => prop_assert!(voucher == Voucher::Agent && !others),
            Err(refusal) => prop_assert!(others, "{refusal}"),
        }
    }
}

fn case(trust: TrustFile, signed: u8) -> Case {
    let key = trust.keys[0].clone();
    Case {
        policy: Policy { file: Some(Ok(Arc::new(trust))), require: BTreeSet::new() },
        demand: Demand { digest: None, require_signature: Some(true) },
        name: "acme-x".into(),
        source: PluginSource::PluginDir,
        kind: Some(PluginKind::Device),
        digest: Digest::compute(b"1"),
        key,
        signed,
    }
}

#[test]
fn a_refusal_prints_the_lines_that_would_mend_it() {
    let file = trust(&key_block("release", &Signer::new(1), "  plugins = [\"y\"]"));
    let refused = |signed| case(file.clone(), signed).verdict().unwrap_err().to_string();
    let lines = format!("digest \"{}\" {{}}", Digest::compute(b"1").to_tagged());
    let unsigned = refused(0);
    assert!(unsigned.contains("minisign -S -s SECRET_KEY -m /p/x.wasm\n"), "{unsigned}");
    assert!(unsigned.ends_with(&lines), "{unsigned}");
    // These lines are such that the trust file accepts them.
    trust(&lines);
    let beyond = refused(4);
    assert!(beyond.contains("may not sign the device plugin acme-x"), "{beyond}");
    assert!(beyond.contains("trust.hcl:1") && beyond.ends_with(&lines), "{beyond}");
    let unknown = refused(2);
    assert!(unknown.contains("public_key = ") && unknown.contains("trust.hcl"), "{unknown}");
    let wrong = refused(3);
    assert!(wrong.contains("/p/x.wasm.minisig was changed"), "{wrong}");
}

#[test]
fn a_digest_that_is_listed_for_another_name_is_not_to_be_listed_again() {
    let line =
        format!("digest \"{}\" {{ plugins = [\"exec2\"] }}", Digest::compute(b"1").to_tagged());
    let file = trust(&format!("{line}\n{}", key_block("release", &Signer::new(1), "")));
    let said = case(file, 0).verdict().unwrap_err().to_string();
    assert!(said.contains("trust.hcl:1") && said.contains("the device plugin acme-x"), "{said}");
    assert!(said.contains("widen plugins") && !said.contains("digest \"sha256"), "{said}");
}

#[test]
fn a_pin_alone_does_not_stand_in_for_a_signature_but_is_named_where_none_is_required() {
    let file = trust(&key_block("release", &Signer::new(1), ""));
    let mut case = case(file, 0);
    case.demand.digest = Some(case.digest);
    assert!(matches!(case.verdict(), Err(TrustRefusal::Unsigned { .. })));
    case.demand.require_signature = Some(false);
    assert_eq!(case.verdict(), Ok(Voucher::Pin));
    case.demand.digest = None;
    assert_eq!(case.verdict(), Ok(Voucher::Nobody));
}
