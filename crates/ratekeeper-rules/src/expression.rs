//! Compiled regular expressions, and how much memory they take.
//!
//! An expression is compiled in full when rules are read: into a DFA if that stays small, else into an NFA. Neither
//! builds anything while it matches, so the first request under new rules is as quick as any other, and nothing of an
//! expression outlives the last rule set that uses it. What an NFA needs to match is one buffer for each thread, whatever
//! the number of expressions and of rule sets.

use crate::path::PathStyle;
use crate::pattern::{PathPattern, PathPatternError};
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

/// The most memory that one compiled expression may take.
const MAX_REGEX_BYTES: usize = 1 << 20;
/// The most memory that all compiled expressions of a file may take together.
pub(crate) const MAX_EXPRESSIONS_BYTES: usize = 64 << 20;
/// The most memory of a DFA, and of building one. Most expressions of paths take less than 10 KiB; of those that take
/// more, building a larger table would take longer than reading the rest of the file.
const MAX_DFA_BYTES: usize = 64 << 10;
/// An NFA with more states than this is not made into a DFA: it would hardly fit, and trying takes milliseconds.
const MAX_DFA_NFA_STATES: usize = 500;

/// A compiled expression. Expressions that are written alike share one, in all rule sets that are alive.
#[derive(Debug)]
pub(crate) struct Expression {
    engine: ExpressionEngine,
    /// Whether it can only match at the beginning.
    is_anchored: bool,
}

#[derive(Debug)]
enum ExpressionEngine {
    Dfa(Box<dense::DFA<Vec<u32>>>),
    /// The second is for paths that are too long for the first.
    Nfa(BoundedBacktracker, PikeVM),
}

impl Expression {
    /// The compiled form of an expression, which others that are written alike share.
    pub(crate) fn shared(
        expression: &str,
        style: PathStyle,
        is_anchored: bool,
    ) -> Result<Arc<Expression>, PathPatternError> {
        let name = (Box::from(expression), style.ignore_case);
        let mut known = KNOWN.lock();
        if let Some(shared) = known.find(&name) {
            return Ok(shared);
        }
        let compiled = Arc::new(Expression::compile(expression, style, is_anchored)?);
        known.insert(name, &compiled);
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
                    Some(_) => PathPatternError::RegexTooBig,
                    None => PathPatternError::Regex { said: error.to_string() },
                },
            )?;
        let engine = match dfa(&nfa, is_anchored) {
            Some(dfa) => ExpressionEngine::Dfa(Box::new(dfa)),
            None => {
                let failed =
                    |error: thompson::BuildError| PathPatternError::Regex { said: error.to_string() };
                let backtracker =
                    BoundedBacktracker::builder().build_from_nfa(nfa.clone()).map_err(failed)?;
                ExpressionEngine::Nfa(backtracker, PikeVM::builder().build_from_nfa(nfa).map_err(failed)?)
            }
        };
        Ok(Expression { engine, is_anchored })
    }

    /// Whether it matches in a text.
    pub(crate) fn is_match(&self, text: &str) -> bool {
        let anchored = if self.is_anchored { Anchored::Yes } else { Anchored::No };
        let input = Input::new(text).anchored(anchored).earliest(true);
        match &self.engine {
            ExpressionEngine::Dfa(dfa) => dfa.try_search_fwd(&input).is_ok_and(|found| found.is_some()),
            ExpressionEngine::Nfa(backtracker, pike) => BUFFERS.with_borrow_mut(|buffers| {
                let buffer = buffers.backtracker.get_or_insert_with(|| backtrack::Cache::new(backtracker));
                buffer.reset(backtracker);
                // It only fails for texts that are too long for it.
                backtracker.try_is_match(buffer, input.clone()).unwrap_or_else(|_| {
                    let buffer = buffers.pike.get_or_insert_with(|| pikevm::Cache::new(pike));
                    buffer.reset(pike);
                    pike.is_match(buffer, input.clone())
                })
            }),
        }
    }

    /// How much memory it takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Expression>()
            + match &self.engine {
                ExpressionEngine::Dfa(dfa) => dfa.memory_usage(),
                ExpressionEngine::Nfa(backtracker, _) => backtracker.get_nfa().memory_usage(),
            }
    }
}

/// A DFA, unless it takes too much, or the expression asks for what a DFA can't tell.
fn dfa(nfa: &NFA, is_anchored: bool) -> Option<dense::DFA<Vec<u32>>> {
    if nfa.states().len() > MAX_DFA_NFA_STATES {
        return None;
    }
    let config = dense::Config::new()
        .start_kind(if is_anchored { StartKind::Anchored } else { StartKind::Unanchored })
        .dfa_size_limit(Some(MAX_DFA_BYTES))
        .determinize_size_limit(Some(MAX_DFA_BYTES))
        // Paths are too short to gain by it, and building takes longer with it.
        .accelerate(false);
    dense::Builder::new().configure(config).build_from_nfa(nfa).ok()
}

/// How much memory the expressions of a file take together. Those that share a compiled form count once.
#[derive(Debug, Default)]
pub(crate) struct ExpressionMemory {
    /// By their addresses, which stay theirs while they are here.
    counted: HashMap<usize, Arc<Expression>>,
    bytes: usize,
}

impl ExpressionMemory {
    pub(crate) fn add(&mut self, pattern: &PathPattern) {
        let (PathPattern::Glob { cut, .. } | PathPattern::Regex { cut, .. }) = pattern else { return };
        let Some(expression) = cut.tail() else { return };
        let address = Arc::as_ptr(expression).addr();
        if self.counted.insert(address, Arc::clone(expression)).is_none() {
            self.bytes += expression.bytes();
        }
    }

    /// Counts one that is too large by itself as the largest that may be, so that few of those are looked at.
    pub(crate) fn add_refused(&mut self) {
        self.bytes += MAX_REGEX_BYTES;
    }

    /// How many different ones there are.
    pub(crate) fn len(&self) -> usize {
        self.counted.len()
    }

    /// How many bytes they take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn are_too_large(&self) -> bool {
        self.bytes > MAX_EXPRESSIONS_BYTES
    }

    /// What to say if they are.
    pub(crate) fn too_large() -> String {
        format!(
            "the expressions of the file take over {} MiB together when they are compiled, and from here on none is \
             read: write paths or templates, or smaller counts in {{}}",
            MAX_EXPRESSIONS_BYTES >> 20
        )
    }
}

thread_local! {
    static BUFFERS: RefCell<NfaBuffers> = const { RefCell::new(NfaBuffers { backtracker: None, pike: None }) };
}

/// What NFAs need to match, whichever it is.
struct NfaBuffers {
    backtracker: Option<backtrack::Cache>,
    pike: Option<pikevm::Cache>,
}

/// Expressions that are alive, by their text and whether case is ignored. Only reading rules looks here.
static KNOWN: LazyLock<Mutex<ExpressionTable>> = LazyLock::new(Mutex::default);

type ExpressionName = (Box<str>, bool);

#[derive(Default)]
struct ExpressionTable {
    table: HashMap<ExpressionName, Weak<Expression>>,
    /// How many were alive when the others were last taken out.
    alive: usize,
}

impl ExpressionTable {
    fn find(&self, name: &ExpressionName) -> Option<Arc<Expression>> {
        self.table.get(name)?.upgrade()
    }

    fn insert(&mut self, name: ExpressionName, expression: &Arc<Expression>) {
        /// So few are kept although they may be gone.
        const FEW: usize = 64;
        if self.table.len() >= 2 * self.alive + FEW {
            self.table.retain(|_, expression| expression.strong_count() > 0);
            self.alive = self.table.len();
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
    fn what_is_too_large_for_a_table_matches_all_the_same() {
        let large = compile("^/(a|b)*a(a|b){14}$", true);
        assert!(matches!(large.engine, ExpressionEngine::Nfa(..)));
        assert!(large.is_match(&format!("/{}a{}", "b".repeat(9), "b".repeat(14))));
        assert!(!large.is_match(&format!("/{}b{}", "b".repeat(9), "b".repeat(14))));
        let long = "b".repeat(1 << 20);
        assert!(large.is_match(&format!("/{long}a{}", "b".repeat(14))), "too long for the first way");
        let boundary = compile(r"\bx\b", false);
        assert!(matches!(boundary.engine, ExpressionEngine::Nfa(..)));
        assert!(boundary.is_match("/a/x/b") && !boundary.is_match("/ax/b"));
        for small in ["^(?:[0-9]+$)", r"^(?:[^/]*\.json$)", "^(?:.*/x$)"] {
            assert!(matches!(compile(small, true).engine, ExpressionEngine::Dfa(_)), "{small}");
        }
    }

    #[test]
    fn what_is_gone_is_taken_out_of_the_table() {
        for turn in 0..1_000 {
            Expression::shared(&format!("gone{turn}"), PathStyle::default(), false).unwrap();
        }
        let kept = Expression::shared("kept", PathStyle::default(), false).unwrap();
        assert!(Arc::ptr_eq(&kept, &Expression::shared("kept", PathStyle::default(), false).unwrap()));
        let known = KNOWN.lock();
        assert!(known.table.len() < 500, "{}", known.table.len());
    }
}
