-- Decides a parcel: many requests in one call, in order, each all or nothing, by this server's clock.
--
-- Only what must be atomic is here. The steps are those of ratekeeper-core (law/bucket.rs, law/fixed_window.rs,
-- law/sliding_window.rs, law/sliding_log.rs, law/concurrency.rs), bit for bit: every number is an integer below 2^53.
-- What the answers mean, and what becomes of a state when its quota has changed, is worked out in Rust.
--
-- KEYS: first those whose state is a string, then, counted from the end, those whose state is a list or a sorted set.
-- ARGV[1]: how many keys are strings, then the limits. ARGV[2]: the draws. ARGV[3], if it is there: what nodes say of
-- units that they were lent, and wish to be lent. wire.rs writes all three and reads the reply.
--
-- The commonest request, one draw of some units from one bucket, is decided in the loop below; whatever else comes is
-- handed to functions that are only made when they are needed, because the whole script runs anew with every call.
--
-- A server may take no writes, for want of memory, say (OOM, MISCONF, NOREPLICAS). Then the first write of a call is refused,
-- before anything has changed, and the call is decided once more, writing nothing: who would have to be written is told so
-- (UNWRITTEN), and everybody else gets an answer. Once a write was taken, a server takes all others of the same call.
--
-- Called with a key and no arguments, it changes nothing, and says whether it would run: which commands the user lacks, and
-- what a write would be refused with. wire.rs and node/keeper.rs name the same commands and codes.
--
-- What a draw costs, in instructions of Redis 7.0.15 (callgrind; distinct keys, all granted): 79 k alone, 29 k of 16 in a
-- call, 26 k of 64; a plain script that does one GCRA check with GET and SET PX takes 59 k, a token bucket in a hash 73 k.
-- Of the 26 k, 14 k are PSETEX, which is 5 % cheaper than SET PX. GET key by key instead of MGET costs 2.7 k more.

local read, write, call = struct.unpack, struct.pack, redis.call
local ceil, floor = math.ceil, math.floor

-- A drained state says the same as none, so a state may lapse once it has drained. It is kept for this many
-- milliseconds more, so that a clock set back by a moment finds it still there.
local SLACK = 1000
-- By how many microseconds the clock may be set back before a state is counted from now on: MOST_BACK of ratekeeper-core.
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
  -- It changes nothing, since there is nothing under the key, and is refused where a write would be.
  local said = redis.acl_check_cmd('ZADD') and redis.pcall('ZADD', KEYS[1], 'XX', 0, '')
  return {table.concat(missing, ' '), type(said) == 'table' and said.err or ''}
end

local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

local blob = ARGV[1]
local strings, at_limit = read('>H', blob)
local limits = {}
while at_limit <= #blob do
  local law, length, time_bytes, form, prefix, ends, a, b, c, d, tick, next_limit =
    read('>BBBBc0Bc0Bc0I7I7I7I4I4', blob, at_limit)
  at_limit = next_limit
  limits[#limits + 1] = {
    law = law, length = length, span = 256 ^ time_bytes, form = form, prefix = prefix, ends = ends,
    a = a, b = b, c = c, d = d, tick = tick,
  }
end

-- The states as this call has left them so far, and in how many milliseconds each that was changed may lapse.
local values, lapses = {}, {}
-- What other quotas have left of a key, once somebody had to look: see `part` below.
local former
if strings > 0 then
  values = call('MGET', unpack(KEYS, 1, strings))
end

local records = ARGV[2]
local reply, said = {write('>I7', now), '', ''}, 1

-- Whether this call has written something; and the code of the error that its first write was refused with, if it was.
local has_written, unwritable = false, nil

-- The code of an error, if it says that the server takes no writes, and nothing else.
local function find_refusal(err)
  local code = string.match(err, '^%-?(%u+)')
  return (code == 'OOM' or code == 'MISCONF' or code == 'NOREPLICAS') and code or nil
end

-- Makes the laws whose states are strings, and returns what makes the two functions that go by them: the one that
-- decides groups of any kind, and the one that deals with leases.
local function make_laws()
  local STALE, OUTSIDE, BROKEN = 0, 1, 2
  local BUCKET, FIXED, SLIDING = 0, 1, 2
  local FIRST_HIT, MULTIPLES = 0, 1
  local MOST = 2 ^ 53 - 1
  -- How many microseconds a term of a bucket's leases has: see lease.rs of ratekeeper-core.
  local TERM = 30000000
  local char, sub, min, max = string.char, string.sub, math.min, math.max

  local function say(text)
    said = said + 1
    reply[said] = text
  end

  local function lapse_in(drained)
    return max(1, ceil((drained - now) / 1000) + SLACK)
  end

  former = former or {}

  -- Writes to a list or a sorted set. If that is the first write of the call and the server takes none, the group is left
  -- alone from there on, with `unwritable` saying why. Any other error ends the call.
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

  -- Whether a value was written by this very limit. A bucket of which units are lent has eight bytes more, and what
  -- other quotas have left stands behind that.
  local function is_own(limit, value)
    return #value >= limit.length and sub(value, 1, #limit.prefix) == limit.prefix
  end

  -- Takes what other quotas have left of a key off its value, to be put back when that is written. It is of no
  -- concern here but for when all of it has drained; Rust reads it when one of those quotas is drawn from again. A bucket
  -- that has something behind it always tells what is lent of it.
  local function part(limit, key)
    local value = values[key]
    if not value or former[key] or not is_own(limit, value) then
      return
    end
    local ends = limit.length + (limit.law == BUCKET and 8 or 0)
    if #value <= ends then
      return
    end
    local drained, void, rest = read('>I7I7', value, ends + 1)
    if drained + SLACK * 1000 > now then
      former[key] = {limit = limit, own = sub(value, 1, ends), drained = drained, void = void, rest = sub(value, rest)}
    end
    local is_lent = limit.law == BUCKET and sub(value, limit.length + 1, ends) ~= string.rep('\0', 8)
    values[key] = void > now and sub(value, 1, is_lent and ends or limit.length)
  end

  -- What a key's value is with what other quotas have left of it.
  local function whole(key)
    local value, left = values[key], former[key]
    if not left then
      return value
    end
    local limit, lapse = left.limit, lapses[key]
    if not lapse then
      return left.own .. write('>I7I7', left.drained, left.void) .. left.rest
    end
    -- Alone it would lapse then.
    local void = value and now + lapse * 1000 or 0
    value = value or limit.prefix .. string.rep('\0', limit.length - #limit.prefix)
    if limit.law == BUCKET and #value == limit.length then
      value = value .. string.rep('\0', 8)
    end
    return value .. write('>I7I7', left.drained, void) .. left.rest
  end
  former.whole = whole

  -- Laws whose state is a string. `age` reads it as it stands now, `room` says how many units fit, `take` grants
  -- some of them or, with nothing, refuses; `give` gives some back. The last two return the new value, or false for
  -- none, and when it may lapse.
  local laws = {}

  -- Twin of Bucket. a: parts of a unit, b: parts that a tick pays back, c: the most parts owed, d: the burst.
  local bucket = {}
  laws[BUCKET] = bucket

  -- How many ticks a term has.
  function bucket.term(limit)
    return max(1, floor(TERM / limit.tick))
  end

  -- The debt at the end of its term, when what was lent in the term before lapses.
  function bucket.end_term(limit, owed, at, older, recent)
    local term = bucket.term(limit)
    local ends = (floor(at / term) + 1) * term
    return max(0, owed - (ends - at) * limit.b) + older * limit.a, ends, recent, 0
  end

  -- Twin of Tick::is_ahead.
  function bucket.is_ahead(limit, at)
    local instant = limit.tick == 1 and now or floor(now / limit.tick)
    return at - instant > max(1, floor(MOST_BACK / limit.tick))
  end

  -- Whether the clock was set back far behind the time of a value.
  function bucket.is_early(limit, value)
    local instant = limit.tick == 1 and now or floor(now / limit.tick)
    local _, owed, at = read(limit.form, value)
    return (owed > 0 or #value > limit.length) and bucket.is_ahead(limit, at + floor((instant - at) / limit.span + 0.5) * limit.span)
  end

  -- What is owed, since when, and what is lent: in the term before, and in that of the time.
  function bucket.age(limit, value)
    local instant = limit.tick == 1 and now or floor(now / limit.tick)
    if not value then
      return 0, instant, 0, 0
    end
    local _, owed, at = read(limit.form, value)
    local older, recent = 0, 0
    -- Of the time only the low bytes were kept: the nearest that has them is meant.
    at = at + floor((instant - at) / limit.span + 0.5) * limit.span
    if #value > limit.length then
      older, recent = read('>I4I4', value, limit.length + 1)
      local term = bucket.term(limit)
      while older + recent > 0 and floor(instant / term) > floor(at / term) do
        owed, at, older, recent = bucket.end_term(limit, owed, at, older, recent)
      end
    end
    if instant >= at then
      -- Past what is owed the product may be rounded, but never to below it.
      return max(0, owed - (instant - at) * limit.b), instant, older, recent
    end
    if bucket.is_ahead(limit, at) then
      -- The clock was set back too far to be waited for: what is owed is paid back from now on, and terms begin again.
      return owed, instant, 0, older + recent
    end
    -- The clock stepped back: that may pause the refill but never lends time, and no term begins again.
    return owed, owed + older + recent == 0 and instant or at, older, recent
  end

  -- When all that is lent has lapsed and all that is owed is paid.
  function bucket.drained(limit, owed, at, older, recent)
    while older + recent > 0 do
      owed, at, older, recent = bucket.end_term(limit, owed, at, older, recent)
    end
    return (at + ceil(owed / limit.b)) * limit.tick
  end

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

  function bucket.lapse(limit, value)
    return lapse_in(bucket.drained(limit, bucket.age(limit, value)))
  end

  -- The value as if all that is lent were owed: who asks for room need not know why there is none.
  function bucket.fold(limit, value)
    local owed, at, older, recent = bucket.age(limit, value)
    return write(limit.form, limit.prefix, owed + (older + recent) * limit.a, at % limit.span)
  end

  function bucket.room(limit, value)
    local owed, _, older, recent = bucket.age(limit, value)
    return floor((limit.c - owed) / limit.a) - older - recent
  end

  function bucket.take(limit, value, least, most, patience)
    local owed, at, older, recent = bucket.age(limit, value)
    local room = limit.c - owed - (older + recent) * limit.a
    if least > limit.d or least * limit.a > room then
      return nil
    end
    -- Only a queue is ever given a patience that ends.
    if least > 0 and patience < MOST and owed > 0
      and min(MOST, (at + ceil(owed / limit.b)) * limit.tick) - now > patience then
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

  -- What is lent stays lent, whatever is given back: those who have it go on spending it.
  function bucket.give(limit, value, units)
    local owed, at, older, recent = bucket.age(limit, value)
    return bucket.keep(limit, max(0, owed - units * limit.a), at, older, recent)
  end

  -- Twin of FixedWindow. a: the amount, b: the period, c: where windows begin, d: by how many seconds they may be longer.
  local fixed = {}
  laws[FIXED] = fixed

  function fixed.age(limit, value)
    if not value then
      return 0, 0
    end
    local _, ends, used = read(limit.form, value)
    if fixed.is_early(limit, value) then
      -- The clock was set back too far to be waited for: what was used is used of the window that it is in.
      return fixed.next_end(limit), min(used, limit.a)
    end
    return ends, now < ends and min(used, limit.a) or 0
  end

  -- Whether the clock was set back far behind the window of a value.
  function fixed.is_early(limit, value)
    local _, ends, used = read(limit.form, value)
    return used > 0 and ends - now > limit.b + limit.d * 1000000 + MOST_BACK
  end

  -- When the window ends that the time falls into; nothing if the calendar that came along does not say.
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

  function fixed.give(limit, value, units)
    local ends, used = fixed.age(limit, value)
    return fixed.keep(limit, ends, max(0, used - units))
  end

  -- Twin of SlidingWindow. a: the amount, b: the window's length in ticks.
  local sliding = {}
  laws[SLIDING] = sliding

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
      -- The clock was set back too far to be waited for: the counts are those of the window that it is in.
      return index, previous, current, elapsed
    end
    -- The clock stepped back: the window that was reached stays, as it was at its very beginning.
    return reached, previous, current, 0
  end

  -- Whether the clock was set back far behind the windows of a value.
  function sliding.is_early(limit, value)
    local _, reached, previous, current = read(limit.form, value)
    return previous + current > 0 and bucket.is_ahead(limit, reached * limit.b)
  end

  function sliding.fits(limit, previous, current, elapsed)
    return max(0, limit.a - current - ceil(previous * (limit.b - elapsed) / limit.b))
  end

  function sliding.keep(limit, index, previous, current)
    if previous + current == 0 then
      return false, 0
    end
    local gone = (index + (current > 0 and 2 or 1)) * limit.b * limit.tick
    return write(limit.form, limit.prefix, index, previous, current), lapse_in(min(MOST, gone))
  end

  function sliding.lapse(limit, value)
    local index, _, current = sliding.age(limit, value)
    return lapse_in(min(MOST, (index + (current > 0 and 2 or 1)) * limit.b * limit.tick))
  end

  function sliding.room(limit, value)
    local _, previous, current, elapsed = sliding.age(limit, value)
    return sliding.fits(limit, previous, current, elapsed)
  end

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

  function sliding.give(limit, value, units)
    local index, previous, current = sliding.age(limit, value)
    local rest = max(0, units - current)
    return sliding.keep(limit, index, max(0, previous - rest), max(0, current - units))
  end

  -- What stands in the way of reading a key's value under a limit; if nothing does, it can be read from here on. What was
  -- stored before the clock was set back is then counted from now on, even if the draw is refused: else nothing would be paid
  -- back for as long as somebody hammers.
  local function trouble(limit, key)
    part(limit, key)
    local value, left = values[key], former[key]
    if value and not is_own(limit, value) or left and left.limit.prefix ~= limit.prefix then
      return #whole(key) < 256 and STALE or BROKEN
    elseif limit.law == FIXED and not fixed.next_end(limit) then
      return OUTSIDE
    end
    local law = laws[limit.law]
    if value and law.is_early(limit, value) then
      values[key], lapses[key] = law.keep(limit, law.age(limit, value))
    end
    return false
  end

  -- Makes the function that decides a group of any kind: it is given where the group's draws begin, and returns where
  -- those of the next do.
  local function make_decide()
    local TAKE, LOOK, GIVE, CLEAR = 0, 1, 2, 3
    local GRANTED, SPARED, REFUSED = 0, 1, 2
    local ABSENT, COUNTED = 4, 8
    local STUCK, MANY, UNWRITTEN = 16, 32, 64
    local LOG, PLACES = 3, 4
    local NEVER = 2 ^ 53

    -- Laws whose state is a list or a sorted set: `open` forgets what no longer counts and says what is there, or
    -- nothing if it can't be read. They write at once, and what a refused request took is given back.
    local rolls = {}

    -- Twin of SlidingLog. a: the amount, b: the period. The list begins with the period that its units were last aged
    -- under and, if quotas of longer periods drew before, what is kept for them: for how long, how many units of the newest
    -- at least, and until when. Then comes one entry for each microsecond in which units were admitted: when, how many were
    -- admitted before, and how many then. So any stretch of it is counted by its two ends. `first` is the place of the first
    -- that is in sight.
    local log = {}
    rolls[LOG] = log

    -- An entry, as if it had been admitted so much earlier.
    function log.entry(key, index, back)
      local at, before, run = read('>I7I7I4', call('LINDEX', key, index))
      return max(0, at - back), before, run
    end

    -- The first of the entries from `from` to `to` for which `holds`; it does for all that follow, and for the last.
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

    -- Has all units admitted so much earlier: the clock was set back too far to be waited for.
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

    -- If nothing can be written, the list stays as it is: places are those in it, with what is forgotten, and `back` is by
    -- how much its units would be moved.
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
      -- The first entry that is in sight under a period, and how many units came before it.
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
      -- The first entry that is kept for an earlier quota. Units of this instant may yet be given back, because another
      -- limit of the same request refuses, and so are not counted.
      local settled = newest == reached and before or total
      local function first_kept(first)
        return kept_for == 0 and first or min(first, log.first(key, 1, length - 1, back, function(at, before, run)
          return at + kept_for > reached and settled - before - run < enough
        end))
      end
      -- What is out of sight of the quota before is forgotten, even if this one would see it.
      local forgotten = 1
      if aged_under ~= limit.b then
        local first, base = first_under(aged_under)
        forgotten = first_kept(first)
        if base < total then
          kept_for, enough, till = max(kept_for, aged_under), max(enough, total - base), max(till, newest + aged_under)
        end
        -- A quota that sees farther keeps all that the others need.
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

    -- What is only kept for another quota is not to be given back.
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

    -- What is left, when everything is back and, if it is refused, when to come back.
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

    -- Twin of Concurrency. a: the amount, b: after how long a permit lapses. Every hold is in the sorted set twice,
    -- both times with the score 0 and so in the order of bytes: as `L`, lapse, permit, units, number to find the next
    -- to lapse, and as `P`, permit, number, lapse, units to find what a permit holds. `u` has the sum of units for its
    -- score.
    local places = {}
    rolls[PLACES] = places

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
          -- What was not removed is passed over.
          from = from + 100
        end
      until #found < 100
      if lapsed and not unwritable then
        places.count(key, used)
      end
      -- Where nothing can be written, what has lapsed is kept, and counted in the sum that is.
      return {used = used, kept = unwritable and kept or used}
    end

    -- Removes a hold, given as it stands in the order of lapses, and says how many units it had.
    function places.remove(key, hold)
      local lapse, permit, units, number = read('>c7c8I4B', hold, 2)
      if not unwritable then
        put('ZREM', key, hold, write('>c1c8Bc7I4', 'P', permit, number, lapse, units))
      end
      return units
    end

    function places.count(key, used)
      if used > 0 then
        put('ZADD', key, used, 'u')
      else
        put('DEL', key)
      end
    end

    places.room = log.room

    function places.last(key)
      local last = call('ZREVRANGEBYLEX', key, '(M', '[L', 'LIMIT', 0, 1)[1]
      return last and read('>I7', last, 2)
    end

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

    -- How long until so many permits have lapsed that no more than `room` units are held.
    function places.wait(key, used, room)
      local from = 0
      if not unwritable and call('ZCARD', key) == 2 * used + 1 then
        -- Every hold is of one unit, so that the one to wait for is known by its rank.
        from, used = used - room - 1, room + 1
      end
      repeat
        local found = call('ZRANGEBYLEX', key, '[L', '(M', 'LIMIT', from, 100)
        for _, hold in ipairs(found) do
          local lapse, _, units = read('>I7c8I4', hold, 2)
          -- What has lapsed is not counted, and may be there if nothing can be written.
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

    local function parse(pos)
      local draw = {}
      local flags, key, number, units
      flags, key, number, units, pos = read('>BHHI4', records, pos)
      local limit = limits[number]
      draw.act, draw.key, draw.limit = flags % 4, key, limit
      draw.least, draw.most, draw.patience = units, units, MOST
      draw.is_last, draw.is_shadow = flags % 8 >= 4, flags % 16 >= 8
      if flags % 32 >= 16 then
        draw.most, draw.patience, pos = read('>I4I7', records, pos)
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
      draw.law, draw.roll = laws[limit.law], rolls[limit.law]
      if draw.roll then
        draw.key = KEYS[#KEYS + 1 - key]
      end
      return draw, pos
    end

    -- Takes what another limit left, if it still is what Rust was told, to be what Rust made of it. That is kept even
    -- if the draw is then refused: else the old rate would go on for as long as somebody hammers.
    local function adopt(draw)
      local key = draw.key
      if draw.found and whole(key) == draw.found then
        values[key], former[key] = draw.adopted ~= '' and draw.adopted, nil
        part(draw.limit, key)
        lapses[key] = values[key] and draw.law.lapse(draw.limit, values[key]) or 0
      end
    end

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

    local function set(draw, value, lapse)
      draw.before, draw.before_lapse, draw.is_changed = values[draw.key], lapses[draw.key], true
      values[draw.key], lapses[draw.key] = value, lapse
    end

    -- Decides a draw of a law whose state is a string; nothing if another limit has written it within this group.
    local function act_on_string(draw, act)
      local limit, law, value, left = draw.limit, draw.law, values[draw.key], former[draw.key]
      if value and not is_own(limit, value) or left and left.limit.prefix ~= limit.prefix then
        return nil
      end
      if act == TAKE or act == LOOK then
        local granted, after, lapse = law.take(limit, value, draw.least, draw.most, draw.patience)
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
        -- Clearing is giving back more than anybody can have taken.
        values[draw.key], lapses[draw.key] = law.give(limit, value, act == CLEAR and MOST or draw.least)
        if act == CLEAR then
          former[draw.key] = nil
        end
      end
      return SPARED
    end

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
        -- To clear a list also drops what is kept in it for other quotas.
        draw.is_changed = open.used > 0 or act == CLEAR and draw.roll == log and open.length > 0
      elseif act == CLEAR then
        -- Without memory to spare, what makes a list or set smaller can be written all the same.
        put('DEL', key)
      else
        roll.give(limit, key, open, draw.least, draw.permit)
      end
      return SPARED
    end

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

    -- Says that a group was left alone because the server does not take what would have to be written for it.
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

    -- Decides one request.
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
        -- After a refusal the others are only looked at: the client learns all that stands in its way.
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

    -- Decides so many requests that are all alike and whose draws all have keys of their own.
    local function decide_many(draws, times)
      local granted = times
      for _, draw in ipairs(draws) do
        local room = draw.roll and draw.roll.room(draw.limit, draw.open)
          or draw.law and draw.law.room(draw.limit, values[draw.key])
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
          local _, value, lapse = draw.law.take(draw.limit, values[draw.key], units, units, MOST)
          set(draw, value, lapse)
        end
        -- A log says when there will be room for one more, if there is none now.
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
      -- Lists and sets are opened last, because that ages them: a group that is left alone leaves everything as it is.
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

    -- Returns nothing if the group's first write was the first of the call, and was refused.
    return function(pos)
      local draws, troubles, draw, has_roll = {}, {}, nil, false
      repeat
        draw, pos = parse(pos)
        draws[#draws + 1] = draw
        local kind = nil
        has_roll = has_roll or draw.roll
        if draw.law then
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

  -- Makes the function that deals with leases: first it takes note of all reports, then it lends to all who wish. What
  -- is given back can be drawn in the same call, and what is drawn comes before what is lent.
  local function make_lend()
    local STUCK, UNKNOWN, KNOWN, SHOWN, ABSENT = 0, 1, 2, 4, 8
    local NO_REPORT, NO_WISH = {term = 0, spent = 0, kept = 0, back = 0}, {soon = 0, later = 0, one_of = 1}

    -- Twin of Wish::of.
    local function part_of(wish, left)
      return max(min(wish.soon, floor(left / 2)), min(wish.later, floor(left / max(1, wish.one_of))))
    end

    -- Twins of Bucket::lend, FixedWindow::lend and SlidingWindow::lend: they take note of a report, lend what is wished
    -- for, and return the loan, the new value and when that may lapse.
    local lenders = {}

    lenders[BUCKET] = function(limit, value, report, wish)
      local owed, at, older, recent = bucket.age(limit, value)
      local length = bucket.term(limit)
      local term, older_before, recent_before = floor(at / length), older, recent
      local is_recent, is_older = report.term == term, report.term == term - 1
      -- More than was lent can't be reported; if a node does, the most that it can do is to be believed less.
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

    -- What is lent is used, until the window ends.
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

    -- What is lent counts as used in this window, and lapses when it ends.
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

    local function settle(order, report, wish)
      local key, limit = order.key, order.limit
      local loan, value, lapse = lenders[limit.law](limit, values[key], report, wish)
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
          -- Unless another quota has taken the key over since.
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
  make_decide, make_lend = make_laws()
  lend = make_lend()
end

local loaded, is_bucket, form, prefix, length, span, unit, refill, capacity, burst, tick, instant
local pos, size = 1, #records
while pos <= size do
  local flags, key, number, units, next_pos = read('>BHHI4', records, pos)
  if number ~= loaded then
    local limit = limits[number]
    loaded, is_bucket, form, prefix, length = number, limit.law == 0, limit.form, limit.prefix, limit.length
    span = limit.span
    unit, refill, capacity, burst, tick = limit.a, limit.b, limit.c, limit.d, limit.tick
    instant = is_bucket and (tick == 1 and now or floor(now / tick))
  end
  local value = values[key]
  local owed, at, written_by = 0, instant, prefix
  -- A request of one draw that takes some units, without more ado, from a bucket: see `bucket` above.
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
      make_decide = make_decide or make_laws()
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
    -- The first write tells whether the server takes any.
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
  -- Nothing was written: everything is decided once more, the long way, which now writes nothing.
  lapses, former, said, pos = {}, {}, 1, 1
  if strings > 0 then
    values = call('MGET', unpack(KEYS, 1, strings))
  end
  if not make_decide then
    make_decide, make_lend = make_laws()
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
