//! Messages on the wire: a byte that says whether one is compressed, its length in four bytes, and itself.

use tonic::Status;

/// What stands before a message.
pub(super) const HEAD_BYTES: usize = 5;

/// A message, and what is behind it.
type FrameSplit<'a> = (&'a [u8], &'a [u8]);

/// The first message of what has come; nothing if it is not all there yet.
#[inline]
pub(super) fn split(bytes: &[u8], most: usize) -> Result<Option<FrameSplit<'_>>, Status> {
    let Some(([flag, length @ ..], rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
        return Ok(None);
    };
    if *flag != 0 {
        return Err(compressed());
    }
    let length = u32::from_be_bytes(*length) as usize;
    match length <= most {
        true => Ok(rest.split_at_checked(length)),
        false => Err(too_long(length, most)),
    }
}

/// Appends the message that `write` writes.
#[inline]
pub(super) fn append(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    write(out);
    let length = u32::try_from(out.len() - start - HEAD_BYTES).expect("answers are bounded far below 4 GiB");
    out[start + 1..start + HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
}

#[cold]
fn compressed() -> Status {
    Status::unimplemented("the message is compressed: send it as it is, without grpc-encoding")
}

#[cold]
fn too_long(length: usize, most: usize) -> Status {
    Status::invalid_argument(format!("the message has {length} bytes: send at most {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn what_is_appended_can_be_split() {
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
    fn what_is_compressed_or_too_long_is_refused_by_its_head() {
        assert_eq!(split(&[1, 0, 0, 0, 0], 9).unwrap_err().code(), Code::Unimplemented);
        let said = split(&[0, 0, 0, 0, 10], 9).unwrap_err();
        assert_eq!(
            (said.code(), said.message()),
            (Code::InvalidArgument, "the message has 10 bytes: send at most 9")
        );
    }
}
