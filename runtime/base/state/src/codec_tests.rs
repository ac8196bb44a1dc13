//! Tests of the envelope: round trip, damage, limits.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use super::*;
use proptest::prelude::*;

fn record<T: Serialize>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    encode(RecordKind::TaskLocal, value, &mut out).unwrap();
    out
}

proptest! {
    #[test]
    fn a_value_comes_back_as_it_was(value: (String, Vec<u64>, Option<i32>)) {
        prop_assert_eq!(decode::<(String, Vec<u64>, Option<i32>)>(RecordKind::TaskLocal, &record(&value)).unwrap(), value);
    }

    #[test]
    fn any_flipped_bit_is_noticed(value: Vec<u8>, at: prop::sample::Index, bit in 0..8u32) {
        let mut bytes = record(&value);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(decode::<Vec<u8>>(RecordKind::TaskLocal, &bytes).is_err());
    }

    #[test]
    fn any_cut_is_noticed(value: Vec<u8>, keep: prop::sample::Index) {
        let bytes = record(&value);
        let cut = &bytes[..keep.index(bytes.len())];
        prop_assert!(decode::<Vec<u8>>(RecordKind::TaskLocal, cut).is_err());
    }

    #[test]
    fn arbitrary_bytes_are_no_record(bytes: Vec<u8>) {
        prop_assert!(decode::<Vec<String>>(RecordKind::Alloc, &bytes).is_err());
    }
}

#[test]
fn a_record_under_the_wrong_key_is_refused() {
    let error = decode::<u8>(RecordKind::Alloc, &record(&7u8)).unwrap_err();
    assert_eq!(
        error,
        CodecError::Kind { found: RecordKind::TaskLocal as u8, expected: RecordKind::Alloc }
    );
}

#[test]
fn a_record_of_another_schema_is_told_from_a_damaged_one() {
    let mut bytes = record(&7u8);
    bytes[2..4].copy_from_slice(&9u16.to_le_bytes());
    let end = bytes.len() - CHECKSUM;
    let checksum = xxh3_64(&bytes[..end]);
    bytes[end..].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(decode::<u8>(RecordKind::TaskLocal, &bytes), Err(CodecError::Schema { found: 9 }));
}

#[test]
fn a_record_of_a_longer_type_is_refused() {
    let error = decode::<u8>(RecordKind::TaskLocal, &record(&(7u8, 8u8))).unwrap_err();
    assert_eq!(error, CodecError::Trailing { len: 1 });
}

#[test]
fn a_list_that_claims_to_be_huge_is_refused_without_making_room_for_it() {
    let bytes = record(&u64::MAX);
    assert!(matches!(decode::<Vec<u64>>(RecordKind::TaskLocal, &bytes), Err(CodecError::Body(_))));
}

#[test]
fn the_largest_value_is_encoded_and_one_byte_more_is_refused() {
    // Four bytes hold the length of a string of this size.
    let largest = "x".repeat(STATE_VALUE_BYTES_MAX - HEADER - CHECKSUM - 4);
    let bytes = record(&largest);
    assert_eq!(bytes.len(), STATE_VALUE_BYTES_MAX);
    assert_eq!(decode::<String>(RecordKind::TaskLocal, &bytes).unwrap(), largest);
    let over = largest + "x";
    assert_eq!(encode(RecordKind::TaskLocal, &over, &mut Vec::new()), Err(CodecError::TooLarge));
}

#[test]
fn encoding_again_into_the_same_buffer_keeps_nothing_of_before() {
    let mut out = Vec::new();
    encode(RecordKind::TaskLocal, &"a long value before", &mut out).unwrap();
    encode(RecordKind::TaskLocal, &"b", &mut out).unwrap();
    assert_eq!(decode::<String>(RecordKind::TaskLocal, &out).unwrap(), "b");
}

#[test]
fn bytes_on_disk_do_not_change_unnoticed() {
    // Schema 5 belongs to these tests.
    let bytes = record(&(1u8, "ab"));
    assert_eq!(bytes[..8], [b'O', b'S', 5, 0, 4, 1, 2, b'a']);
    assert_eq!(bytes.len(), 9 + CHECKSUM);
}
