//! Converts times to and from the bytes of Go's `time.Time`: a version, seconds since the year 1,
//! nanoseconds, and minutes east of Greenwich (-1 for UTC). It follows the documentation of
//! `Time.MarshalBinary`.

use ostler_model::time::Timestamp;

/// The seconds from the first of January of the year 1 to that of 1970.
const BEFORE_1970: i64 = 62_135_596_800;
const NANOS: i128 = 1_000_000_000;

/// The bytes of a time; `None` is Go's zero time.
#[must_use]
pub fn to_bytes(time: Option<Timestamp>) -> [u8; 15] {
    let (seconds, nanos) = time.map_or((0, 0), |time| {
        let (seconds, nanos) = (time.nanos() / 1_000_000_000, time.nanos() % 1_000_000_000);
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_add(BEFORE_1970);
        (seconds, u32::try_from(nanos).unwrap_or(0))
    });
    let mut bytes = [0; 15];
    bytes[0] = 1;
    bytes[1..9].copy_from_slice(&seconds.to_be_bytes());
    bytes[9..13].copy_from_slice(&nanos.to_be_bytes());
    bytes[13..].copy_from_slice(&(-1_i16).to_be_bytes());
    bytes
}

/// The time in such bytes. `None` for Go's zero time, for a time before 1970, and for bytes that
/// are no time.
#[must_use]
pub fn from_bytes(bytes: &[u8]) -> Option<Timestamp> {
    let (version, rest) = bytes.split_first()?;
    let (seconds, rest) = rest.split_first_chunk::<8>()?;
    let nanos = rest.first_chunk::<4>()?;
    // Version 2 has seconds in its zone.
    if !matches!((version, bytes.len()), (1, 15) | (2, 16)) {
        return None;
    }
    let since = i128::from(i64::from_be_bytes(*seconds)) - i128::from(BEFORE_1970);
    let nanos = since * NANOS + i128::from(u32::from_be_bytes(*nanos));
    u64::try_from(nanos).ok().filter(|nanos| *nanos > 0).map(Timestamp::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_keeps_its_nanoseconds_and_no_time_is_the_year_one() {
        let time = Timestamp::from_nanos(1_795_493_531_162_338_411);
        assert_eq!(from_bytes(&to_bytes(Some(time))), Some(time));
        assert_eq!(from_bytes(&to_bytes(None)), None);
        assert_eq!(to_bytes(None), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255]);
    }

    #[test]
    fn what_go_wrote_is_read() {
        let bytes = b"\x01\x00\x00\x00\x0e\xe2\x97\x05\x9b\t\xad-\xc6\xff\xff";
        assert_eq!(from_bytes(bytes), Some(Timestamp::from_nanos(1_795_493_531_162_344_390)));
        assert_eq!(from_bytes(&bytes[..14]), None);
        assert_eq!(from_bytes(&[]), None);
    }
}
