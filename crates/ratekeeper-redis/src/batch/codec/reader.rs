//! Reads bytes and numbers from the script's reply.

/// A reply that is not one of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid reply from the script: another program may have loaded a different script under the same name"
)]
pub(crate) struct ScriptReplyError;

pub(crate) fn read_byte(rest: &mut &[u8]) -> Result<u8, ScriptReplyError> {
    rest.split_off_first().copied().ok_or(ScriptReplyError)
}

pub(crate) fn read_units(rest: &mut &[u8]) -> Result<u32, ScriptReplyError> {
    u32::try_from(read_number(rest, 4)?).map_err(|_| ScriptReplyError)
}

pub(crate) fn read_number(rest: &mut &[u8], bytes: usize) -> Result<u64, ScriptReplyError> {
    let bytes = rest.split_off(..bytes).ok_or(ScriptReplyError)?;
    Ok(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
