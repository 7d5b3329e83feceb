package consume

import (
	"math"
	"runtime"
	"slices"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// driver drives a machine by its events, one after the other, against a fake server that answers at
// once.
type driver struct {
	*testing.T
	*Machine
	redis    *fakeRedis
	now      time.Time
	notes    []Note
	overruns []*InHand
	fails    func(x *Exchange, a *Answer) // changes an answer before the machine gets it; nil: it does not
}

// drive returns the driver of a machine. Zero limits are the model's.
func drive(t *testing.T, limits Limits) *driver {
	t.Parallel()
	limits.Main, limits.Second = "main", "second"
	if limits.Lease == 0 {
		limits.Lease = modelLease
	}
	if limits.MaxExtension == 0 {
		limits.MaxExtension = -1
	}
	now := time.UnixMilli(1_700_000_000_000)
	return &driver{T: t, Machine: NewMachine(limits, now), redis: newFakeRedis(0), now: now}
}

func (d *driver) pass(by time.Duration) {
	d.now = d.now.Add(by)
	d.redis.step(d.now)
}

// publish makes messages ready, of which the machine hears nothing.
func (d *driver) publish(n int) {
	d.redis.publish(n)
	d.redis.wakes = 0
}

// manyExpiries in a row have a message be claimed alone, whatever MaxInFlight is.
const manyExpiries = 20

// suspects publishes messages of which so many leases in a row have expired.
func (d *driver) suspects(n, expiries int) {
	d.publish(n)
	for _, m := range d.redis.ready[len(d.redis.ready)-n:] {
		m.expiries = expiries
	}
}

func (d *driver) plan() (*Exchange, time.Time) {
	x, wake, e := d.Plan(d.now, modelPoll, Contact{Address: "mailbox|1"})
	d.done(e)
	return x, wake
}

// done carries out effects.
func (d *driver) done(e Effects) {
	d.notes = append(d.notes, e.Notes...)
	d.overruns = append(d.overruns, e.Overruns...)
	for _, done := range e.Answered {
		done()
	}
}

// says returns the next exchange. There has to be one.
func (d *driver) says() *Exchange {
	d.Helper()
	x, wake := d.plan()
	require.NotNil(d, x, "nothing until %v", wake.Sub(d.now))
	return x
}

// claims returns the claim of the next exchange. There has to be one.
func (d *driver) claims() (*Exchange, *queue.Claim) {
	d.Helper()
	x := d.says()
	require.NotEmpty(d, x.Claims)
	return x, x.Claims[0]
}

// isSilent returns for how long there is nothing to say. There may be nothing.
func (d *driver) isSilent() time.Duration {
	d.Helper()
	x, wake := d.plan()
	require.Nil(d, x)
	return wake.Sub(d.now)
}

// run has the server run an exchange, and returns its answer.
func (d *driver) run(x *Exchange) *Answer {
	a := &Answer{Sent: d.now, Came: d.now, Lost: map[string]bool{}}
	a.Acked = d.redis.ackAll(x.Acks)
	d.redis.ackAll(x.Drops)
	back := x.ReleasesInOrder()
	slices.Reverse(back)
	each(back, d.redis.release)
	for i := len(x.Nacks) - 1; i >= 0; i-- {
		d.redis.nack(&x.Nacks[i], d.now)
	}
	for _, l := range x.Extend {
		if !d.redis.extend(l, d.now.Add(d.limits.Lease)) {
			a.Lost[l.Lease()] = true
		}
	}
	for i, c := range x.Claims {
		a.Claims[i] = d.redis.claim(c, d.now)
	}
	return a
}

// answer has the server run and answer an exchange.
func (d *driver) answer(x *Exchange) {
	a := d.run(x)
	if d.fails != nil {
		d.fails(x, a)
	}
	d.done(d.Answered(d.now, x, a))
}

// unanswered is no answer to any call; refused is a refusal of each.
func unanswered(x *Exchange, a *Answer) { fail(x, a, NoAnswer) }
func refused(x *Exchange, a *Answer)    { fail(x, a, Refused) }

func fail(x *Exchange, a *Answer, o Outcome) {
	a.Acked, a.Failed, a.Lost = 0, FailedAcks|FailedReleases|FailedNacks|FailedExtend|FailedOther, nil
	for i := range x.Claims {
		a.Claims[i] = Claimed{Outcome: o}
	}
}

// talk has exchanges until there is nothing to say, and returns for how long.
func (d *driver) talk() time.Duration {
	for {
		x, wake := d.plan()
		if x == nil {
			return wake.Sub(d.now)
		}
		d.answer(x)
	}
}

// isWoken has the subscription claim once.
func (d *driver) isWoken() *queue.Claim {
	d.Woken()
	x, c, _ := d.waitForClaim()
	d.answer(x)
	return c
}

// waitForClaim has time pass, and exchanges, until there is a claim, and returns how long that
// took.
func (d *driver) waitForClaim() (*Exchange, *queue.Claim, time.Duration) {
	began := d.now
	for {
		x, wake := d.plan()
		switch {
		case x == nil:
			d.pass(wake.Sub(d.now))
		case len(x.Claims) > 0:
			return x, x.Claims[0], d.now.Sub(began)
		default:
			d.answer(x)
		}
		require.Less(d, d.now.Sub(began), 10*d.limits.Lease, "no claim is made")
	}
}

// offer has messages be taken, and offered to the consumer.
func (d *driver) offer(n int) (all []*InHand) {
	d.Helper()
	for range n {
		in := &InHand{}
		taken, e := d.Take(d.now, in)
		require.True(d, taken)
		require.Nil(d, e.Beside)
		all = append(all, in)
	}
	return all
}

// hand has the consumer take messages.
func (d *driver) hand(n int) []*InHand {
	d.Helper()
	all := d.offer(n)
	for _, in := range all {
		d.done(d.Handed(d.now, in))
	}
	return all
}

func (d *driver) ack(all ...*InHand) (wake Wake) {
	for _, in := range all {
		wake = d.Acked(d.now, in).Wake
	}
	return wake
}

func (d *driver) nack(in *InHand, retry queue.Due) {
	d.Nacked(d.now, in, queue.Failure{Leased: &in.Leased, Retry: retry})
}

// rest has exchanges until there is nothing to say for long. Redis wakes the subscription then, if
// it has room.
func (d *driver) rest() {
	for wait := d.talk(); wait <= gather; wait = d.talk() {
		d.pass(wait)
	}
	d.pass(2 * gather)
}

// holds has the consumer get some messages and hold them. Nothing is left to say.
func (d *driver) holds(n int) (all []*InHand) {
	d.Helper()
	d.publish(n)
	d.Woken()
	for d.rest(); len(all) < n; d.rest() {
		all = append(all, d.hand(d.held.buffer.len())...)
	}
	return all
}

func TestASuspectIsAloneInHandForALease(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 2})
	d.suspects(1, manyExpiries)
	d.publish(5)
	x, _ := d.claims()
	d.answer(x)
	d.hand(1)
	_, c, after := d.waitForClaim()
	require.Equal(t, modelLease, after)
	require.Positive(t, c.Limit)
	require.Positive(t, c.Held, "no other suspect comes with it")
}

func TestSuspectsThatFollowEachOtherShareTheWait(t *testing.T) {
	for name, c := range map[string]struct {
		handled bool // the first suspect is acked at once
		between int  // messages between the two
		wait    time.Duration
	}{
		"the first is handled":                 {handled: true, wait: 0},
		"the first is in hand, and may crash":  {handled: false, wait: modelLease},
		"others are between, so it waits anew": {handled: true, between: 1, wait: modelLease},
	} {
		t.Run(name, func(t *testing.T) {
			d := drive(t, Limits{MaxInFlight: 4})
			d.holds(1)
			d.suspects(1, manyExpiries)
			d.publish(c.between)
			d.suspects(1, manyExpiries)
			require.Positive(t, d.isWoken().Held)
			x, claim, wait := d.waitForClaim()
			require.Equal(t, modelLease, wait)
			require.Zero(t, claim.Held, "it has waited for long enough")
			d.answer(x)
			first := d.hand(1)
			if c.handled {
				d.ack(first...)
			}
			if c.between > 0 {
				d.isWoken()
				d.hand(1)
				require.Positive(t, d.isWoken().Held)
			}
			began := d.now
			for claim.Held = 1; claim.Held > 0 && d.now.Sub(began) <= c.wait; {
				x, claim, _ = d.waitForClaim()
				d.answer(x)
			}
			require.Zero(t, claim.Held)
			require.Equal(t, c.wait, d.now.Sub(began))
		})
	}
}

// A consumer with fewer handlers than MaxInFlight begins with a message that was on offer when the
// wait began. That message may end the process, too.
func TestASuspectWaitsALeaseForAHandlerThatBeginsInTheWait(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 4})
	d.publish(2)
	d.isWoken()
	first, offered := d.hand(1), d.offer(1)
	d.suspects(1, manyExpiries)
	require.Positive(t, d.isWoken().Held)
	d.pass(modelLease * 4 / 5)
	d.ack(first...)
	d.done(d.Handed(d.now, offered[0]))
	began, claim := d.now, &queue.Claim{Held: 1}
	for claim.Held > 0 && d.now.Sub(began) <= modelLease {
		var x *Exchange
		x, claim, _ = d.waitForClaim()
		d.answer(x)
	}
	require.Zero(t, claim.Held)
	require.Equal(t, modelLease, d.now.Sub(began))
}

// The suspect may be another subscription's by then, and nobody else tells.
func TestAWakeUpOrThePollAsksWhetherASuspectIsStillNext(t *testing.T) {
	for name, wait := range map[string]func(d *driver){
		"a wake-up": func(d *driver) { d.Woken() },
		"the poll":  func(d *driver) { d.pass(modelPoll) },
	} {
		t.Run(name, func(t *testing.T) {
			d := drive(t, Limits{MaxInFlight: 2, Lease: time.Hour})
			d.holds(1)
			d.suspects(1, manyExpiries)
			d.Woken()
			require.Equal(t, modelPoll, d.talk())
			wait(d)
			_, c := d.claims()
			require.Equal(t, 1, c.Limit)
			require.Equal(t, 1, c.Slots)
			require.Positive(t, c.Held)
		})
	}
}

// Its claim left no slots, so that Redis did not note it.
func TestASubscriptionWithRoomBehindASuspectAsksToBeWoken(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 2, Lease: time.Hour})
	first := d.holds(1)
	d.pass(time.Millisecond)
	d.ack(first...) // its pace is known now, so that it claims more than it can take
	held := d.holds(2)
	d.suspects(1, manyExpiries)
	d.Woken()
	x, c := d.claims()
	require.Positive(t, c.Limit)
	require.Zero(t, c.Slots)
	d.answer(x)
	d.isSilent()
	d.ack(held[0])
	_, c = d.claims()
	require.Equal(t, 1, c.Slots)
}

func TestAcksGatherForAMillisecondAfterAnExchange(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(d *driver, held []*InHand)
		waits   bool
		acks    int
	}{
		"nothing more": {func(*driver, []*InHand) {}, true, 1},
		"another ack":  {func(d *driver, held []*InHand) { require.Zero(d, d.ack(held[0])) }, true, 2},
		"255 acks":     {func(d *driver, held []*InHand) { require.Zero(d, d.ack(held[:254]...)) }, true, 255},
		"256 acks":     {func(d *driver, held []*InHand) { require.Equal(d, Talk, d.ack(held[:255]...)) }, false, 256},
		"a nack":       {func(d *driver, held []*InHand) { d.nack(held[0], queue.In(time.Hour)) }, false, 1},
		"a wake-up":    {func(d *driver, _ []*InHand) { d.Woken() }, false, 1},
		"Close":        {func(d *driver, _ []*InHand) { d.Close() }, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			d := drive(t, Limits{MaxInFlight: 300})
			held := d.holds(260)
			require.Equal(t, Talk, d.ack(held[258]))
			x := d.says()
			require.Len(t, x.Acks, 1, "it goes at once if the last exchange is long ago")
			d.answer(x)
			require.Equal(t, Talk, d.ack(held[259]))
			if c.waits {
				require.Equal(t, gather, d.isSilent())
			}
			c.happens(d, held)
			if c.waits {
				require.Equal(t, gather, d.isSilent())
				d.pass(gather)
			}
			require.Len(t, d.says().Acks, c.acks)
		})
	}
}

func TestAClaimWaitsForMoreAfterOneThatBroughtMany(t *testing.T) {
	for name, c := range map[string]struct {
		brought int
		happens func(d *driver, held []*InHand)
		wait    time.Duration
		slots   int
	}{
		"31 came":             {manyBrought - 1, func(d *driver, _ []*InHand) {}, 0, 300 - 50 - 31},
		"32 came":             {manyBrought, func(d *driver, _ []*InHand) {}, gather, 0},
		"more is ready":       {256 + 10, func(d *driver, _ []*InHand) {}, 0, 0},
		"a nack goes anyway":  {manyBrought, func(d *driver, held []*InHand) { d.nack(held[0], queue.In(time.Hour)) }, 0, 0},
		"leases are extended": {manyBrought, func(d *driver, _ []*InHand) { d.Asked(func() {}) }, 0, 0},
		"Close":               {manyBrought, func(d *driver, _ []*InHand) { d.Close() }, 0, 0},
		"long ago":            {manyBrought, func(d *driver, _ []*InHand) { d.pass(2 * gather) }, 0, 300 - 50 - 32},
	} {
		t.Run(name, func(t *testing.T) {
			d := drive(t, Limits{MaxInFlight: 300})
			held := d.holds(50)
			if c.brought > mostClaimed {
				d.ack(held[1:]...)
				d.rest()
			}
			d.publish(c.brought)
			d.Woken()
			x, _ := d.claims()
			d.answer(x)
			d.hand(min(c.brought, mostClaimed))
			if c.brought <= mostClaimed {
				d.Woken()
			}
			c.happens(d, held)
			_, claim, wait := d.waitForClaim()
			require.Equal(t, c.wait, wait)
			require.Equal(t, c.slots, claim.Slots)
		})
	}
}

// besideAt returns a driver whose main lane has a claim under way for so many messages, and then
// has more room by the second number. More is ready than it takes.
func besideAt(t *testing.T, main, more int) *driver {
	d := drive(t, Limits{MaxInFlight: 256, Lease: time.Hour})
	d.publish(1000)
	x, _ := d.claims()
	d.answer(x)
	held := d.hand(256)
	d.ack(held[:main]...)
	_, c := d.claims()
	require.Equal(t, main, c.Limit)
	d.ack(held[main : main+more]...)
	return d
}

func TestMoreIsClaimedBesideAClaimThatBringsTooLittle(t *testing.T) {
	for _, c := range []struct{ main, more, claims int }{
		{64, 191, 191},
		{170, 85, 85}, // a third is to come
		{171, 84, 0},
		{32, 32, 32}, // manyBrought
		{32, 31, 0},
	} {
		t.Run("", func(t *testing.T) {
			d := besideAt(t, c.main, c.more)
			x := d.PlanBeside(d.now)
			if c.claims == 0 {
				require.Nil(t, x)
				return
			}
			require.Len(t, x.Acks, c.more)
			x.Claims[0].Counts = queue.Counts{}
			require.Equal(t, []*queue.Claim{{
				Subscription: "second", Number: 1, Limit: c.claims, Held: 256, Most: 256, Lease: time.Hour, Bytes: claimBytes,
			}}, x.Claims, "no suspect comes, and the second lane is not woken")
			require.Nil(t, d.PlanBeside(d.now), "one is under way")
		})
	}
}

func TestNothingIsClaimedBeside(t *testing.T) {
	main := func(d *driver) *Exchange { return &Exchange{Claims: []*queue.Claim{d.main.claim}} }
	for name, change := range map[string]func(d *driver){
		"an idle main lane":            func(d *driver) { d.answer(main(d)) },
		"a main lane without answer":   func(d *driver) { d.fails = unanswered; d.answer(main(d)); d.says() },
		"a subscription that closes":   func(d *driver) { d.Close() },
		"a subscription that is woken": func(d *driver) { d.Woken() },
		"an exchange after one beside that failed": func(d *driver) {
			x := d.PlanBeside(d.now)
			d.fails = refused
			d.answer(x)
		},
		"another that is under way": func(d *driver) {
			require.NotNil(d, d.PlanBeside(d.now))
			d.ack(d.InHand()...)
		},
		"a main lane that may bring a suspect": func(d *driver) {
			d.answer(main(d))
			d.pass(time.Microsecond)
			d.hand(d.held.buffer.len())
			d.ack(d.InHand()...)
			_, c := d.claims()
			require.Zero(d, c.Held)
			require.Equal(d, mostClaimed, c.Limit)
			free, prefetch := d.wanted()
			require.Greater(d, free+prefetch, 2*mostClaimed)
		},
		"a suspect that is next": func(d *driver) {
			d.redis.ready[0].expiries = 2
			d.answer(main(d))
			d.pass(modelPoll)
			_, c := d.claims()
			require.Positive(d, c.Held)
			d.ack(d.InHand()[1:]...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := besideAt(t, 64, 100)
			change(d)
			require.Nil(t, d.PlanBeside(d.now))
		})
	}
	t.Run("in order", func(t *testing.T) {
		d := drive(t, Limits{MaxInFlight: 1})
		d.publish(1000)
		d.answer(d.says())
		in := d.hand(1)
		d.pass(time.Microsecond)
		d.ack(in...)
		d.answer(d.says())
		d.hand(1)
		x, c := d.claims()
		require.Equal(t, mostClaimed, c.Limit)
		require.Positive(t, c.Held)
		require.Nil(t, d.PlanBeside(d.now))
		d.answer(x)
	})
}

func TestNothingIsClaimedBesideAfterAFailureUntilTheMainLaneGetsThrough(t *testing.T) {
	d := besideAt(t, 64, 100)
	main := &Exchange{Claims: []*queue.Claim{d.main.claim}}
	x := d.PlanBeside(d.now)
	d.done(d.Answered(d.now, x, &Answer{Sent: d.now, Came: d.now, Failed: FailedAcks, Claims: [2]Claimed{d.redis.claim(x.Claims[0], d.now)}}))
	d.ack(d.hand(100)...)
	require.Nil(t, d.PlanBeside(d.now))
	d.answer(main)
	d.hand(64)
	d.claims()
	d.ack(d.InHand()...)
	require.NotNil(t, d.PlanBeside(d.now))
}

func TestRedisForgetsTheSecondLanesClaimAtTheEnd(t *testing.T) {
	for name, first := range map[string]func(x *Exchange, a *Answer){"answered": nil, "repeated, when its leases are over": unanswered} {
		t.Run(name, func(t *testing.T) {
			d := besideAt(t, 64, 100)
			main := &Exchange{Claims: []*queue.Claim{d.main.claim}}
			d.fails = first
			d.answer(d.PlanBeside(d.now))
			d.fails = nil
			d.answer(main)
			if first != nil {
				d.pass(2 * time.Hour)
				d.Tick(d.now)
			}
			require.Contains(t, d.redis.claims, "second")
			d.Close()
			d.TakerGone()
			d.GiveUp(nil)
			d.talk()
			require.True(t, d.finished())
			require.NotContains(t, d.redis.claims, "second")
		})
	}
}

// claimsAll has the subscription claim for as long as it wants more, and returns how many messages
// it has then.
func (d *driver) claimsAll() int {
	d.Helper()
	for {
		d.Woken()
		x, c := d.claims()
		require.LessOrEqual(d, c.Limit, mostClaimed)
		d.answer(x)
		if c.Limit == 0 {
			return d.held.len()
		}
	}
}

func TestClaimsInAdvanceGrowWithTheConsumersPace(t *testing.T) {
	for _, c := range []struct {
		pace  time.Duration
		ahead int
	}{
		{time.Second, 1},
		{10 * time.Millisecond, 100},
		{time.Millisecond, mostAhead},
		{time.Nanosecond, mostAhead},
	} {
		t.Run(c.pace.String(), func(t *testing.T) {
			d := drive(t, Limits{MaxInFlight: 10})
			d.publish(2000)
			d.Woken()
			d.answer(d.says())
			d.ack(d.hand(9)...) // at once, which tells nothing
			in := d.hand(1)
			d.pass(c.pace)
			d.ack(in...)
			require.Equal(t, 10+c.ahead, d.claimsAll())
		})
	}
}

func TestAClaimIsLimited(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: math.MaxInt, GroupExpiry: time.Hour})
	_, c := d.claims()
	require.Equal(t, &queue.Claim{
		Subscription: "main", Number: 1, Limit: 256, Most: fullHand, Lease: modelLease, Slots: 256, Address: "mailbox|1", Patience: 3 * modelPoll,
		Bytes: 4 << 20, Expiry: time.Hour, Turn: true,
	}, c)
}

func TestMessagesThatTheConsumerDoesNotTakeGoBackAfter100Milliseconds(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 100})
	d.publish(300)
	d.answer(d.says())
	d.hand(2)
	offered := d.offer(1)[0]
	d.pass(100 * time.Millisecond)
	d.talk()
	require.Len(t, d.redis.ready, 200, "they are kept as long as that")
	d.pass(time.Nanosecond)
	x := d.says()
	require.Len(t, x.Releases, 97)
	require.Empty(t, x.Claims, "the consumer takes nothing")
	d.answer(x)
	c := d.isWoken()
	require.Zero(t, c.Limit, "the wake-up is passed on")
	require.Zero(t, c.Slots)
	require.NotZero(t, d.Handed(d.now, offered).Wake&Talk)
	for _, want := range []int{3, 6, 12, 24, 48, 96, 97} { // it takes all that it is given
		x, c = d.claims()
		require.Equal(t, want, c.Limit)
		d.answer(x)
		d.ack(d.hand(want)...)
	}
}

// It may settle none before it gets another.
func TestAConsumerThatIsOfferedNothingIsNotStuck(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 3})
	d.publish(5)
	d.answer(d.says())
	d.hand(2)
	d.pass(longestStay + 1)
	x, c := d.claims()
	require.Len(t, x.Releases, 1)
	require.Equal(t, 1, c.Limit)
}

func TestMoreIsClaimedWhenTheLastMessageIsTaken(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 4})
	d.publish(3)
	d.answer(d.says())
	for _, want := range []Wake{0, 0, Talk} {
		_, e := d.Take(d.now, &InHand{})
		require.Equal(t, want, e.Wake)
	}
}

func TestRoomDoublesWithoutOverflow(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: math.MaxInt})
	d.publish(2)
	d.answer(d.says())
	offered := d.offer(1)[0]
	d.pass(longestStay + 1)
	d.answer(d.says())
	require.Equal(t, 1, d.taker.room)
	d.Handed(d.now, offered)
	for range 100 {
		d.publish(1)
		d.isWoken()
		d.ack(d.hand(d.held.buffer.len())...)
	}
	d.Woken()
	_, c := d.claims()
	require.Equal(t, mostClaimed, c.Limit)
	require.Equal(t, math.MaxInt, d.taker.room)
}

func TestInOrderNothingIsHandedOutBeforeRedisHasTheNack(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 1})
	d.publish(2)
	d.answer(d.says())
	d.nack(d.hand(1)[0], queue.In(0))
	x := d.says()
	ran := *x
	ran.Nacks = nil // the server refused it, and ran the claim
	a := d.run(&ran)
	a.Failed = FailedNacks
	d.done(d.Answered(d.now, x, a))
	require.Equal(t, 1, d.held.len())
	taken, _ := d.Take(d.now, &InHand{})
	require.False(t, taken)
}

// Messages claimed in advance come after the nacked message, and go back. For a handler that often
// fails, all of them would come and go each time.
func TestInOrderNoMoreIsClaimedAheadThanWasHandledSinceANack(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 1})
	d.publish(2000)
	d.answer(d.says())
	in := d.hand(1)
	d.pass(time.Microsecond)
	d.ack(in...)
	require.Equal(t, mostAhead+1, d.claimsAll())
	d.nack(d.hand(1)[0], queue.In(time.Hour))
	require.NotZero(t, d.held.buffer.len())
	require.Equal(t, mostAhead+1, d.claimsAll(), "that message is later than the others")

	nacked := d.hand(1)[0]
	d.nack(nacked, queue.In(0))
	taken, _ := d.Take(d.now, &InHand{})
	require.False(t, taken)
	for d.held.len() == 0 {
		d.Woken()
		d.answer(d.says())
	}
	require.Equal(t, 1, d.claimsAll())
	require.Equal(t, nacked.ID, d.held.buffer.first().ID)
	for handled := 1; handled <= 3; handled++ {
		d.ack(d.hand(1)...)
		require.Equal(t, 1+handled, d.claimsAll())
	}
	dropped := d.offer(1)[0]
	v, _, _ := d.Judge(d.now, dropped, time.Unix(1, 0), false)
	require.Equal(t, TooLate, v)
	require.Equal(t, 1+4, d.claimsAll(), "it is handled, too")
}

// An outage is logged otherwise.
func TestAnOutageIsNoLateAnswer(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 2})
	d.publish(2)
	x := d.says()
	a := d.run(x) // and its answer is lost
	unanswered(x, a)
	d.done(d.Answered(d.now, x, a))
	d.now = d.now.Add(modelLease + 1)
	d.answer(d.says())
	require.Zero(t, d.held.len())
	require.Len(t, d.says().Releases, 2)
	require.Empty(t, d.notes)
}

func TestVerdictsAreExact(t *testing.T) {
	for _, c := range []struct {
		left, since time.Duration // until the end when the server told its time, and since then
		want        Verdict
		onOffer     time.Duration
	}{
		{time.Millisecond, 0, InTime, time.Millisecond},
		{1, 0, InTime, 1},
		{time.Hour, time.Hour - 1, InTime, 1},
		{time.Millisecond, time.Millisecond, Unclear, 0},
		{time.Millisecond, time.Hour, Unclear, 0},
		{1, 1, Unclear, 0},
		{0, 0, TooLate, 0},
		{-1, 0, TooLate, 0},
	} {
		t.Run("", func(t *testing.T) {
			d := drive(t, Limits{MaxInFlight: 1})
			d.publish(1)
			d.answer(d.says())
			in := d.offer(1)[0]
			v, left, _ := d.Judge(d.now.Add(c.since), in, d.now.Add(c.left), true)
			require.Equal(t, c.want, v)
			if v == InTime {
				require.Equal(t, c.onOffer, left)
			}
			require.Equal(t, v != TooLate, d.Has(in))
		})
	}
}

// The server told it at any time between. A message is not on offer for too long, nor told to be
// late that is not.
func TestTheServersTimeIsAsOldAsTheClaimOrItsAnswer(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 1})
	d.publish(1)
	x := d.says()
	sent := d.now
	d.pass(time.Second)
	a := d.run(x)
	told := d.now
	d.pass(time.Second)
	a.Sent, a.Came = sent, d.now
	d.done(d.Answered(d.now, x, a))
	in := d.offer(1)[0]
	_, left, _ := d.Judge(d.now, in, told.Add(10*time.Second), false)
	require.Equal(t, 8*time.Second, left)
	for due, late := range map[time.Duration]time.Duration{time.Second: 0, 0: 0, -time.Second: time.Second} {
		in.Due = told.Add(due)
		d.Handed(d.now, in)
		want := queue.Counts{}
		want.Handed(late)
		require.Equal(t, want, d.counts)
		d.counts = queue.Counts{}
	}
}

func TestTheServersTimeIsAskedOnceForAMessageThatMayBeTooLate(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 1})
	d.publish(1)
	d.rest()
	in := d.offer(1)[0]
	d.rest()
	end := d.now.Add(time.Second)
	d.now = end
	asks := func() Wake {
		v, _, e := d.Judge(d.now, in, end, false)
		require.Equal(t, Unclear, v)
		d.done(d.Withdrawn())
		return e.Wake
	}
	require.Equal(t, Talk, asks())
	require.Zero(t, asks(), "a claim will be made")
	x, _ := d.claims()
	require.Equal(t, Talk, asks(), "it may have been sent too early")
	d.answer(x)
	v, _, e := d.Judge(d.now, in, end, false)
	require.Equal(t, TooLate, v)
	require.Equal(t, []Note{{Kind: TooLateToDeliver}}, e.Notes)
	x = d.says()
	require.Len(t, x.Drops, 1)
	require.Empty(t, x.Acks)
	d.answer(x)
}

func TestAQuestionIsAnsweredWhenNoMessageIsJudgedByAnEarlierTime(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 1})
	d.publish(1)
	d.rest()
	in := d.offer(1)[0]
	answered := 0
	ask := func() {
		d.done(d.Asked(func() { answered++ }))
		d.answer(d.says())
	}
	ask()
	require.Equal(t, 1, answered, "no message that expires is on offer")
	v, _, _ := d.Judge(d.now, in, d.now.Add(time.Hour), false)
	require.Equal(t, InTime, v)
	ask()
	require.Equal(t, 1, answered, "the consumer may take it yet")
	d.done(d.Withdrawn())
	require.Equal(t, 2, answered)

	d.fails = refused
	ask()
	require.Equal(t, 2, answered, "nobody has told the time")
	d.fails = nil
	d.answer(d.says())
	require.Equal(t, 3, answered)

	d.done(d.TakerGone())
	d.done(d.Asked(func() { answered++ }))
	x := d.says()
	require.NotEmpty(t, x.Extend)
	require.Equal(t, 3, answered, "the extension tells of a lease that is lost")
	d.answer(x)
	d.plan()
	require.Equal(t, 4, answered)
	d.done(d.End())
	d.done(d.Asked(func() { answered++ }))
	require.Equal(t, 5, answered)
}

// The fake's messages are due in 1970.
func TestWhatARefusedClaimHadToTellIsToldByTheNext(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 200})
	late := d.now.Sub(time.UnixMilli(1))
	d.publish(200)
	d.rest()
	d.hand(200)
	d.fails = refused
	d.isWoken()
	d.fails = nil
	_, c, _ := d.waitForClaim()
	require.Equal(t, queue.Lateness{len(c.Counts.Lateness) - 1: 200}, c.Counts.Lateness)
	require.InEpsilon(t, late, c.Counts.Latest, 0.001)
}

func TestAllLeasesAreExtendedInOrder(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 5})
	held := d.holds(5)
	d.ack(held[0])
	d.pass(modelLease / 3)
	x := d.says()
	var ids []string
	for _, l := range x.Extend {
		ids = append(ids, l.ID)
	}
	require.True(t, slices.IsSorted(ids), "the machine's order is not that")
	require.Len(t, ids, 4)
	d.fails = unanswered
	d.answer(x)
	d.fails = nil
	x = d.says()
	require.Len(t, x.Extend, 4, "at once, and not in a third of a lease")
	delete(d.redis.messages, held[2].ID)
	d.answer(x)
	require.Equal(t, []Note{{Kind: LostLease, InHand: held[2]}}, d.notes)
	require.Equal(t, 1, d.counts.LeaseLost)
	require.ElementsMatch(t, []*InHand{held[1], held[3], held[4]}, d.InHand())
}

// A third of the lease is over before the next extension would come.
func TestLeasesThatWereLongOnTheirWayAreExtendedInTime(t *testing.T) {
	for name, beside := range map[string]bool{"the main lane's": false, "the second lane's": true} {
		t.Run(name, func(t *testing.T) {
			d := besideAt(t, 64, 100)
			main, sent := &Exchange{Claims: []*queue.Claim{d.main.claim}}, d.now
			if beside {
				x := d.PlanBeside(d.now)
				a := d.run(x)
				d.answer(main)
				d.hand(64)
				d.pass(time.Hour / 3)
				d.answer(d.says())
				a.Came = d.now
				d.done(d.Answered(d.now, x, a))
			} else {
				a := d.run(main)
				unanswered(main, a)
				d.done(d.Answered(d.now, main, a))
				d.pass(time.Hour / 3)
				d.answer(d.says())
			}
			x := d.says()
			require.NotEmpty(t, x.Extend)
			require.Equal(t, sent.Add(time.Hour+time.Millisecond), d.Watch(), "the extension may come too late")
			d.answer(x)
			require.Zero(t, d.Watch())
		})
	}
}

// Redis does not answer, or is tried only now and then.
func TestLeasesThatEndWithoutAnAnswerAreWatched(t *testing.T) {
	d := besideAt(t, 64, 100)
	main := &Exchange{Claims: []*queue.Claim{d.main.claim}}
	x := d.PlanBeside(d.now)
	a := d.run(x)
	sent := d.now
	d.ack(d.InHand()...)
	d.now = d.now.Add(time.Minute)
	d.fails = unanswered
	d.answer(main)
	require.True(t, d.Watch().After(sent.Add(time.Hour+time.Millisecond)), "nothing is held")
	a.Sent, a.Came = sent, d.now
	d.done(d.Answered(d.now, x, a))
	require.Equal(t, sent.Add(time.Hour+time.Millisecond), d.Watch())
	held := d.hand(1)
	d.now = d.Watch()
	d.done(d.Tick(d.now))
	require.False(t, d.Has(held[0]))
	require.Zero(t, d.held.len())
}

// If the server ran the claim, its messages are leased. A message that goes back would then be
// behind them here, but in front of them at the server.
func TestOnlyAcksGoWithTheRepeatOfAClaim(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 3})
	held := d.holds(2)
	d.Woken()
	x, first := d.claims()
	d.fails = unanswered
	d.answer(x)
	d.fails = refused // which tells nothing of the first run
	for range 2 {
		d.nack(held[0], queue.In(0))
		d.ack(held[1])
		x := d.says()
		require.Equal(t, []*queue.Claim{first}, x.Claims)
		require.Zero(t, first.Slots)
		require.Empty(t, x.Nacks)
		require.Len(t, x.Acks, 1)
		d.answer(x)
	}
	d.pass(modelLease)
	d.answer(d.says())
	x, next := d.claims()
	require.Len(t, x.Nacks, 1, "the leases of that claim are over")
	require.Equal(t, first.Number+1, next.Number)
}

// The group is registered again, and the claim that had no answer is run at last: its leases began
// before the next claim was sent.
func TestNoClaimHasTheNumberOfOneBeforeTheGroupWasGone(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 1})
	x, first := d.claims()
	d.fails = unanswered
	d.answer(x)
	d.fails = nil
	d.redis.lose()
	d.answer(d.says())
	d.redis.gone = false
	_, c := d.claims()
	require.Greater(t, c.Number, first.Number)
}

func TestAHandlersTimeBeginsWhenItHasTheMessage(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 1, MaxExtension: time.Second})
	d.publish(1)
	d.rest()
	in := d.offer(1)[0]
	d.pass(modelLease / 2)
	d.Handed(d.now, in)
	handed := d.now
	for len(d.overruns) == 0 {
		d.pass(d.talk())
	}
	require.Equal(t, modelLease+time.Second, d.now.Sub(handed))
}

func TestNoBodyIsKept(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 2})
	d.publish(2)
	var bodies []weak.Pointer[[1000]byte]
	d.fails = func(_ *Exchange, a *Answer) {
		for i := range a.Claims[0].Messages {
			body := new([1000]byte)
			bodies = append(bodies, weak.Make(body))
			a.Claims[0].Messages[i].Body = body[:]
		}
	}
	d.answer(d.says())
	for _, in := range d.hand(2) {
		d.ack(in)
		in.Body = nil // as the shell does when it has the message
	}
	runtime.GC()
	for _, body := range bodies {
		require.Nil(t, body.Value())
	}
	runtime.KeepAlive(d.Machine)
}

func TestTheBufferUsesItsMemoryAgainAndLetsALargeOneGo(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 200})
	rounds := func(n int) int {
		for range 10 {
			d.publish(n)
			d.isWoken()
			d.ack(d.hand(n)...)
		}
		return cap(d.held.buffer.array)
	}
	once := rounds(200)
	require.Equal(t, once, rounds(200))
	d.isWoken()
	require.Zero(t, cap(d.held.buffer.array), "nothing is ready")
	require.NotZero(t, rounds(10))
	d.isWoken()
	require.NotZero(t, cap(d.held.buffer.array), "so little is kept")
}

// overrunAfter plans until messages are overruns.
func (d *driver) overrunAfter() []*InHand {
	d.Helper()
	for len(d.overruns) == 0 {
		x, wake := d.plan()
		switch {
		case x != nil:
			d.answer(x)
		case len(d.overruns) == 0:
			d.pass(wake.Sub(d.now))
		}
	}
	return d.overruns
}

// With Backoff 0 each nack puts its message back in its place, if they are in order.
func TestOverrunsAreInTheOrderOfDelivery(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 4, MaxExtension: time.Second})
	all := d.holds(4)
	d.ack(all[0]) // the last one moves to its place in hand
	d.rest()
	require.Equal(t, all[1:], d.overrunAfter())
}

func TestALostLeaseIsNoOverrun(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 4, MaxExtension: time.Second})
	d.holds(1)
	d.now = d.now.Add(time.Hour) // the process stood still
	d.plan()
	require.Empty(t, d.overruns)
	require.Empty(t, d.InHand())
	require.Empty(t, d.untold.Nacks)
}

// Backoff, which the shell calls for an overrun, may take long.
func TestLeasesAreWatchedWhileAnOverrunIsSettled(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 4, MaxExtension: time.Second})
	d.holds(2)
	d.overrunAfter()
	require.False(t, d.Watch().IsZero())
	require.LessOrEqual(t, d.Watch().Sub(d.now), modelLease+time.Millisecond)
}

func TestASettledMessageIsNotGivenUp(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 4})
	all := d.holds(4)
	d.Close()
	e := d.GiveUp(map[*InHand]bool{all[1]: true})
	require.Len(t, e.Ended, 3)
	require.Equal(t, []*InHand{all[1]}, d.InHand())
	require.Equal(t, []Note{{Kind: GivenUp, InHand: all[0]}, {Kind: GivenUp, InHand: all[2]}, {Kind: GivenUp, InHand: all[3]}}, e.Notes)
	require.Empty(t, d.ack(all[0]), "it is too late")
	require.Empty(t, d.untold.Acks)
	require.Empty(t, d.GiveUp(map[*InHand]bool{all[1]: true}).Notes, "once each")
	require.Equal(t, 3, d.counts.GivenUp)
}

// The hand-over may not have noticed that the subscription closes.
func TestAMessageOnOfferGoesBackWhenOthersAreGivenUp(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 4})
	d.publish(1)
	d.answer(d.says())
	in := d.offer(1)[0]
	d.Close()
	require.Empty(t, d.GiveUp(nil).Notes)
	require.Zero(t, d.counts.GivenUp)
	require.Equal(t, []Message{in.withoutBody()}, d.untold.Releases)
	require.Empty(t, d.TakenBack(in), "it is back")
}

// The consumer has taken it before, but the machine hears of that later.
func TestAMessageThatIsTakenAsItsDeliveryEndsIsLogged(t *testing.T) {
	for name, c := range map[string]struct {
		ends func(d *driver)
		kind NoteKind
	}{
		"CloseTimeout": {func(d *driver) { d.Close(); d.GiveUp(nil) }, GivenUp},
		"lost lease":   {func(d *driver) { d.pass(2 * modelLease); d.watch(d.now); d.effects() }, LostLease},
	} {
		t.Run(name, func(t *testing.T) {
			d := drive(t, Limits{MaxInFlight: 4})
			d.publish(1)
			d.answer(d.says())
			in := d.offer(1)[0]
			c.ends(d)
			require.Equal(t, []Note{{Kind: c.kind, InHand: in}}, d.Handed(d.now, in).Notes)
			require.Equal(t, c.kind == GivenUp, d.counts.GivenUp == 1)
		})
	}
}

// A suspect whose wait is over may be behind a claim that waits a millisecond for more messages.
// The next plan is then at the end of that millisecond, not at once again and again.
func TestAPutOffClaimIsNotPlannedAgainForASuspect(t *testing.T) {
	d := drive(t, Limits{MaxInFlight: 100})
	d.fails = func(_ *Exchange, a *Answer) { a.Claims[0].Blocked, a.Claims[0].More = 1, false }
	brought := func() []*InHand {
		d.publish(manyBrought)
		d.Woken()
		x, _ := d.claims()
		d.answer(x)
		return d.hand(manyBrought)
	}
	d.ack(brought()...) // the wait for the suspect has begun
	d.pass(gather)
	d.answer(d.says())
	d.pass(modelLease)
	brought() // it is over
	require.Positive(t, d.isSilent())
}

// Redis ends them together. A message could otherwise be handed out before one that comes again.
func TestWithSingleActiveAllLeasesEndWithTheFirst(t *testing.T) {
	for name, single := range map[string]bool{"with SingleActive": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			d := drive(t, Limits{MaxInFlight: 2, SingleActive: single})
			first := d.holds(1)[0]
			d.pass(modelLease / 4)
			second := d.holds(1)[0]
			require.True(t, first.deadline.Before(second.deadline))
			d.now = first.deadline.Add(time.Millisecond)
			d.loseExpired(d.now)
			require.False(t, d.Has(first))
			require.Equal(t, !single, d.Has(second))
		})
	}
}

// A crash could otherwise bring a message again after the next one was handled.
func TestWithSingleActiveAMessageWaitsForTheAckBeforeIt(t *testing.T) {
	for name, single := range map[string]bool{"with SingleActive": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			d := drive(t, Limits{MaxInFlight: 1, SingleActive: single})
			first := d.holds(1)[0]
			next := Message{Leased: queue.Leased{ID: "next"}, lease: &lease{claimed: d.now, deadline: d.now.Add(modelLease)}}
			d.held.buffer.append([]Message{next})
			require.Equal(t, Talk, d.Acked(d.now, first).Wake, "the ack waits for no other")
			if !single {
				taken, _ := d.Take(d.now, &InHand{})
				require.True(t, taken)
				return
			}
			taken, _ := d.Take(d.now, &InHand{})
			require.False(t, taken)
			x, _ := d.plan()
			require.Len(t, x.Acks, 1)
			a := Answer{Sent: d.now, Came: d.now, Failed: FailedAcks}
			for i := range x.Claims {
				a.Claims[i].Outcome = Refused
			}
			d.Answered(d.now, x, &a)
			taken, _ = d.Take(d.now, &InHand{})
			require.False(t, taken, "Redis has not confirmed it")
			x, _ = d.plan()
			d.answer(x)
			taken, _ = d.Take(d.now, &InHand{})
			require.True(t, taken)
		})
	}
}

// Acks of the last handlers are answered when the subscription has left. So it has a last claim,
// of nothing, that tells them. Nobody registers a group for that if it is gone by then.
func TestAcksAfterCloseAreToldWithALastClaim(t *testing.T) {
	for name, gone := range map[string]bool{"the group is there": false, "the group is gone": true} {
		t.Run(name, func(t *testing.T) {
			d := drive(t, Limits{MaxInFlight: 4})
			held := d.holds(2)
			d.done(d.Close())
			d.done(d.TakerGone())
			x, c := d.claims()
			require.Zero(t, c.Limit)
			require.False(t, x.left)
			d.answer(x)
			d.ack(held...)
			d.answer(d.says())
			require.Equal(t, 2, d.counts.Acked)
			x, c = d.claims()
			require.Equal(t, 2, c.Counts.Acked)
			require.Zero(t, c.Limit)
			require.True(t, x.left)
			d.redis.gone = gone
			d.answer(x)
			_, wake := d.plan()
			require.Zero(t, wake, "it is finished")
		})
	}
}

// Redis may have a lease for longer than the process knows. What comes after its message is not
// claimed meanwhile.
func TestInStrictOrderALostMessageComesBackBeforeTheNext(t *testing.T) {
	for name, single := range map[string]bool{"in strict order": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			d := drive(t, Limits{MaxInFlight: 1, SingleActive: single})
			lost := d.holds(1)[0]
			d.publish(1)
			d.pass(modelLease / 2)
			slow := d.says()
			require.Len(t, slow.Extend, 1)
			d.pass(modelLease/2 + time.Millisecond)
			d.done(d.Tick(d.now))
			require.False(t, d.Has(lost))
			d.redis.messages[lost.ID].deadline = d.now.Add(modelLease) // it was extended as late as that
			d.answer(slow)
			d.Woken()
			claims := func() (limit int) {
				for x, _ := d.plan(); x != nil; x, _ = d.plan() {
					for _, c := range x.Claims {
						limit += c.Limit
					}
					d.answer(x)
				}
				return limit
			}
			if !single {
				require.Positive(t, claims())
				return
			}
			require.Zero(t, claims())
			d.Outlived(lost)
			require.Equal(t, 1, claims())
			again := d.hand(1)[0]
			require.Equal(t, lost.ID, again.ID)

			d.pass(modelLease + time.Millisecond)
			require.Zero(t, claims())
			require.False(t, d.Has(again))
			_, c, waited := d.waitForClaim()
			require.Equal(t, 1, c.Limit, "its handler runs on, and Redis has the lease no more")
			require.Equal(t, modelLease, waited)
		})
	}
}
