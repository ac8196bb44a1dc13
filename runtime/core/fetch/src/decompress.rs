//! Readers of compressed data, each with a bound on its memory.

use std::io::{self, BufRead, BufReader, Read};

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ostler_model::artifact::ArchiveCompression;
use ostler_model::limits::{ARTIFACT_DECOMPRESSOR_BYTES_MAX, KIB};
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// A reader of the decompressed content of `from`.
pub(crate) fn decompress<'a>(
    from: impl Read + 'a,
    packing: ArchiveCompression,
) -> Result<Box<dyn Read + 'a>, io::Error> {
    let from = BufReader::new(from);
    Ok(match packing {
        ArchiveCompression::Plain => Box::new(from),
        ArchiveCompression::Gz => Box::new(MultiGzDecoder::new(from)),
        ArchiveCompression::Bz2 => Box::new(MultiBzDecoder::new(from)),
        ArchiveCompression::Xz => {
            let kib = u32::try_from(ARTIFACT_DECOMPRESSOR_BYTES_MAX / KIB).unwrap_or(u32::MAX);
            Box::new(XzReader::new_mem_limit(from, true, kib))
        }
        ArchiveCompression::Zst => Box::new(Zst::new(from)),
    })
}

/// A reader of consecutive frames of Zstandard.
struct Zst<R> {
    from: R,
    decoder: FrameDecoder,
    state: ZstState,
}

/// The place of the reader among the frames.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ZstState {
    Between,
    Within,
    Ended,
}

fn invalid_data(error: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

impl<R: BufRead> Zst<R> {
    fn new(from: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(ARTIFACT_DECOMPRESSOR_BYTES_MAX);
        Self { from, decoder, state: ZstState::Between }
    }

    /// Begin the next frame, and skip frames that are to be skipped.
    fn begin_frame(&mut self) -> io::Result<ZstState> {
        loop {
            if self.from.fill_buf()?.is_empty() {
                return Ok(ZstState::Ended);
            }
            match self.decoder.init(&mut self.from) {
                Ok(()) => return Ok(ZstState::Within),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut skipped = self.from.by_ref().take(length.into());
                    if io::copy(&mut skipped, &mut io::sink())? < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(invalid_data(error)),
            }
        }
    }

    /// Check the sum of a frame, if the frame states one.
    fn check(&self) -> io::Result<()> {
        let said = self.decoder.get_checksum_from_data();
        if said.is_some() && said != self.decoder.get_calculated_checksum() {
            return Err(invalid_data("the checksum of the unpacked data is wrong"));
        }
        Ok(())
    }
}

impl<R: BufRead> Read for Zst<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            match self.state {
                ZstState::Ended => return Ok(0),
                ZstState::Between => self.state = self.begin_frame()?,
                ZstState::Within if self.decoder.can_collect() > 0 => {
                    return self.decoder.read(into);
                }
                ZstState::Within if self.decoder.is_finished() => {
                    self.check()?;
                    self.state = ZstState::Between;
                }
                ZstState::Within => {
                    let one = BlockDecodingStrategy::UptoBlocks(1);
                    self.decoder.decode_blocks(&mut self.from, one).map_err(invalid_data)?;
                }
            }
        }
    }
}
