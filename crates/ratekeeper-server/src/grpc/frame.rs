//! gRPC message framing: a compression flag, the length in four bytes, and the message.

use tonic::Status;

/// The size of a frame header.
pub(super) const HEADER_BYTES: usize = 5;

/// A message, and the bytes after it.
type FrameSplit<'a> = (&'a [u8], &'a [u8]);

/// The first message in `bytes`. Returns `None` if it is not complete yet.
///
/// # Errors
/// If the message is compressed or longer than `max_bytes`. This is known from the header alone.
#[inline]
pub(super) fn split(bytes: &[u8], max_bytes: usize) -> Result<Option<FrameSplit<'_>>, Status> {
    let Some(([flag, length @ ..], rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    if *flag != 0 {
        return Err(compressed());
    }
    let length = u32::from_be_bytes(*length) as usize;
    if length <= max_bytes { Ok(rest.split_at_checked(length)) } else { Err(too_long(length, max_bytes)) }
}

/// Appends a frame with the message that `write` writes.
#[inline]
pub(super) fn append(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    write(out);
    let length =
        u32::try_from(out.len() - start - HEADER_BYTES).expect("answers are bounded far below 4 GiB");
    out[start + 1..start + HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
}

#[cold]
fn compressed() -> Status {
    Status::unimplemented("the message is compressed: send it uncompressed, without grpc-encoding")
}

#[cold]
fn too_long(length: usize, max_bytes: usize) -> Status {
    Status::invalid_argument(format!("the message has {length} bytes: send at most {max_bytes}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn appended_frames_can_be_split() {
        let mut out = Vec::new();
        append(&mut out, |out| out.extend_from_slice(b"one"));
        append(&mut out, |_| {});
        append(&mut out, |out| out.extend_from_slice(&[7; 300]));
        let (one, rest) = split(&out, 300).unwrap().unwrap();
        let (two, rest) = split(rest, 300).unwrap().unwrap();
        let (three, rest) = split(rest, 300).unwrap().unwrap();
        assert_eq!((one, two, three, rest), (&b"one"[..], &b""[..], &[7; 300][..], &b""[..]));
        for end in 0..8 {
            assert!(split(&out[..end], 300).unwrap().is_none(), "{end} bytes");
        }
    }

    #[test]
    fn compressed_and_oversized_messages_are_rejected_by_their_header() {
        assert_eq!(split(&[1, 0, 0, 0, 0], 9).unwrap_err().code(), Code::Unimplemented);
        let status = split(&[0, 0, 0, 0, 10], 9).unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (Code::InvalidArgument, "the message has 10 bytes: send at most 9")
        );
    }
}
