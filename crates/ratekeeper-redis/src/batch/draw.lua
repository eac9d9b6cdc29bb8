-- Decides many requests in one call, in order, each all or nothing, by this server's clock.
--
-- Only what must be atomic is here. The steps are those of ratekeeper-core (algorithm/bucket.rs,
-- algorithm/fixed_window.rs, algorithm/sliding_window.rs, algorithm/sliding_log.rs, algorithm/concurrency.rs),
-- bit for bit: every number is an integer below 2^53. Each function names its Rust twin, and the tests in
-- redis/parity.rs compare both. Rust interprets the results, and converts a state when its quota has changed.
--
-- KEYS: first those with a string state, then, counted from the end, those with a list or a sorted set.
-- ARGV[1]: the number of keys with a string state, then the limits. ARGV[2]: the draws. ARGV[3], optional:
-- renewals, which are reports on leased units and requests for more. script_call.rs encodes all three and decodes
-- the reply.
--
-- The most frequent request, one draw of some units from one bucket, is decided in the loop at the end.
-- Everything else is decided by functions that are only created when they are needed, because the whole script
-- runs anew with every call.
--
-- A server may reject writes, for example when it is out of memory (OOM, MISCONF, NOREPLICAS). Then the first
-- write of a call is rejected, before anything has changed, and the call is decided once more without writing:
-- requests that would have to write get the code UNWRITTEN, and all others are decided. Once a write has
-- succeeded, the server accepts all others of the same call.
--
-- Called with a key and no arguments, the script changes nothing and reports whether it could run: which commands
-- the user may not run, and the error that a write would get. node/supervisor.rs and node/failure.rs have the
-- same commands and error codes.
--
-- Cost of a draw in instructions of Redis 7.0.15 (callgrind; distinct keys, all granted): 79 k alone, 29 k with
-- 16 in a call, 26 k with 64. A plain script that does one GCRA check with GET and SET PX takes 59 k, a token
-- bucket in a hash 73 k. Of the 26 k, 14 k are PSETEX, which is 5 % cheaper than SET PX. GET for each key instead
-- of MGET costs 2.7 k more.

local read, write, call = struct.unpack, struct.pack, redis.call
local ceil, floor = math.ceil, math.floor

-- A drained state is equivalent to none, so a state may expire once it has drained. It is kept for this many
-- milliseconds longer, so that it is still there if the clock is set back by a moment.
local SLACK = 1000
-- By how many microseconds the clock may be set back before a state is rebased to the current time:
-- MAX_CLOCK_STEP_BACK of ratekeeper-core.
local MOST_BACK = 5000000

if not ARGV[1] then
  local missing = {}
  local commands = 'TIME MGET PSETEX DEL PEXPIRE LRANGE LINDEX LLEN LSET LTRIM RPUSH ZSCORE ZADD ZREM ZCARD ZRANGEBYLEX '
    .. 'ZREVRANGEBYLEX'
  for command in string.gmatch(commands, '%u+') do
    if not redis.acl_check_cmd(command) then
      missing[#missing + 1] = command
    end
  end
  -- This changes nothing, because the key does not exist, and is rejected if a write would be.
  local said = redis.acl_check_cmd('ZADD') and redis.pcall('ZADD', KEYS[1], 'XX', 0, '')
  return {table.concat(missing, ' '), type(said) == 'table' and said.err or ''}
end

local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

local blob = ARGV[1]
local strings, at_limit = read('>H', blob)
local limits = {}
while at_limit <= #blob do
  local algorithm, length, time_bytes, form, prefix, ends, a, b, c, d, tick, next_limit =
    read('>BBBBc0Bc0Bc0I7I7I7I4I4', blob, at_limit)
  at_limit = next_limit
  limits[#limits + 1] = {
    algorithm = algorithm, length = length, span = 256 ^ time_bytes, form = form, prefix = prefix, ends = ends,
    a = a, b = b, c = c, d = d, tick = tick,
  }
end

-- The values as this call has left them so far, and the TTL in milliseconds of each that was changed.
local values, lapses = {}, {}
-- The states that other quotas have left under a key, once they had to be separated: see `part` below.
local former
if strings > 0 then
  values = call('MGET', unpack(KEYS, 1, strings))
end

local records = ARGV[2]
local reply, said = {write('>I7', now), '', ''}, 1

-- Whether this call has written something, and the code of the error that rejected its first write, if any.
local has_written, unwritable = false, nil

-- Returns the code of an error that says that the server rejects writes, and nil for any other error.
local function find_refusal(err)
  local code = string.match(err, '^%-?(%u+)')
  return (code == 'OOM' or code == 'MISCONF' or code == 'NOREPLICAS') and code or nil
end

-- Creates the algorithms with a string state. Returns the constructors of the two functions that use them: one
-- decides groups of any kind, the other handles leases.
local function make_algorithms()
  local STALE, OUTSIDE, BROKEN = 0, 1, 2
  local BUCKET, FIXED, SLIDING = 0, 1, 2
  local FIRST_HIT, MULTIPLES = 0, 1
  local MOST = 2 ^ 53 - 1
  -- Length of a lease term of a bucket in microseconds: LEASE_TERM of ratekeeper-core.
  local TERM = 30000000
  local char, sub, min, max = string.char, string.sub, math.min, math.max

  local function say(text)
    said = said + 1
    reply[said] = text
  end

  -- The TTL in milliseconds of a state that has drained at this time.
  local function lapse_in(drained)
    return max(1, ceil((drained - now) / 1000) + SLACK)
  end

  former = former or {}

  -- Writes to a list or a sorted set. If that is the first write of the call and the server rejects it, this
  -- aborts the group and sets `unwritable` to the error code. Any other error aborts the call.
  local function put(...)
    if has_written then
      return call(...)
    end
    local answer = redis.pcall(...)
    if type(answer) == 'table' and answer.err then
      local code = find_refusal(answer.err)
      unwritable = unwritable or code
      error(code or answer, 0)
    end
    has_written = true
    return answer
  end

  -- Whether a value was written under this very limit. The value of a bucket with leased units has eight bytes
  -- more, and the states of other quotas follow that.
  local function is_own(limit, value)
    return #value >= limit.length and sub(value, 1, #limit.prefix) == limit.prefix
  end

  -- Separates the states of other quotas from a key's value, to be appended again when that is written. Here only
  -- the time when all of them have drained matters; Rust decodes them when one of those quotas is used again. The
  -- value of a bucket with such states always has its leased units. Twin of StoredValue::read.
  local function part(limit, key)
    local value = values[key]
    if not value or former[key] or not is_own(limit, value) then
      return
    end
    local ends = limit.length + (limit.algorithm == BUCKET and 8 or 0)
    if #value <= ends then
      return
    end
    local drained, void, rest = read('>I7I7', value, ends + 1)
    if drained + SLACK * 1000 > now then
      former[key] = {limit = limit, own = sub(value, 1, ends), drained = drained, void = void, rest = sub(value, rest)}
    end
    local is_lent = limit.algorithm == BUCKET and sub(value, limit.length + 1, ends) ~= string.rep('\0', 8)
    values[key] = void > now and sub(value, 1, is_lent and ends or limit.length)
  end

  -- A key's value with the states of other quotas. Twin of StoredValue::write.
  local function whole(key)
    local value, left = values[key], former[key]
    if not left then
      return value
    end
    local limit, lapse = left.limit, lapses[key]
    if not lapse then
      return left.own .. write('>I7I7', left.drained, left.void) .. left.rest
    end
    -- Without the other states, the value would expire at this time.
    local void = value and now + lapse * 1000 or 0
    value = value or limit.prefix .. string.rep('\0', limit.length - #limit.prefix)
    if limit.algorithm == BUCKET and #value == limit.length then
      value = value .. string.rep('\0', 8)
    end
    return value .. write('>I7I7', left.drained, void) .. left.rest
  end
  former.whole = whole

  -- Algorithms with a string state. `age` decodes the state as of now, `room` returns how many units fit, `take`
  -- grants some units or returns nil to deny, and `give` returns some. The last two return the new value, or
  -- false for none, and its TTL.
  local algorithms = {}

  -- Twin of Bucket. a: parts of a unit, b: parts refilled per tick, c: the most parts that may be owed, d: the
  -- burst.
  local bucket = {}
  algorithms[BUCKET] = bucket

  -- The number of ticks of a term. Twin of Bucket::term_ticks.
  function bucket.term(limit)
    return max(1, floor(TERM / limit.tick))
  end

  -- The debt at the end of its term, when the units leased in the term before expire. Twin of a step in
  -- Bucket::age_leased.
  function bucket.end_term(limit, owed, at, older, recent)
    local term = bucket.term(limit)
    local ends = (floor(at / term) + 1) * term
    return max(0, owed - (ends - at) * limit.b) + older * limit.a, ends, recent, 0
  end

  -- Twin of Tick::is_too_far_ahead.
  function bucket.is_ahead(limit, at)
    local instant = limit.tick == 1 and now or floor(now / limit.tick)
    return at - instant > max(1, floor(MOST_BACK / limit.tick))
  end

  -- Whether the clock was set back far behind the time of a value. Twin of Bucket::needs_rebase.
  function bucket.is_early(limit, value)
    local instant = limit.tick == 1 and now or floor(now / limit.tick)
    local _, owed, at = read(limit.form, value)
    return (owed > 0 or #value > limit.length) and bucket.is_ahead(limit, at + floor((instant - at) / limit.span + 0.5) * limit.span)
  end

  -- The debt, since when, and the leased units: of the previous term, and of the term of that time. Twin of
  -- Bucket::age_leased.
  function bucket.age(limit, value)
    local instant = limit.tick == 1 and now or floor(now / limit.tick)
    if not value then
      return 0, instant, 0, 0
    end
    local _, owed, at = read(limit.form, value)
    local older, recent = 0, 0
    -- Only the low bytes of the time are stored: the nearest time that has them is meant.
    at = at + floor((instant - at) / limit.span + 0.5) * limit.span
    if #value > limit.length then
      older, recent = read('>I4I4', value, limit.length + 1)
      local term = bucket.term(limit)
      while older + recent > 0 and floor(instant / term) > floor(at / term) do
        owed, at, older, recent = bucket.end_term(limit, owed, at, older, recent)
      end
    end
    if instant >= at then
      -- Beyond the debt the product may be rounded, but never to below it.
      return max(0, owed - (instant - at) * limit.b), instant, older, recent
    end
    if bucket.is_ahead(limit, at) then
      -- The clock was set back too far to wait for it: the debt is repaid from now on, and terms start again.
      return owed, instant, 0, older + recent
    end
    -- The clock stepped back: that may pause the refill but never adds units, and no term starts again.
    return owed, owed + older + recent == 0 and instant or at, older, recent
  end

  -- When all leased units have expired and the debt is repaid. Twin of Bucket::expires_in.
  function bucket.drained(limit, owed, at, older, recent)
    while older + recent > 0 do
      owed, at, older, recent = bucket.end_term(limit, owed, at, older, recent)
    end
    return (at + ceil(owed / limit.b)) * limit.tick
  end

  -- The value and its TTL; false if the state is empty. Twin of Codec::write_leased.
  function bucket.keep(limit, owed, at, older, recent)
    if owed + older + recent == 0 then
      return false, 0
    end
    local value = write(limit.form, limit.prefix, owed, at % limit.span)
    if older + recent > 0 then
      value = value .. write('>I4I4', older, recent)
    end
    return value, lapse_in(bucket.drained(limit, owed, at, older, recent))
  end

  -- The TTL of a value.
  function bucket.lapse(limit, value)
    return lapse_in(bucket.drained(limit, bucket.age(limit, value)))
  end

  -- The value with the leased units counted as owed: a client that asks what is left need not know why it is not.
  function bucket.fold(limit, value)
    local owed, at, older, recent = bucket.age(limit, value)
    return write(limit.form, limit.prefix, owed + (older + recent) * limit.a, at % limit.span)
  end

  -- How many units fit beside the debt and the leased units.
  function bucket.room(limit, value)
    local owed, _, older, recent = bucket.age(limit, value)
    return floor((limit.c - owed) / limit.a) - older - recent
  end

  -- Twin of Bucket::step_leased.
  function bucket.take(limit, value, least, most, max_delay)
    local owed, at, older, recent = bucket.age(limit, value)
    local room = limit.c - owed - (older + recent) * limit.a
    if least > limit.d or least * limit.a > room then
      return nil
    end
    -- Only a queue is given a bounded wait.
    if least > 0 and max_delay < MOST and owed > 0
      and min(MOST, (at + ceil(owed / limit.b)) * limit.tick) - now > max_delay then
      return nil
    end
    local granted = least
    if most > least then
      granted = min(most, floor(room / limit.a))
    end
    if granted == 0 then
      return 0, value
    end
    return granted, bucket.keep(limit, owed + granted * limit.a, at, older, recent)
  end

  -- Leased units stay leased, whatever is returned: the nodes that hold them go on spending them. Twin of
  -- Bucket::refund_leased.
  function bucket.give(limit, value, units)
    local owed, at, older, recent = bucket.age(limit, value)
    return bucket.keep(limit, max(0, owed - units * limit.a), at, older, recent)
  end

  -- Twin of FixedWindow. a: the amount, b: the period, c: where windows start, d: by how many seconds they may be
  -- longer.
  local fixed = {}
  algorithms[FIXED] = fixed

  -- The end of the window and the units used in it. Twin of FixedWindow::age.
  function fixed.age(limit, value)
    if not value then
      return 0, 0
    end
    local _, ends, used = read(limit.form, value)
    if fixed.is_early(limit, value) then
      -- The clock was set back too far to wait for it: the used units count in the window of the current time.
      return fixed.next_end(limit), min(used, limit.a)
    end
    return ends, now < ends and min(used, limit.a) or 0
  end

  -- Whether the clock was set back far behind the window of a value. Twin of FixedWindow::needs_rebase.
  function fixed.is_early(limit, value)
    local _, ends, used = read(limit.form, value)
    return used > 0 and ends - now > limit.b + limit.d * 1000000 + MOST_BACK
  end

  -- The end of the current window, or nil if the calendar windows that were sent along do not contain the current
  -- time. Twin of FixedWindow::window_end.
  function fixed.next_end(limit)
    if limit.c == FIRST_HIT then
      return min(MOST, now + limit.b)
    elseif limit.c == MULTIPLES then
      return min(MOST, (floor(now / limit.b) + 1) * limit.b)
    end
    local ends, at = limit.ends, 1
    local before = nil
    while at <= #ends do
      local one
      one, at = read('>I7', ends, at)
      if now < one then
        return before and one
      end
      before = one
    end
    return nil
  end

  -- The value and its TTL; false if the state is empty. Twin of Codec::write.
  function fixed.keep(limit, ends, used)
    if used == 0 then
      return false, 0
    end
    return write(limit.form, limit.prefix, ends, used), lapse_in(ends)
  end

  function fixed.lapse(limit, value)
    return lapse_in((fixed.age(limit, value)))
  end

  function fixed.room(limit, value)
    local _, used = fixed.age(limit, value)
    return limit.a - used
  end

  -- Twin of FixedWindow::step.
  function fixed.take(limit, value, least, most)
    local ends, used = fixed.age(limit, value)
    if least > limit.a - used then
      return nil
    end
    local granted = min(most, limit.a - used)
    if granted == 0 then
      return 0, value
    end
    if used == 0 then
      ends = fixed.next_end(limit)
    end
    return granted, fixed.keep(limit, ends, used + granted)
  end

  -- Twin of FixedWindow::refund.
  function fixed.give(limit, value, units)
    local ends, used = fixed.age(limit, value)
    return fixed.keep(limit, ends, max(0, used - units))
  end

  -- Twin of SlidingWindow. a: the amount, b: the window's length in ticks.
  local sliding = {}
  algorithms[SLIDING] = sliding

  -- The window's index, the units of the previous and the current window, and the elapsed ticks.
  -- Twin of SlidingWindow::age.
  function sliding.age(limit, value)
    local instant = limit.tick == 1 and now or floor(now / limit.tick)
    local index = floor(instant / limit.b)
    local elapsed = instant - index * limit.b
    if not value then
      return index, 0, 0, elapsed
    end
    local _, reached, previous, current = read(limit.form, value)
    if reached == index then
      return index, previous, current, elapsed
    elseif reached == index - 1 then
      return index, current, 0, elapsed
    elseif reached < index or previous + current == 0 then
      return index, 0, 0, elapsed
    elseif bucket.is_ahead(limit, reached * limit.b) then
      -- The clock was set back too far to wait for it: the counts are those of the current window.
      return index, previous, current, elapsed
    end
    -- The clock stepped back: the window that was reached stays, as it was at its very start.
    return reached, previous, current, 0
  end

  -- Whether the clock was set back far behind the windows of a value. Twin of SlidingWindow::needs_rebase.
  function sliding.is_early(limit, value)
    local _, reached, previous, current = read(limit.form, value)
    return previous + current > 0 and bucket.is_ahead(limit, reached * limit.b)
  end

  -- Twin of SlidingWindow::remaining.
  function sliding.fits(limit, previous, current, elapsed)
    return max(0, limit.a - current - ceil(previous * (limit.b - elapsed) / limit.b))
  end

  -- The value and its TTL; false if the state is empty. Twin of Codec::write.
  function sliding.keep(limit, index, previous, current)
    if previous + current == 0 then
      return false, 0
    end
    local gone = (index + (current > 0 and 2 or 1)) * limit.b * limit.tick
    return write(limit.form, limit.prefix, index, previous, current), lapse_in(min(MOST, gone))
  end

  function sliding.lapse(limit, value)
    local index, previous, current = sliding.age(limit, value)
    if previous + current == 0 then
      return SLACK
    end
    return lapse_in(min(MOST, (index + (current > 0 and 2 or 1)) * limit.b * limit.tick))
  end

  function sliding.room(limit, value)
    local _, previous, current, elapsed = sliding.age(limit, value)
    return sliding.fits(limit, previous, current, elapsed)
  end

  -- Twin of SlidingWindow::step.
  function sliding.take(limit, value, least, most)
    local index, previous, current, elapsed = sliding.age(limit, value)
    local room = sliding.fits(limit, previous, current, elapsed)
    if least > room then
      return nil
    end
    local granted = min(most, room)
    if granted == 0 then
      return 0, value
    end
    return granted, sliding.keep(limit, index, previous, current + granted)
  end

  -- Twin of SlidingWindow::refund.
  function sliding.give(limit, value, units)
    local index, previous, current = sliding.age(limit, value)
    local rest = max(0, units - current)
    return sliding.keep(limit, index, max(0, previous - rest), max(0, current - units))
  end

  -- Returns why a key's value can't be used under a limit, or false if it can. In the latter case, a state from
  -- before the clock was set back is rebased to the current time, even if the draw is then denied: otherwise
  -- nothing would be refilled for as long as a client keeps sending requests. Twin of Limit::rebase.
  local function trouble(limit, key)
    part(limit, key)
    local value, left = values[key], former[key]
    if value and not is_own(limit, value) or left and left.limit.prefix ~= limit.prefix then
      return #whole(key) < 256 and STALE or BROKEN
    elseif limit.algorithm == FIXED and not fixed.next_end(limit) then
      return OUTSIDE
    end
    local algorithm = algorithms[limit.algorithm]
    if value and algorithm.is_early(limit, value) then
      values[key], lapses[key] = algorithm.keep(limit, algorithm.age(limit, value))
    end
    return false
  end

  -- Creates the function that decides a group of any kind. It takes the position of the group's first draw and
  -- returns that of the next group.
  local function make_decide()
    local TAKE, LOOK, GIVE, CLEAR = 0, 1, 2, 3
    local GRANTED, SPARED, REFUSED = 0, 1, 2
    local ABSENT, COUNTED = 4, 8
    local STUCK, MANY, UNWRITTEN = 16, 32, 64
    local LOG, PLACES = 3, 4
    local NEVER = 2 ^ 53

    -- Algorithms with a list or a sorted set: `open` drops what no longer counts and returns what is there, or
    -- nil if it is unreadable. They write at once, and units of a denied request are returned.
    local rolls = {}

    -- Twin of SlidingLog. a: the amount, b: the period. The first element of the list has the period under which
    -- it was last aged and, if quotas of longer periods were used before, what is retained for them: for how
    -- long, how many units of the newest at least, and until when. Then comes one entry for each microsecond in
    -- which units were admitted: the time, how many units were admitted before, and how many then. So the units
    -- of any range are the difference of its two ends. `first` is the index of the first entry within the period.
    local log = {}
    rolls[LOG] = log

    -- An entry, with its time shifted back by `back`.
    function log.entry(key, index, back)
      local at, before, run = read('>I7I7I4', call('LINDEX', key, index))
      return max(0, at - back), before, run
    end

    -- Binary search for the first of the entries from `from` to `to` for which `holds`. It holds for all that
    -- follow, and for the last.
    function log.first(key, from, to, back, holds)
      while from < to do
        local middle = floor((from + to) / 2)
        if holds(log.entry(key, middle, back)) then
          to = middle
        else
          from = middle + 1
        end
      end
      return from
    end

    -- Shifts all entries back in time, because the clock was set back too far to wait for it. Twin of
    -- Log::effective_now.
    function log.move(limit, key, back)
      local list = call('LRANGE', key, 0, -1)
      local drained = now + read('>I7', list[1])
      if #list[1] == 25 then
        local per, kept_for, enough, till = read('>I7I7I4I7', list[1])
        till = max(0, till - back)
        list[1], drained = write('>I7I7I4I7', per, kept_for, enough, till), max(drained, till)
      end
      for index = 2, #list do
        local at, before, run = read('>I7I7I4', list[index])
        list[index] = write('>I7I7I4', max(0, at - back), before, run)
      end
      put('DEL', key)
      for from = 1, #list, 1000 do
        put('RPUSH', key, unpack(list, from, min(#list, from + 999)))
      end
      put('PEXPIRE', key, lapse_in(drained))
      return log.open(limit, key)
    end

    -- If nothing can be written, the list stays as it is: indices then include dropped entries, and `back` is how
    -- far its entries would be shifted. Twin of SlidingLog::age and SlidingLog::adopt.
    function log.open(limit, key)
      local ends = redis.pcall('LRANGE', key, 0, 1)
      if ends.err then
        return nil
      end
      local open = {used = 0, newest = 0, base = 0, run = 0, length = 0, first = 1, till = 0, back = 0}
      if #ends == 0 then
        return open
      end
      local head, last = ends[1], call('LINDEX', key, -1)
      if #head ~= 7 and #head ~= 25 or #ends < 2 or #ends[2] ~= 18 or #last ~= 18 then
        return nil
      end
      local newest, before, run = read('>I7I7I4', last)
      local back = newest - now > MOST_BACK and newest - now or 0
      if back > 0 and not unwritable then
        return log.move(limit, key, back)
      end
      newest = newest - back
      local oldest = max(0, read('>I7', ends[2]) - back)
      local aged_under, kept_for, enough, till = read('>I7', head), 0, 0, 0
      -- Time never runs back past the newest unit.
      local reached, total, length = max(now, newest), before + run, call('LLEN', key)
      if #head == 25 then
        kept_for, enough, till = read('>I7I4I7', head, 8)
        till = max(0, till - back)
        if till <= reached then
          kept_for, enough, till = 0, 0, 0
        end
      end
      -- The first entry within a period, and how many units came before it.
      local function first_under(per)
        if oldest + per > reached then
          local _, base = read('>I7I7', ends[2])
          return 1, base
        elseif newest + per <= reached then
          return length, total
        end
        local first = log.first(key, 2, length - 1, back, function(at) return at + per > reached end)
        local _, base = log.entry(key, first, back)
        return first, base
      end
      -- The first entry that is retained for an earlier quota. Units of this instant are not counted, because
      -- they may yet be returned if another limit of the same request denies.
      local settled = newest == reached and before or total
      local function first_kept(first)
        -- Units may have been refunded since `till` was set, so that even the newest has expired before it.
        local has_expired = kept_for == 0 or newest + kept_for <= reached
        return has_expired and first or min(first, log.first(key, 1, length - 1, back, function(at, before, run)
          return at + kept_for > reached and settled - before - run < enough
        end))
      end
      -- Entries outside the period of the previous quota are dropped, even if they are within the period of this
      -- one.
      local forgotten = 1
      if aged_under ~= limit.b then
        local first, base = first_under(aged_under)
        forgotten = first_kept(first)
        if base < total then
          kept_for, enough, till = max(kept_for, aged_under), max(enough, total - base), max(till, newest + aged_under)
        end
        -- A quota with a longer period retains all that the others need.
        if kept_for <= limit.b then
          kept_for, enough, till = 0, 0, 0
        end
      end
      local first, base = first_under(limit.b)
      if first < forgotten then
        first, base = forgotten, total
        if first < length then
          local _, before_first = log.entry(key, first, back)
          base = before_first
        end
      end
      local kept = max(forgotten, first_kept(first))
      if kept == length then
        if not unwritable then
          put('DEL', key)
        end
        return open
      end
      if not unwritable then
        if kept > 1 then
          put('LTRIM', key, kept - 1, -1)
          length, first = length - kept + 1, first - kept + 1
        end
        local new_head = write('>I7', limit.b)
        if kept_for > 0 then
          new_head = new_head .. write('>I7I4I7', kept_for, enough, till)
        end
        if kept > 1 or new_head ~= head then
          put('LSET', key, 0, new_head)
        end
        if new_head ~= head then
          put('PEXPIRE', key, lapse_in(max(newest + limit.b, till)))
        end
      end
      open.used, open.newest, open.base, open.run, open.length = total - base, newest, base, run, length
      open.first, open.till, open.back = first, till, back
      return open
    end

    function log.room(limit, open)
      return max(0, limit.a - open.used)
    end

    -- Twin of SlidingLog::take.
    function log.add(limit, key, open, units)
      local at = max(now, open.newest)
      if open.length > 0 and open.newest == at then
        local before = open.base + open.used - open.run
        put('LSET', key, -1, write('>I7I7I4', at, before, open.run + units))
      else
        local entry = write('>I7I7I4', at, open.base + open.used, units)
        if open.length == 0 then
          put('RPUSH', key, write('>I7', limit.b), entry)
        else
          put('RPUSH', key, entry)
        end
      end
      put('PEXPIRE', key, lapse_in(max(at + limit.b, open.till)))
    end

    -- Entries that are only retained for another quota are not returned. Twin of Log::refund.
    function log.give(limit, key, open, units)
      if open.used == 0 or units == 0 then
        return
      elseif units >= open.used then
        if open.first == 1 then
          put('DEL', key)
        else
          put('LTRIM', key, 0, open.first - 1)
        end
        return
      end
      local left = open.base + open.used - units
      local kept = log.first(key, open.first, open.length - 1, 0, function(_, before, run) return before + run >= left end)
      local at, before, run = log.entry(key, kept, 0)
      put('LTRIM', key, 0, kept)
      if before + run > left then
        put('LSET', key, -1, write('>I7I7I4', at, before, left - before))
      end
      put('PEXPIRE', key, lapse_in(max(at - open.back + limit.b, open.till)))
    end

    -- What is left, when everything is available again and, for a denied draw, when to retry. Twin of
    -- SlidingLog::forecast.
    function log.outlook(limit, key, open, least, is_refused)
      local reset, wait = 0, NEVER
      if open.length > 0 then
        reset = max(0, open.newest + limit.b - now)
      end
      if is_refused and least <= limit.a then
        wait = 0
        if open.used > 0 then
          local gone = open.base + open.used - (limit.a - least)
          local kept = log.first(key, open.first, open.length - 1, 0, function(_, before, run) return before + run >= gone end)
          wait = max(0, log.entry(key, kept, open.back) + limit.b - now)
        end
      end
      return write('>I4I7I7', log.room(limit, open), reset, wait)
    end

    -- Twin of Concurrency. a: the amount, b: the TTL of a permit. Every hold is in the sorted set twice, both
    -- times with the score 0 and so in byte order: as `L`, expiry, permit, units, number to find the next to
    -- expire, and as `P`, permit, number, expiry, units to find the holds of a permit. The score of `u` is the
    -- sum of all units.
    local places = {}
    rolls[PLACES] = places

    -- Twin of Concurrency::age.
    function places.open(_, key)
      local score = redis.pcall('ZSCORE', key, 'u')
      if type(score) == 'table' then
        return nil
      end
      local used = tonumber(score or 0)
      if used == 0 then
        return {used = 0, kept = 0}
      end
      local kept = used
      local lapsed, from = false, 0
      local upto = '(L' .. write('>I7', now + 1)
      repeat
        local found = call('ZRANGEBYLEX', key, '[L', upto, 'LIMIT', from, 100)
        for _, hold in ipairs(found) do
          used, lapsed = used - places.remove(key, hold), true
        end
        if unwritable then
          -- Skip the holds that were not removed.
          from = from + 100
        end
      until #found < 100
      if lapsed and not unwritable then
        places.count(key, used)
      end
      -- If nothing can be written, expired holds are kept, and the stored sum includes them.
      return {used = used, kept = unwritable and kept or used}
    end

    -- Removes a hold, given as its `L` member, and returns its units.
    function places.remove(key, hold)
      local lapse, permit, units, number = read('>c7c8I4B', hold, 2)
      if not unwritable then
        put('ZREM', key, hold, write('>c1c8Bc7I4', 'P', permit, number, lapse, units))
      end
      return units
    end

    -- Writes the sum of units.
    function places.count(key, used)
      if used > 0 then
        put('ZADD', key, used, 'u')
      else
        put('DEL', key)
      end
    end

    places.room = log.room

    -- When the last permit expires.
    function places.last(key)
      local last = call('ZREVRANGEBYLEX', key, '(M', '[L', 'LIMIT', 0, 1)[1]
      return last and read('>I7', last, 2)
    end

    -- Twin of Concurrency::take.
    function places.add(limit, key, open, units, permit)
      local lapse, number, added = write('>I7', min(MOST, now + limit.b)), -1, 0
      repeat
        -- The same permit may hold several times, even since the same microsecond.
        number = number + 1
        added = put('ZADD', key, 'NX', 0, write('>c1c7c8I4B', 'L', lapse, permit, units, number),
          0, write('>c1c8Bc7I4', 'P', permit, number, lapse, units))
      until added == 2 or number == 255
      put('ZADD', key, open.used + units, 'u')
      put('PEXPIRE', key, lapse_in(places.last(key)))
    end

    -- Twin of Holders::release.
    function places.give(_, key, open, _, permit)
      local held = call('ZRANGEBYLEX', key, '[P' .. permit, '(P' .. permit .. '\255')
      if #held == 0 then
        return
      end
      local used = open.kept
      for _, hold in ipairs(held) do
        local number, lapse, units = read('>Bc7I4', hold, 10)
        put('ZREM', key, hold, write('>c1c7c8I4B', 'L', lapse, permit, units, number))
        used = used - units
      end
      places.count(key, used)
    end

    -- Twin of Concurrency::forecast.
    function places.outlook(limit, key, open, least, is_refused)
      local reset, wait = 0, NEVER
      if open.used > 0 then
        reset = max(0, places.last(key) - now)
      end
      if is_refused and least <= limit.a then
        wait = places.wait(key, open.used, limit.a - least)
      end
      return write('>I4I7I7', places.room(limit, open), reset, wait)
    end

    -- How long until so many permits have expired that at most `room` units are held. Twin of Concurrency::retry.
    function places.wait(key, used, room)
      local from = 0
      if not unwritable and call('ZCARD', key) == 2 * used + 1 then
        -- Every hold has one unit, so the one to wait for is known by its rank.
        from, used = used - room - 1, room + 1
      end
      repeat
        local found = call('ZRANGEBYLEX', key, '[L', '(M', 'LIMIT', from, 100)
        for _, hold in ipairs(found) do
          local lapse, _, units = read('>I7c8I4', hold, 2)
          -- Expired holds are not counted. They may still be there if nothing can be written.
          if lapse > now then
            used = used - units
          end
          if used <= room then
            return max(0, lapse - now)
          end
        end
        from = from + 100
      until #found < 100
      return 0
    end

    -- Decodes a draw. Twin of ScriptCall::write_draw.
    local function parse(pos)
      local draw = {}
      local flags, key, number, units
      flags, key, number, units, pos = read('>BHHI4', records, pos)
      local limit = limits[number]
      draw.act, draw.key, draw.limit = flags % 4, key, limit
      draw.least, draw.most, draw.max_delay = units, units, MOST
      draw.is_last, draw.is_shadow = flags % 8 >= 4, flags % 16 >= 8
      if flags % 32 >= 16 then
        draw.most, draw.max_delay, pos = read('>I4I7', records, pos)
      end
      if flags % 64 >= 32 then
        draw.permit, pos = read('>c8', records, pos)
      end
      if flags % 128 >= 64 then
        draw.found, draw.adopted, pos = read('>Bc0Bc0', records, pos)
      end
      if flags >= 128 then
        draw.times, pos = read('>I4', records, pos)
      end
      draw.algorithm, draw.roll = algorithms[limit.algorithm], rolls[limit.algorithm]
      if draw.roll then
        draw.key = KEYS[#KEYS + 1 - key]
      end
      return draw, pos
    end

    -- Replaces the value that another limit left by what Rust has converted it to, if it has not changed since.
    -- That is kept even if the draw is then denied: otherwise the old rate would apply for as long as a client
    -- keeps sending requests. Twin of `adopt` in script_call.rs.
    local function adopt(draw)
      local key = draw.key
      if draw.found and whole(key) == draw.found then
        values[key], former[key] = draw.adopted ~= '' and draw.adopted, nil
        part(draw.limit, key)
        -- A state that has drained since Rust read it is kept for the slack from now on.
        lapses[key] = values[key] and max(SLACK, draw.algorithm.lapse(draw.limit, values[key])) or 0
      end
    end

    -- Sets the state, or the forecast, to send for a draw.
    local function look(draw)
      if draw.roll then
        draw.open = draw.roll.open(draw.limit, draw.key)
        local is_refused = draw.answer == REFUSED
        draw.shown = draw.roll.outlook(draw.limit, draw.key, draw.open, draw.least, is_refused)
      else
        local value = values[draw.key]
        draw.shown = value and #value > draw.limit.length and bucket.fold(draw.limit, value) or value
      end
    end

    -- Changes a value, and remembers it for `undo`.
    local function set(draw, value, lapse)
      draw.before, draw.before_lapse, draw.is_changed = values[draw.key], lapses[draw.key], true
      values[draw.key], lapses[draw.key] = value, lapse
    end

    -- Applies a draw of an algorithm with a string state. Returns nil if another limit has written the value
    -- within this group. Twin of Limit::step_leased and Limit::refund_leased.
    local function act_on_string(draw, act)
      local limit, algorithm, value, left = draw.limit, draw.algorithm, values[draw.key], former[draw.key]
      if value and not is_own(limit, value) or left and left.limit.prefix ~= limit.prefix then
        return nil
      end
      if act == TAKE or act == LOOK then
        local granted, after, lapse = algorithm.take(limit, value, draw.least, draw.most, draw.max_delay)
        if not granted then
          return REFUSED
        elseif act == LOOK then
          return SPARED
        elseif granted > 0 then
          set(draw, after, lapse)
        end
        draw.granted = granted
        return GRANTED
      elseif act == CLEAR or value then
        -- A reset returns more units than can have been taken.
        values[draw.key], lapses[draw.key] = algorithm.give(limit, value, act == CLEAR and MOST or draw.least)
        if act == CLEAR then
          former[draw.key] = nil
        end
      end
      return SPARED
    end

    -- Applies a draw of an algorithm with a list or a sorted set. Twin of Limit::step_list and Limit::refund_list.
    local function act_on_roll(draw, act)
      local limit, key, roll = draw.limit, draw.key, draw.roll
      local open = roll.open(limit, key)
      if act == TAKE or act == LOOK then
        local room = roll.room(limit, open)
        if draw.least > room then
          return REFUSED
        elseif act == LOOK then
          return SPARED
        end
        draw.granted = min(draw.most, room)
        if draw.granted > 0 then
          if not unwritable then
            roll.add(limit, key, open, draw.granted, draw.permit)
          end
          draw.is_changed = true
        end
        return GRANTED
      elseif unwritable and not (unwritable == 'OOM' and draw.is_alone) then
        -- Resetting a list also drops what is retained in it for other quotas.
        draw.is_changed = open.used > 0 or act == CLEAR and draw.roll == log and open.length > 0
      elseif act == CLEAR then
        -- Without free memory, commands that make a list or set smaller are still accepted.
        put('DEL', key)
      else
        roll.give(limit, key, open, draw.least, draw.permit)
      end
      return SPARED
    end

    -- Undoes the changes of a denied request.
    local function undo(draws)
      for index = #draws, 1, -1 do
        local draw = draws[index]
        if draw.is_changed and draw.roll and not unwritable then
          draw.roll.give(draw.limit, draw.key, draw.roll.open(draw.limit, draw.key), draw.granted, draw.permit)
        elseif draw.is_changed then
          values[draw.key], lapses[draw.key] = draw.before, draw.before_lapse
        end
      end
    end

    -- Replies that a group was not decided because the server rejects the writes that it needs.
    local function say_unwritten()
      say(char(UNWRITTEN, #unwritable) .. unwritable)
    end

    -- Whether a group would change something.
    local function is_changed(draws)
      for _, draw in ipairs(draws) do
        local is_same = draw.roll or values[draw.key] == draw.first and former[draw.key] == draw.first_former
        if draw.is_changed or not is_same then
          return true
        end
      end
      return false
    end

    -- Decides one request. Twin of MemoryStore::apply_all.
    local function decide_one(draws)
      local is_refused = false
      if unwritable then
        for _, draw in ipairs(draws) do
          draw.first, draw.first_lapse, draw.is_alone = values[draw.key], lapses[draw.key], #draws == 1
          draw.first_former = former[draw.key]
        end
      end
      for _, draw in ipairs(draws) do
        local act = draw.act
        -- After a denial the other draws only check what is left: the client learns all limits that deny it.
        if is_refused then
          if act >= GIVE then
            draw.least = 0
          end
          act = LOOK
        end
        draw.answer = (draw.roll and act_on_roll or act_on_string)(draw, act)
        if not draw.answer then
          undo(draws)
          say(char(STUCK, 1, BROKEN, 0))
          return
        end
        if act >= GIVE then
          draw.least = 0
        end
        look(draw)
        is_refused = is_refused or draw.answer == REFUSED and not draw.is_shadow
      end
      if unwritable then
        local must_write = not is_refused and is_changed(draws)
        for _, draw in ipairs(draws) do
          if not draw.roll then
            values[draw.key], lapses[draw.key] = draw.first, draw.first_lapse
            former[draw.key] = draw.first_former
          end
        end
        if must_write then
          say_unwritten()
          return
        end
      end
      if is_refused then
        undo(draws)
        for _, draw in ipairs(draws) do
          if draw.answer ~= REFUSED then
            draw.answer = SPARED
            look(draw)
          end
        end
      end
      for _, draw in ipairs(draws) do
        local code = draw.answer + (draw.shown and 0 or ABSENT)
        if draw.answer == GRANTED and draw.granted ~= draw.least then
          say(char(code + COUNTED) .. write('>I4', draw.granted))
        else
          say(char(code))
        end
        say(draw.shown or '')
      end
    end

    -- Decides several equal requests whose draws all have different keys.
    local function decide_many(draws, times)
      local granted = times
      for _, draw in ipairs(draws) do
        local room = draw.roll and draw.roll.room(draw.limit, draw.open)
          or draw.algorithm and draw.algorithm.room(draw.limit, values[draw.key])
        draw.fits = draw.least == 0 and times or min(times, floor(room / draw.least))
        if not draw.is_shadow then
          granted = min(granted, draw.fits)
        end
      end
      for _, draw in ipairs(draws) do
        if unwritable and min(granted, draw.fits) * draw.least > 0 then
          say_unwritten()
          return
        end
      end
      say(char(MANY) .. write('>I4', granted))
      for _, draw in ipairs(draws) do
        local requests = min(granted, draw.fits)
        local units = requests * draw.least
        if units > 0 and draw.roll then
          draw.roll.add(draw.limit, draw.key, draw.open, units)
        elseif units > 0 then
          local _, value, lapse = draw.algorithm.take(draw.limit, values[draw.key], units, units, MOST)
          set(draw, value, lapse)
        end
        -- A list says when one more unit will fit, if none does now.
        if draw.roll then
          draw.open = draw.roll.open(draw.limit, draw.key)
          draw.answer = draw.least > draw.roll.room(draw.limit, draw.open) and REFUSED
        end
        look(draw)
        say(char(COUNTED + (draw.shown and 0 or ABSENT)) .. write('>I4', requests))
        say(draw.shown or '')
      end
    end

    local function decide_group(draws, troubles)
      -- Lists and sets are opened last, because that drops entries: a group that is not decided changes nothing.
      if #troubles == 0 then
        for index, draw in ipairs(draws) do
          draw.open = draw.roll and draw.roll.open(draw.limit, draw.key)
          if draw.roll and not draw.open then
            troubles[#troubles + 1] = char(BROKEN, index - 1)
          end
        end
      end
      if #troubles > 0 then
        say(char(STUCK, #troubles) .. table.concat(troubles))
      elseif draws[1].times then
        decide_many(draws, draws[1].times)
      else
        decide_one(draws)
      end
    end

    -- Returns nil if the group's first write was the first of the call, and was rejected.
    return function(pos)
      local draws, troubles, draw, has_roll = {}, {}, nil, false
      repeat
        draw, pos = parse(pos)
        draws[#draws + 1] = draw
        local kind = nil
        has_roll = has_roll or draw.roll
        if draw.algorithm then
          adopt(draw)
          kind = trouble(draw.limit, draw.key)
        end
        if kind == STALE then
          local value = whole(draw.key)
          troubles[#troubles + 1] = char(STALE, #draws - 1, #value) .. value
        elseif kind then
          troubles[#troubles + 1] = char(kind, #draws - 1)
        end
      until draw.is_last
      if not has_roll then
        decide_group(draws, troubles)
        return pos
      end
      local was_unwritable = unwritable
      local is_done, why = pcall(decide_group, draws, troubles)
      if is_done then
        return pos
      elseif why ~= unwritable then
        error(why, 0)
      elseif was_unwritable then
        say_unwritten()
        return pos
      end
      return nil
    end
  end

  -- Creates the function that handles leases: first all reports are applied, then all requests are granted.
  -- Returned units can be drawn in the same call, and draws take precedence over leases.
  local function make_lend()
    local STUCK, UNKNOWN, KNOWN, SHOWN, ABSENT = 0, 1, 2, 4, 8
    local NO_REPORT, NO_WISH = {term = 0, spent = 0, kept = 0, back = 0}, {soon = 0, later = 0, one_of = 1}

    -- Twin of LeaseRequest::grant_from.
    local function part_of(wish, left)
      return max(min(wish.soon, floor(left / 2)), min(wish.later, floor(left / max(1, wish.one_of))))
    end

    -- Twins of Bucket::grant_lease, FixedWindow::grant_lease and SlidingWindow::grant_lease. They apply a report,
    -- grant a request, and return the grant, the new value and its TTL.
    local lenders = {}

    lenders[BUCKET] = function(limit, value, report, wish)
      local owed, at, older, recent = bucket.age(limit, value)
      local length = bucket.term(limit)
      local term, older_before, recent_before = floor(at / length), older, recent
      local is_recent, is_older = report.term == term, report.term == term - 1
      -- A node can't report more units than were leased. If it does, the excess is ignored.
      local known = is_recent and recent or is_older and older or 0
      local spent = min(report.spent, known)
      local back = min(report.back, known - spent)
      local kept = min(report.kept, known - spent - back)
      if is_recent then
        recent = recent - spent - back
      else
        older, recent = older - spent - back - kept, recent + kept
      end
      owed = owed + spent * limit.a
      local units = part_of(wish, floor((limit.c - owed) / limit.a) - older - recent)
      recent = recent + units
      local loan = {
        units = units, term = term, ends = min(MOST, (term + 2) * length * limit.tick),
        is_known = is_recent or is_older, is_changed = older ~= older_before or recent ~= recent_before,
      }
      return loan, bucket.keep(limit, owed, at, older, recent)
    end

    -- Leased units count as used until the window ends.
    lenders[FIXED] = function(limit, value, report, wish)
      local ends, before = fixed.age(limit, value)
      local is_known = before > 0 and report.term == ends
      local used = before
      if is_known then
        used = max(0, used - report.back)
      end
      local units = part_of(wish, limit.a - used)
      used = used + units
      if before == 0 then
        ends = fixed.next_end(limit)
      end
      local loan = {units = units, term = ends, ends = ends, is_known = is_known, is_changed = used ~= before}
      return loan, fixed.keep(limit, ends, used)
    end

    -- Leased units count as used in this window, and expire when it ends.
    lenders[SLIDING] = function(limit, value, report, wish)
      local index, previous, before, elapsed = sliding.age(limit, value)
      local is_known = report.term == index
      local current = before
      if is_known then
        current = max(0, current - report.back)
      end
      local units = part_of(wish, sliding.fits(limit, previous, current, elapsed))
      current = current + units
      local loan = {
        units = units, term = index, ends = min(MOST, (index + 1) * limit.b * limit.tick),
        is_known = is_known, is_changed = current ~= before,
      }
      return loan, sliding.keep(limit, index, previous, current)
    end

    local orders = {}

    -- Applies a report and grants a request for a key. Twin of Limit::grant_lease.
    local function settle(order, report, wish)
      local key, limit = order.key, order.limit
      local loan, value, lapse = lenders[limit.algorithm](limit, values[key], report, wish)
      if loan.is_changed then
        values[key], lapses[key] = value, lapse
      end
      return loan
    end

    local blob, pos = ARGV[3], 1
    while pos <= #blob do
      local key, number, term, spent, kept, back, soon, later, one_of, next_pos =
        read('>HHI7I4I4I4I4I4I4', blob, pos)
      local order = {key = key, limit = limits[number], wish = {soon = soon, later = later, one_of = one_of}}
      if not unwritable and not trouble(order.limit, key) then
        order.noted = settle(order, {term = term, spent = spent, kept = kept, back = back}, NO_WISH)
      end
      orders[#orders + 1] = order
      pos = next_pos
    end

    return function()
      for _, order in ipairs(orders) do
        local noted = order.noted
        if noted then
          local loan, code, shown = noted, noted.is_known and KNOWN or UNKNOWN, nil
          -- Unless another quota has taken over the key since.
          if not trouble(order.limit, order.key) then
            loan, shown = settle(order, NO_REPORT, order.wish), values[order.key]
            code = code + (shown and SHOWN or ABSENT)
            if shown and #shown > order.limit.length then
              shown = bucket.fold(order.limit, shown)
            end
          end
          say(char(code) .. write('>I4I7I7', loan.units, loan.term, loan.ends))
          say(shown or '')
        else
          say(char(STUCK))
        end
      end
    end
  end

  return make_decide, make_lend
end

local make_decide, make_lend, decide, lend
if ARGV[3] then
  make_decide, make_lend = make_algorithms()
  lend = make_lend()
end

local loaded, is_bucket, form, prefix, length, span, unit, refill, capacity, burst, tick, instant
local pos, size = 1, #records
while pos <= size do
  local flags, key, number, units, next_pos = read('>BHHI4', records, pos)
  if number ~= loaded then
    local limit = limits[number]
    loaded, is_bucket, form, prefix, length = number, limit.algorithm == 0, limit.form, limit.prefix, limit.length
    span = limit.span
    unit, refill, capacity, burst, tick = limit.a, limit.b, limit.c, limit.d, limit.tick
    instant = is_bucket and (tick == 1 and now or floor(now / tick))
  end
  local value = values[key]
  local owed, at, written_by = 0, instant, prefix
  -- A request of one draw that takes some units from a bucket, without options: see `bucket` above.
  local is_plain = flags == 4 and is_bucket and not (former and former[key])
  if is_plain and value then
    if #value == length then
      written_by, owed, at = read(form, value)
      at = at + floor((instant - at) / span + 0.5) * span
      if instant >= at then
        owed, at = owed - (instant - at) * refill, instant
        if owed < 0 then
          owed = 0
        end
      elseif owed == 0 then
        at = instant
      end
    end
    is_plain = written_by == prefix and #value == length and (at - instant) * tick <= MOST_BACK
  end
  if is_plain then
    local code
    if units <= burst and units * unit <= capacity - owed then
      code = value and '\0' or '\4'
      if units > 0 then
        owed = owed + units * unit
        value, code = write(form, prefix, owed, at % span), '\0'
        values[key], lapses[key] = value, ceil(((at + ceil(owed / refill)) * tick - now) / 1000) + SLACK
      end
    else
      code = value and '\2' or '\6'
    end
    reply[said + 1], reply[said + 2] = code, value or ''
    said, pos = said + 2, next_pos
  else
    if not decide then
      make_decide = make_decide or make_algorithms()
      decide = make_decide()
    end
    pos = decide(pos)
    if not pos then
      break
    end
  end
end

if lend and not unwritable then
  lend()
end

local put = has_written and call or redis.pcall
for key = 1, strings do
  local lapse = lapses[key]
  if lapse and not unwritable then
    local value, answer = values[key], nil
    if former and former[key] then
      value = former.whole(key)
      lapse = math.max(lapse, ceil((former[key].drained - now) / 1000) + SLACK)
    end
    if value then
      answer = put('PSETEX', KEYS[key], lapse, value)
    else
      answer = put('DEL', KEYS[key])
    end
    -- The first write shows whether the server accepts writes.
    if put ~= call then
      put = call
      if type(answer) == 'table' and answer.err then
        unwritable = find_refusal(answer.err)
        if not unwritable then
          return answer
        end
      end
    end
  end
end

if unwritable then
  -- Nothing was written: everything is decided once more by the general functions, which now write nothing.
  lapses, former, said, pos = {}, {}, 1, 1
  if strings > 0 then
    values = call('MGET', unpack(KEYS, 1, strings))
  end
  if not make_decide then
    make_decide, make_lend = make_algorithms()
  end
  decide, lend = decide or make_decide(), ARGV[3] and make_lend()
  while pos <= size do
    pos = decide(pos)
  end
  if lend then
    lend()
  end
end

return table.concat(reply, '', 1, said)
