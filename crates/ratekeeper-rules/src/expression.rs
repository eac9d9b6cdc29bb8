//! Compiled regular expressions and their memory use.
//!
//! An expression is compiled completely when rules are read: to a DFA if that stays small, else to an NFA. Neither
//! builds anything while matching, so the first request under new rules is as fast as any other, and no memory of an
//! expression outlives the last rule set that uses it. NFAs match with one buffer per thread, however many
//! expressions and rule sets there are.

use crate::path::PathStyle;
use crate::path_pattern_error::PathPatternError;
use parking_lot::Mutex;
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson::backtrack::{self, BoundedBacktracker};
use regex_automata::nfa::thompson::pikevm::{self, PikeVM};
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

/// The most memory, in bytes, that one compiled expression may take.
const MAX_REGEX_BYTES: usize = 1 << 20;
/// The most memory, in bytes, that all compiled expressions of a file may take together.
pub(crate) const MAX_EXPRESSIONS_BYTES: usize = 64 << 20;
/// The most memory, in bytes, of a DFA, and of building one. Most path expressions take less than 10 KiB; for those
/// that take more than this limit, building the table would take longer than reading the rest of the file.
const MAX_DFA_BYTES: usize = 64 << 10;
/// An NFA with more states than this is not converted to a DFA: it would hardly fit, and trying takes milliseconds.
const MAX_DFA_NFA_STATES: usize = 500;

/// A compiled expression. Equal expressions share one, across all live rule sets.
#[derive(Debug)]
pub(crate) struct Expression {
    engine: ExpressionEngine,
    /// Whether it can match only at the start of the text.
    is_anchored: bool,
}

#[derive(Debug)]
enum ExpressionEngine {
    Dfa(Box<dense::DFA<Vec<u32>>>),
    /// The PikeVM is for paths that are too long for the bounded backtracker.
    Nfa(BoundedBacktracker, PikeVM),
}

impl Expression {
    /// Returns the shared compiled form of an expression, and compiles it if no live rule set has it.
    pub(crate) fn interned(
        expression: &str,
        style: PathStyle,
        is_anchored: bool,
    ) -> Result<Arc<Expression>, PathPatternError> {
        let name = (Box::from(expression), style.ignore_case);
        let mut table = INTERNED.lock();
        if let Some(shared) = table.find(&name) {
            return Ok(shared);
        }
        let compiled = Arc::new(Expression::compile(expression, style, is_anchored)?);
        table.insert(name, &compiled);
        Ok(compiled)
    }

    fn compile(
        expression: &str,
        style: PathStyle,
        is_anchored: bool,
    ) -> Result<Expression, PathPatternError> {
        let dialect = syntax::Config::new().dot_matches_new_line(true).case_insensitive(style.ignore_case);
        let config =
            thompson::Config::new().nfa_size_limit(Some(MAX_REGEX_BYTES)).which_captures(WhichCaptures::None);
        let nfa =
            NFA::compiler().syntax(dialect).configure(config).build(expression).map_err(
                |error| match error.size_limit() {
                    Some(_) => PathPatternError::RegexTooLarge,
                    None => PathPatternError::InvalidRegex { message: error.to_string() },
                },
            )?;
        let engine = match build_dfa(&nfa, is_anchored) {
            Some(dfa) => ExpressionEngine::Dfa(Box::new(dfa)),
            None => {
                let failed = |error: thompson::BuildError| PathPatternError::InvalidRegex {
                    message: error.to_string(),
                };
                let backtracker =
                    BoundedBacktracker::builder().build_from_nfa(nfa.clone()).map_err(failed)?;
                ExpressionEngine::Nfa(backtracker, PikeVM::builder().build_from_nfa(nfa).map_err(failed)?)
            }
        };
        Ok(Expression { engine, is_anchored })
    }

    /// Whether the expression matches anywhere in the text, or at its start if it is anchored.
    pub(crate) fn is_match(&self, text: &str) -> bool {
        let anchored = if self.is_anchored { Anchored::Yes } else { Anchored::No };
        let input = Input::new(text).anchored(anchored).earliest(true);
        match &self.engine {
            ExpressionEngine::Dfa(dfa) => dfa.try_search_fwd(&input).is_ok_and(|found| found.is_some()),
            ExpressionEngine::Nfa(backtracker, pike) => BUFFERS.with_borrow_mut(|buffers| {
                let buffer = buffers.backtracker.get_or_insert_with(|| backtrack::Cache::new(backtracker));
                buffer.reset(backtracker);
                // The backtracker fails only for texts that are too long for it.
                backtracker.try_is_match(buffer, input.clone()).unwrap_or_else(|_| {
                    let buffer = buffers.pike.get_or_insert_with(|| pikevm::Cache::new(pike));
                    buffer.reset(pike);
                    pike.is_match(buffer, input.clone())
                })
            }),
        }
    }

    /// The memory that the expression takes, in bytes.
    pub(crate) fn memory_usage(&self) -> usize {
        size_of::<Expression>()
            + match &self.engine {
                ExpressionEngine::Dfa(dfa) => dfa.memory_usage(),
                ExpressionEngine::Nfa(backtracker, _) => backtracker.get_nfa().memory_usage(),
            }
    }
}

/// Builds a DFA. Returns `None` if it would take too much memory, or if a DFA can't express the regex.
fn build_dfa(nfa: &NFA, is_anchored: bool) -> Option<dense::DFA<Vec<u32>>> {
    if nfa.states().len() > MAX_DFA_NFA_STATES {
        return None;
    }
    let config = dense::Config::new()
        .start_kind(if is_anchored { StartKind::Anchored } else { StartKind::Unanchored })
        .dfa_size_limit(Some(MAX_DFA_BYTES))
        .determinize_size_limit(Some(MAX_DFA_BYTES))
        // Paths are too short to gain from acceleration, and it makes building slower.
        .accelerate(false);
    dense::Builder::new().configure(config).build_from_nfa(nfa).ok()
}

/// The total memory of a file's expressions. Those that share a compiled form count once.
#[derive(Debug, Default)]
pub(crate) struct ExpressionMemory {
    /// By address, which stays unique because the map keeps the expressions alive.
    counted: HashMap<usize, Arc<Expression>>,
    bytes: usize,
}

impl ExpressionMemory {
    pub(crate) fn add(&mut self, expression: &Arc<Expression>) {
        let address = Arc::as_ptr(expression).addr();
        if self.counted.insert(address, Arc::clone(expression)).is_none() {
            self.bytes += expression.memory_usage();
        }
    }

    /// Counts an expression that exceeds its own limit as one of the largest allowed size, so that only few of those
    /// are compiled.
    pub(crate) fn add_oversized(&mut self) {
        self.bytes += MAX_REGEX_BYTES;
    }

    /// The number of distinct compiled expressions.
    pub(crate) fn len(&self) -> usize {
        self.counted.len()
    }

    /// Their total memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn exceeds_limit(&self) -> bool {
        self.bytes > MAX_EXPRESSIONS_BYTES
    }

    /// The error message for a file that exceeds the limit.
    pub(crate) fn limit_error() -> String {
        format!(
            "the regular expressions of the file take over {} MiB when compiled, and none from here on is read: write \
             paths or templates, or smaller counts in {{}}",
            MAX_EXPRESSIONS_BYTES >> 20
        )
    }
}

thread_local! {
    static BUFFERS: RefCell<NfaBuffers> = const { RefCell::new(NfaBuffers { backtracker: None, pike: None }) };
}

/// The buffers that NFAs need to match, shared by all expressions on a thread.
struct NfaBuffers {
    backtracker: Option<backtrack::Cache>,
    pike: Option<pikevm::Cache>,
}

/// All live expressions, by their text and whether case is ignored. Only the rule reader takes this lock.
static INTERNED: LazyLock<Mutex<ExpressionTable>> = LazyLock::new(Mutex::default);

type ExpressionName = (Box<str>, bool);

#[derive(Default)]
struct ExpressionTable {
    table: HashMap<ExpressionName, Weak<Expression>>,
    /// The number of live expressions when dead ones were last removed.
    live: usize,
}

impl ExpressionTable {
    fn find(&self, name: &ExpressionName) -> Option<Arc<Expression>> {
        self.table.get(name)?.upgrade()
    }

    fn insert(&mut self, name: ExpressionName, expression: &Arc<Expression>) {
        /// How far the table may outgrow twice the live expressions before dead ones are removed.
        const SLACK: usize = 64;
        if self.table.len() >= 2 * self.live + SLACK {
            self.table.retain(|_, expression| expression.strong_count() > 0);
            self.live = self.table.len();
        }
        self.table.insert(name, Arc::downgrade(expression));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(expression: &str, is_anchored: bool) -> Expression {
        Expression::compile(expression, PathStyle::default(), is_anchored)
            .unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    #[test]
    fn expressions_too_large_for_a_dfa_match_too() {
        let large = compile("^/(a|b)*a(a|b){14}$", true);
        assert!(matches!(large.engine, ExpressionEngine::Nfa(..)));
        assert!(large.is_match(&format!("/{}a{}", "b".repeat(9), "b".repeat(14))));
        assert!(!large.is_match(&format!("/{}b{}", "b".repeat(9), "b".repeat(14))));
        let long = "b".repeat(1 << 20);
        assert!(large.is_match(&format!("/{long}a{}", "b".repeat(14))), "too long for the backtracker");
        let boundary = compile(r"\bx\b", false);
        assert!(matches!(boundary.engine, ExpressionEngine::Nfa(..)));
        assert!(boundary.is_match("/a/x/b") && !boundary.is_match("/ax/b"));
        for small in ["^(?:[0-9]+$)", r"^(?:[^/]*\.json$)", "^(?:.*/x$)"] {
            assert!(matches!(compile(small, true).engine, ExpressionEngine::Dfa(_)), "{small}");
        }
    }

    #[test]
    fn dead_expressions_are_removed_from_the_table() {
        for turn in 0..1_000 {
            Expression::interned(&format!("dead{turn}"), PathStyle::default(), false).unwrap();
        }
        let kept = Expression::interned("kept", PathStyle::default(), false).unwrap();
        assert!(Arc::ptr_eq(&kept, &Expression::interned("kept", PathStyle::default(), false).unwrap()));
        let interned = INTERNED.lock();
        assert!(interned.table.len() < 500, "{}", interned.table.len());
    }
}
