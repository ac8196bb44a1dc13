#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;

use super::*;

/// `descriptor.stat`, by its number.
fn mark() -> HostCall {
    let names = ostler_plugin::host::trace::FUNCTIONS;
    HostCall { function: number("descriptor.stat", names), arguments: 7 }
}

fn number(name: &str, names: &[&str]) -> u8 {
    names.iter().position(|one| *one == name).unwrap().try_into().unwrap()
}

/// A trace of host calls with these answers, and the player of it.
fn recorded(answers: &[&[u8]]) -> Player {
    let log = SharedTrace::default();
    for answer in answers {
        log.begin_call(mark());
        log.end_call(&|out| out.extend_from_slice(answer));
    }
    Player::new(log.take())
}

/// The next answer, which has this many bytes.
fn next(player: &mut Player, call: HostCall, len: usize) -> Result<Vec<u8>, Divergence> {
    let mut answer = Vec::new();
    let read = &mut |reader: &mut WireReader<'_>| match reader.bytes(len) {
        Some(bytes) => {
            answer = bytes.to_vec();
            true
        }
        None => false,
    };
    player.next(call, read)?;
    Ok(answer)
}

#[test]
fn answers_are_given_again_one_after_the_other() {
    let mut player = recorded(&[b"one", b"three"]);
    assert_eq!(next(&mut player, mark(), 3).unwrap(), b"one");
    assert_eq!(player.calls_left(), 1);
    assert_eq!(next(&mut player, mark(), 5).unwrap(), b"three");
    assert_eq!((player.divergence.clone(), player.calls_left()), (None, 0));
}

#[test]
fn whoever_leaves_the_recording_is_told_where() {
    let random = number("random.get-random-u64", ostler_plugin::host::trace::FUNCTIONS);
    let mut other = recorded(&[b"1"]);
    let text = next(&mut other, HostCall { function: random, arguments: 0 }, 1);
    let text = text.unwrap_err().to_string();
    assert!(text.contains("random.get-random-u64") && text.contains("descriptor.stat"), "{text}");
    assert_eq!(other.divergence.unwrap().to_string(), text, "it is known afterwards");
    let mut longer = recorded(&[b"1"]);
    next(&mut longer, mark(), 1).unwrap();
    assert!(matches!(next(&mut longer, mark(), 1), Err(Divergence::Longer { at: 2, .. })));
    let log = SharedTrace::default();
    log.begin_call(mark());
    let mut waiting = Player::new(log.take());
    assert!(matches!(next(&mut waiting, mark(), 1), Err(Divergence::GivenUp { at: 1, .. })));
    let mut damaged = recorded(&[b"1"]);
    assert!(matches!(next(&mut damaged, mark(), 2), Err(Divergence::Damaged { at: 1, .. })));
}

#[test]
fn other_arguments_are_noticed_and_answered() {
    let mut player = recorded(&[b"5"]);
    let other = HostCall { arguments: 8, ..mark() };
    assert_eq!(next(&mut player, other, 1).unwrap(), b"5");
    assert_eq!(player.other_arguments, Some((1, "descriptor.stat")));
}

#[test]
fn a_trace_is_cut_between_answers_and_says_so() {
    let large = vec![1_u8; PLUGIN_TRACE_BYTES_MAX / 2];
    let mut player = recorded(&[&large[..]; 4]);
    assert!(player.trace.bytes.len() <= PLUGIN_TRACE_BYTES_MAX && player.trace.calls == 4);
    next(&mut player, mark(), large.len()).unwrap();
    assert!(next(&mut player, mark(), large.len()).is_err());
    assert_eq!(player.divergence, Some(Divergence::Cut { at: 2 }));
}

#[test]
fn the_first_secrets_that_are_learnt_stay_secret() {
    let log = SharedTrace::default();
    log.learn(&mut ["one", "two"].into_iter());
    log.learn(&mut ["three"].into_iter());
    assert_eq!(log.take().secrets, ["one", "two"]);
}

proptest! {
    #[test]
    fn arbitrary_traces_never_panic_and_come_to_an_end(bytes: Vec<u8>) {
        let mut player = Player::new(Trace { bytes, ..Trace::default() });
        player.read_all();
        let call = HostCall { function: player.trace.bytes.get(player.at).copied().unwrap_or(0), arguments: 0 };
        prop_assert!(player.find(call, &mut |reader| reader.bytes(usize::MAX).is_some()).is_err());
    }
}
