package consume

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

const (
	modelLease   = 3 * time.Second
	modelPoll    = 5 * time.Second
	retryAfter   = 700 * time.Millisecond
	modelOverrun = 4 * time.Second // MaxExtension
)

// TestMachineKeepsItsRulesInAnyHistory drives a machine through random histories against a fake of
// Redis, and checks after each event what has to hold at any time; at the end, that everything
// comes to its end.
func TestMachineKeepsItsRulesInAnyHistory(t *testing.T) {
	t.Parallel()
	for part := range 10 {
		t.Run(strconv.Itoa(part), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, runHistory)
		})
	}
}

func FuzzMachine(f *testing.F) { f.Fuzz(rapid.MakeFuzz(runHistory)) }

// flight is an exchange under way, seen from both sides.
type flight struct {
	*Exchange
	sent time.Time
	ran  int // calls that the server has run, in the order of the pipeline
	a    Answer
}

// model is a machine, the fake server, and what the model knows of both.
type model struct {
	t       *rapid.T
	m       *Machine
	redis   *fakeRedis
	now     time.Time
	wake    time.Time // of the last plan that said nothing
	main    *flight
	beside  *flight
	strays  []*flight // given up, and perhaps still on their way to the server
	inHand  []*InHand // taken and not ended, as the consumer sees them
	offered *InHand
	lingers []*InHand // with the Unmarshaler for long

	// Of leases, by their names:
	held      map[string]time.Time // the machine's deadlines, at the last check
	decided   map[string]bool      // their fate is decided, and not confirmed
	finished  map[string]bool      // it was confirmed
	lost      map[string]bool      // the machine holds them no more, and decided nothing
	toldLost  map[string]bool      // Redis said so
	givenUp   map[string]bool      // CloseTimeout was over, or a handler has the message
	outliving []*InHand            // lost while the consumer had them
	strayed   map[string]bool      // the server may have extended them after the call was given up
	beyond    map[string]bool      // claims of suspects that were waited for long enough, by "subscription:number"
	waits     time.Time            // since when a suspect is waited for; zero: none is

	acked       int // messages that acks settled, by the answers
	toldAcked   int // and of these, which claims told
	asked       int
	answered    map[int]int
	losses      bool                 // the group was gone, once
	disowned    bool                 // others took the process for gone, once
	shows       map[string]time.Time // leases that it is to ask for
	closed      bool
	heard       time.Time // when it began to hurry, or the last good answer since
	takerGone   bool
	hurried     bool // it closes with CloseTimeout
	interrupted bool // the contexts have ended
	trace       []string
}

func newModel(t *rapid.T) *model {
	now := time.UnixMilli(1_700_000_000_000)
	limits := Limits{
		Main: "main", Second: "second",
		MaxInFlight:  rapid.SampledFrom([]int{1, 1, 2, 5, 40, 300}).Draw(t, "MaxInFlight"),
		Lease:        modelLease,
		MaxExtension: rapid.SampledFrom([]time.Duration{-1, modelOverrun}).Draw(t, "MaxExtension"),
		GroupExpiry:  rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "GroupExpiry"),
		SingleActive: rapid.Bool().Draw(t, "SingleActive"),
	}
	redis := newFakeRedis(time.Duration(rapid.IntRange(-10, 10).Draw(t, "offset")) * time.Second)
	redis.atOnce = rapid.SampledFrom([]int{0, 0, 1, 3, 50}).Draw(t, "at once")
	return &model{
		t: t, m: NewMachine(limits, now), now: now, redis: redis,
		held: map[string]time.Time{}, decided: map[string]bool{}, finished: map[string]bool{}, toldLost: map[string]bool{}, givenUp: map[string]bool{}, strayed: map[string]bool{}, beyond: map[string]bool{}, lost: map[string]bool{}, answered: map[int]int{},
	}
}

func runHistory(t *rapid.T) {
	h := newModel(t)
	steps := rapid.IntRange(1, 150).Draw(t, "steps")
	for range steps {
		h.event(rapid.IntRange(0, 99).Draw(t, "event"))
		h.check()
	}
	if rapid.Bool().Draw(t, "close") {
		h.close()
		for range rapid.IntRange(0, 30).Draw(t, "steps of closing") {
			h.event(rapid.IntRange(8, 99).Draw(t, "event"))
			h.check()
		}
	}
	h.settleDown()
}

func (h *model) fatalf(format string, args ...any) {
	h.t.Helper()
	for _, line := range h.trace[max(0, len(h.trace)-60):] {
		h.t.Log(line)
	}
	h.t.Fatalf(format, args...)
}

func (h *model) log(format string, args ...any) {
	h.trace = append(h.trace, h.now.Format("05.000000 ")+fmt.Sprintf(format, args...))
}

// event has one thing happen, of those that can.
func (h *model) event(n int) {
	switch {
	case n < 8:
		n := rapid.SampledFrom([]int{1, 2, 10, 100, 400}).Draw(h.t, "messages")
		if n = min(n, 2*h.m.limits.MaxInFlight, 800-len(h.redis.messages)); h.redis.gone || n <= 0 {
			return
		}
		h.log("publish %d", n)
		h.redis.publish(n)
		if rapid.IntRange(0, 2).Draw(h.t, "suspects") == 0 { // other processes have crashed with some
			for _, m := range h.redis.ready[len(h.redis.ready)-n:] {
				m.expiries = rapid.IntRange(0, 6).Draw(h.t, "expiries")
			}
		}
	case n < 24:
		h.pass(rapid.SampledFrom([]time.Duration{0, 50 * time.Microsecond, time.Millisecond, 20 * time.Millisecond,
			110 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second}).Draw(h.t, "time"))
	case n < 44:
		h.plan()
	case n < 56:
		h.runSome(h.main)
		h.answerMain(rapid.IntRange(0, 9).Draw(h.t, "outcome"))
	case n < 62:
		h.runSome(h.beside)
		h.answerBeside(rapid.IntRange(0, 9).Draw(h.t, "outcome"))
	case n < 64:
		h.runSome(h.main)
		h.runSome(h.beside)
	case n < 66:
		h.runStray()
	case n < 78:
		quick := rapid.Bool().Draw(h.t, "quick") // each is acked at once, but for some last one
		for range rapid.IntRange(1, 40).Draw(h.t, "taken") {
			h.take()
			h.hand()
			if quick {
				h.settle(9)
			}
		}
		if quick {
			h.take()
			h.hand()
			h.settle(rapid.IntRange(0, 9).Draw(h.t, "how"))
		}
	case n < 79:
		h.take()
		h.outlive()
		if rapid.Bool().Draw(h.t, "lingers") {
			h.linger()
		}
	case n < 89:
		for range rapid.IntRange(1, 40).Draw(h.t, "settled") {
			h.settle(rapid.IntRange(0, 9).Draw(h.t, "how"))
		}
	case n < 91:
		h.arrive()
		h.judge()
	case n < 93:
		h.tick()
	case n < 94 && h.closed:
		h.hurry()
		h.interrupt()
	case n < 94:
		h.ask()
	case n < 96:
		h.hear(rapid.Bool().Draw(h.t, "heard"))
	case n < 97:
		if rapid.IntRange(0, 9).Draw(h.t, "lost") == 0 {
			h.log("the server loses its data")
			h.redis.lose()
			h.losses = true
		}
	case n < 98 && h.closed:
		h.hurry()
		h.log("CloseTimeout is over")
		h.effects(h.m.GiveUp(nil))
	case n < 98:
		if rapid.IntRange(0, 3).Draw(h.t, "ends") == 0 {
			h.close()
		}
	case n < 99:
		h.disown(rapid.Bool().Draw(h.t, "heard again"))
	default:
		h.another()
	}
}

func (h *model) pass(d time.Duration) {
	h.now = h.now.Add(d)
	h.redis.step(h.now)
	h.log("%v later", d)
}

// plan is what Run does before an exchange.
func (h *model) plan() {
	if h.main != nil {
		return
	}
	x, wake, e := h.m.Plan(h.now, modelPoll, Contact{Address: "mailbox|1"})
	h.effects(e)
	if len(e.Overruns) > 0 {
		h.overrun(e.Overruns)
		h.plan()
		return
	}
	if x == nil {
		h.log("nothing until %v", wake.Sub(h.now))
		h.wake = wake
		h.checkWake()
		return
	}
	h.checkShown(x)
	h.main = h.fly(x)
}

// overrun has handlers' messages taken from them.
func (h *model) overrun(overruns []*InHand) {
	for _, in := range overruns {
		h.log("overrun %s", in.ID)
		f := queue.Failure{Leased: &in.Leased, Retry: h.retry(), Limit: 5}
		e := h.m.Overran(in, f)
		h.decide(in.Lease())
		h.effects(e)
		if len(e.Ended) != 1 {
			h.fatalf("an overrun has ended %d deliveries", len(e.Ended))
		}
		delete(h.lost, in.Lease()) // its fate is to be told
	}
}

func (h *model) fly(x *Exchange) *flight {
	h.log("exchange: %d acks, %d releases, %d nacks, %d extend, claims %v", len(x.Acks), len(x.Releases), len(x.Nacks), len(x.Extend), claimed(x))
	for _, l := range x.Extend {
		if h.lost[l.Lease()] {
			h.fatalf("the lost lease of %s is extended", l.ID)
		}
	}
	for _, c := range x.Claims {
		if c.Limit > mostClaimed {
			h.fatalf("a claim of %d", c.Limit)
		}
		if h.laneOf(c).state != LaneAsked || c.Limit == 0 {
			continue
		}
		if h.closed {
			h.fatalf("a claim of %d after Close", c.Limit)
		}
		free, prefetch := h.m.wanted()
		if n := h.m.held.buffer.len() + h.m.main.coming() + h.m.second.coming(); n > free+prefetch {
			h.fatalf("%d messages wait or come, and the consumer wants %d and %d more", n, free, prefetch)
		}
	}
	h.checkBeyond(x)
	return &flight{Exchange: x, sent: h.now}
}

// checkBeyond is that the main lane claims a suspect beside others only after a wait of a lease.
func (h *model) checkBeyond(x *Exchange) {
	for _, c := range x.Claims {
		if lane := h.laneOf(c); lane != &h.m.main || lane.state != LaneAsked || c.Limit == 0 || c.Held >= min(h.m.limits.MaxInFlight, h.m.held.len()+h.m.second.coming()) {
			continue
		}
		if h.waits.IsZero() || h.now.Sub(h.waits) < modelLease {
			h.fatalf("a suspect is claimed beside others, which has waited since %v", h.waits)
		}
		h.beyond[fmt.Sprintf("%s:%d", c.Subscription, c.Number)] = true
	}
}

// waited notes whether a suspect waits.
func (h *model) waited(c *Claimed) {
	switch {
	case c.Blocked > 0 && h.waits.IsZero():
		h.waits = h.now
	case slices.ContainsFunc(c.Messages, func(m Message) bool { return m.Expiries < 2 }):
		h.waits = time.Time{}
	}
}

// checkCompany is that suspects have few neighbours, unless they were waited for in vain.
func (h *model) checkCompany() {
	m := h.m
	m.held.each(func(held *Message) {
		part := strings.Split(held.Token, ":") // "subscription:number:begin:place"
		if h.beyond[part[0]+":"+part[1]] || !h.now.Before(held.claimed.Add(modelLease)) {
			return
		}
		if company := held.Company(m.limits.MaxInFlight); m.held.len() > company {
			h.fatalf("%s is held with %d messages, not with %d", held.ID, m.held.len(), company)
		}
	})
}

func claimed(x *Exchange) (all []string) {
	for _, c := range x.Claims {
		all = append(all, fmt.Sprintf("%s %d of %d, slots %d, beside %d", c.Subscription, c.Number, c.Limit, c.Slots, c.Held))
	}
	return all
}

// checkWake is that nobody who has something to do sleeps too long, or not at all.
func (h *model) checkWake() {
	m := h.m
	if m.finished() != h.wake.IsZero() {
		h.fatalf("finished: %v, woken at %v", m.finished(), h.wake)
	}
	if m.finished() {
		return
	}
	if !h.wake.After(h.now) {
		h.fatalf("woken %v ago", h.now.Sub(h.wake))
	}
	latest := h.now.Add(modelPoll)
	if !m.untold.empty() {
		latest = h.now.Add(gather)
	}
	m.held.each(func(held *Message) {
		if held.deadline.After(h.now) {
			latest = earlier(latest, held.deadline)
		}
	})
	if m.held.buffer.len() > 0 {
		latest = earlier(latest, m.held.buffer.first().claimed.Add(longestStay+time.Millisecond))
	}
	if h.wake.After(latest) && (!h.closed || m.held.len() > 0) {
		h.fatalf("woken in %v, and %v is late", h.wake.Sub(h.now), latest.Sub(h.now))
	}
}

// calls are what the server runs of an exchange, in order.
func (h *model) calls(f *flight) (calls []func()) {
	if len(f.Acks) > 0 {
		calls = append(calls, func() { f.a.Acked += h.redis.ackAll(f.Acks) })
	}
	if len(f.Drops) > 0 {
		calls = append(calls, func() { h.redis.ackAll(f.Drops) })
	}
	if len(f.Releases) > 0 {
		calls = append(calls, func() {
			in := f.ReleasesInOrder()
			slices.Reverse(in)
			each(in, h.redis.release)
		})
	}
	if len(f.Nacks) > 0 {
		calls = append(calls, func() {
			for i := len(f.Nacks) - 1; i >= 0; i-- {
				h.redis.nack(&f.Nacks[i], h.now)
			}
		})
	}
	if len(f.Extend) > 0 {
		calls = append(calls, func() {
			for _, l := range f.Extend {
				if !h.redis.extend(l, h.now.Add(modelLease)) {
					if f.a.Lost == nil {
						f.a.Lost = map[string]bool{}
					}
					f.a.Lost[l.Lease()] = true
				}
			}
		})
	}
	for i, c := range f.Claims {
		calls = append(calls, func() { f.a.Claims[i] = h.redis.claim(c, h.now) })
	}
	return calls
}

func each(all []*queue.Leased, f func(*queue.Leased)) {
	for _, l := range all {
		f(l)
	}
}

// runSome has the server run some of an exchange's calls.
func (h *model) runSome(f *flight) {
	if f == nil {
		return
	}
	calls := h.calls(f)
	to := f.ran + rapid.IntRange(0, 2*len(calls)).Draw(h.t, "run")
	for ; f.ran < min(to, len(calls)); f.ran++ {
		calls[f.ran]()
	}
}

// runStray has the server run a call of an exchange that was given up.
func (h *model) runStray() {
	if len(h.strays) == 0 {
		return
	}
	f := h.strays[0]
	calls := h.calls(f)
	if f.ran >= len(calls) {
		h.strays = h.strays[1:]
		return
	}
	h.log("a stray call")
	before := map[string]string{} // token of each message
	for id, m := range h.redis.messages {
		before[id] = m.token
	}
	calls[f.ran]()
	f.ran++
	for _, l := range f.Extend { // nobody knows for how long
		h.strayed[l.Lease()] = true
	}
	for _, c := range f.Claims {
		if h.laneOf(c).number == c.Number {
			return // a claim with that number brings what this one has brought
		}
	}
	for id, m := range h.redis.messages {
		if _, known := h.held[id+" "+m.token]; known { // it was given back to the same lease, in the same instant
			continue
		}
		if m.token != "" && m.token != before[id] { // it is leased to nobody
			h.lost[id+" "+m.token] = true
			m.returned = true
		}
	}
}

// leasedToNobody notes the leases of a claim that its answer has not brought, or that had no answer
// and is not repeated any more: they run out.
func (h *model) leasedToNobody(c *queue.Claim, brought []Message) {
	for _, m := range h.redis.messages {
		has := slices.ContainsFunc(brought, func(b Message) bool { return b.ID == m.id })
		if !has && strings.HasPrefix(m.token, fmt.Sprintf("%s:%d:", c.Subscription, c.Number)) {
			h.lost[m.id+" "+m.token] = true
			m.returned = true
		}
	}
}

func (h *model) laneOf(c *queue.Claim) *Lane {
	if c.Subscription == h.m.second.name {
		return &h.m.second
	}
	return &h.m.main
}

func (h *model) answerMain(outcome int) {
	if f := h.main; f != nil && h.answer(f, outcome) {
		h.main = nil
	}
}

func (h *model) answerBeside(outcome int) {
	f := h.beside
	if f == nil || !h.answer(f, outcome) {
		return
	}
	h.beside = nil
	if x := h.m.PlanBeside(h.now); x != nil {
		h.beside = h.fly(x)
	}
}

// answer ends an exchange: 0 is no answer, 1 that the rest was refused, 2 that nothing yet, else
// all is run and answered.
func (h *model) answer(f *flight, outcome int) bool {
	calls := h.calls(f)
	switch outcome {
	case 0, 1:
	case 2:
		return false
	default:
		for ; f.ran < len(calls); f.ran++ {
			calls[f.ran]()
		}
	}
	a := f.a
	a.Sent, a.Came = f.sent, h.now
	at := 0
	part := func(n int, failed Failed) {
		if n > 0 {
			if at >= f.ran || outcome == 0 {
				a.Failed |= failed
			}
			at++
		}
	}
	part(len(f.Acks), FailedAcks)
	if a.Failed&FailedAcks != 0 {
		a.Acked = 0
	}
	h.acked += a.Acked
	part(len(f.Drops), FailedAcks)
	part(len(f.Releases), FailedReleases)
	part(len(f.Nacks), FailedNacks)
	part(len(f.Extend), FailedExtend)
	for i, c := range f.Claims {
		if at >= f.ran || outcome == 0 {
			a.Claims[i] = Claimed{Outcome: NoAnswer}
			if outcome == 1 {
				a.Claims[i].Outcome = Refused
			}
			a.Failed |= FailedOther
		} else if a.Claims[i].Outcome == GroupGone && c.Subscription == "main" {
			h.redis.gone = false // it is registered again
		}
		at++
	}
	if outcome == 0 && f.ran < len(calls) {
		stray := *f
		h.strays = append(h.strays, &stray)
	}
	h.log("answer: failed %b, lost %d, %v", a.Failed, len(a.Lost), broughtBy(f, &a))
	h.confirm(f, a.Failed)
	maps.Copy(h.toldLost, a.Lost)
	for i := range f.Claims {
		if a.Claims[i].Outcome == Ran {
			h.waited(&a.Claims[i])
		}
	}
	for i, c := range f.Claims {
		if a.Claims[i].Outcome == Ran || a.Claims[i].Outcome == GroupGone && h.m.phase == Left {
			h.toldAcked += c.Counts.Acked
		}
	}
	if a.Failed == 0 && !f.Exchange.beside {
		h.heard = h.now
	}
	h.effects(h.m.Answered(h.now, f.Exchange, &a))
	for i, c := range f.Claims {
		switch a.Claims[i].Outcome {
		case Refused:
			if h.laneOf(c).number != c.Number {
				h.leasedToNobody(c, nil)
			}
		case Ran: // a stray call with that number may have run after the one that is answered
			h.leasedToNobody(c, a.Claims[i].Messages)
		}
	}
	return true
}

func broughtBy(f *flight, a *Answer) (all []string) {
	for i := range f.Claims {
		c := &a.Claims[i]
		all = append(all, fmt.Sprintf("outcome %d, %d messages, more %v, waits %v, blocked %d", c.Outcome, len(c.Messages), c.More, c.Waits, c.Blocked))
	}
	return all
}

// confirm notes which fates Redis knows.
func (h *model) confirm(f *flight, failed Failed) {
	done := func(token string) {
		delete(h.decided, token)
		h.finished[token] = true
	}
	if failed&FailedAcks == 0 {
		for _, l := range slices.Concat(f.Acks, f.Drops) {
			done(l.Lease())
		}
	}
	if failed&FailedReleases == 0 {
		for _, m := range f.Releases {
			done(m.Lease())
		}
	}
	if failed&FailedNacks == 0 {
		for _, n := range f.Nacks {
			done(n.Lease())
		}
	}
}

// decide notes that the fate of a message is decided, which happens once.
func (h *model) decide(lease string) {
	if h.decided[lease] || h.finished[lease] {
		h.fatalf("the fate of %s is decided twice", lease)
	}
	h.decided[lease] = true
}

func (h *model) effects(e Effects) {
	for _, ended := range e.Ended {
		h.log("ended %s", ended.ID)
		if h.m.Has(ended.InHand) {
			h.fatalf("%s has ended, and is in hand", ended.ID)
		}
		h.inHand = slices.DeleteFunc(h.inHand, func(in *InHand) bool { return in == ended.InHand })
		if h.offered == ended.InHand {
			h.offered = nil
		}
		h.lingers = slices.DeleteFunc(h.lingers, func(in *InHand) bool { return in == ended.InHand })
		h.lost[ended.Lease()] = true
		if m := h.redis.messages[ended.ID]; m != nil && ended.Cause == LeaseLost {
			m.returned = true
		}
		switch {
		case ended.Cause == Closed:
			h.givenUp[ended.Lease()] = true
			continue
		case ended.Cause == LeaseLost && !ended.handed.IsZero():
			h.givenUp[ended.Lease()] = true
			h.outliving = append(h.outliving, ended.InHand)
		}
		switch {
		case !h.now.After(ended.deadline) && !h.toldLost[ended.Lease()] && !h.decided[ended.Lease()] && !h.m.limits.SingleActive:
			h.fatalf("%s has ended, and its lease holds until %v from now", ended.ID, ended.deadline.Sub(h.now))
		}
	}
	for _, done := range e.Answered {
		done()
	}
	if e.Cut {
		h.checkCut()
	}
	if e.Beside != nil {
		if h.beside != nil {
			h.fatalf("two exchanges beside the main one")
		}
		h.beside = h.fly(e.Beside)
	}
}

// checkCut is that the calls to Redis end only if it has answered all settlements, and nothing else
// for a while.
func (h *model) checkCut() {
	h.log("cut")
	if owed := h.owed(); owed > 0 || !h.hurried || h.now.Sub(h.heard) < lastTries {
		h.fatalf("cut %v after the last answer, and %d settlements are not answered", h.now.Sub(h.heard), owed)
	}
}

// owed is how many settlements are to come, or not answered.
func (h *model) owed() int {
	n := len(h.inHand) + len(h.lingers) + btoi(h.offered != nil)
	for _, s := range h.settlements() {
		n += len(s.Acks) + len(s.Drops) + len(s.Nacks)
	}
	return n
}

func (h *model) take() {
	if h.offered != nil || h.takerGone {
		return
	}
	in := &InHand{}
	taken, e := h.m.Take(h.now, in)
	h.effects(e)
	if !taken {
		return
	}
	if h.closed {
		h.fatalf("%s was taken after Close", in.ID)
	}
	if in.deadline.Before(h.now) {
		h.fatalf("%s was taken, and its lease has ended", in.ID)
	}
	for _, s := range h.settlements() {
		if h.m.strict() && len(s.Acks) > 0 {
			h.fatalf("%s was taken, and Redis may not have the ack of %s", in.ID, s.Acks[0].ID)
		}
	}
	h.offered = in
}

// linger has the message on offer be with the Unmarshaler for long.
func (h *model) linger() {
	if h.offered != nil {
		h.log("%s lingers", h.offered.ID)
		h.effects(h.m.Lingers(h.offered))
		h.lingers, h.offered = append(h.lingers, h.offered), nil
	}
}

// arrive has such a message come from the Unmarshaler, to be handed out, or to go back after Close.
func (h *model) arrive() {
	if len(h.lingers) == 0 || h.offered != nil {
		return
	}
	in := h.lingers[0]
	h.lingers = h.lingers[1:]
	if h.takerGone {
		h.m.TakenBack(in)
	} else {
		h.offered = in
	}
}

// outlive has the consumer settle messages whose leases were lost.
func (h *model) outlive() {
	for _, in := range h.outliving {
		h.log("outlived %s", in.ID)
		h.m.Outlived(in)
		delete(h.givenUp, in.Lease())
	}
	h.outliving = nil
}

func (h *model) hand() {
	in := h.offered
	if in == nil {
		return
	}
	h.offered = nil
	h.inHand = append(h.inHand, in)
	if len(h.inHand) > h.m.limits.MaxInFlight {
		h.fatalf("%d messages in hand", len(h.inHand))
	}
	h.checkOrder(in)
	h.effects(h.m.Handed(h.now, in))
}

// checkOrder is that with MaxInFlight 1 nothing comes before what is handed over, but what has come
// back from a lease that ended.
func (h *model) checkOrder(in *InHand) {
	m := h.redis.leased(&in.Leased)
	if h.m.limits.MaxInFlight != 1 || m == nil || h.losses {
		return
	}
	for _, other := range h.redis.messages {
		if lease := other.id + " " + other.token; h.m.strict() && other.place < m.place && h.givenUp[lease] && !h.strayed[lease] {
			h.fatalf("%s was handed over, and Redis may give %s out again", in.ID, other.id)
		}
		if other.place < m.place && !other.returned && !other.dead && other.retry.IsZero() && !h.isDone(other) {
			h.fatalf("%s was handed over before %s", in.ID, other.id)
		}
	}
}

// isDone reports whether the consumer has settled the message's lease for good, or for later, which
// Redis may not know yet.
func (h *model) isDone(other *fakeMessage) bool {
	for _, s := range h.settlements() {
		for _, l := range slices.Concat(s.Acks, s.Drops) {
			if l.ID == other.id && l.Token == other.token {
				return true
			}
		}
		for _, n := range s.Nacks {
			if n.ID == other.id && n.Token == other.token && (n.Dead || n.Nobody != "" || !n.Retry.MayBeNow()) {
				return true
			}
		}
	}
	return h.lost[other.id+" "+other.token]
}

func (h *model) settlements() []*Settlements {
	all := []*Settlements{&h.m.untold}
	for _, f := range []*flight{h.main, h.beside} {
		if f != nil {
			all = append(all, &f.Settlements)
		}
	}
	return all
}

func (h *model) retry() queue.Due {
	if rapid.Bool().Draw(h.t, "at once") {
		return queue.In(0)
	}
	return queue.In(retryAfter)
}

func (h *model) settle(how int) {
	if len(h.inHand) == 0 {
		return
	}
	h.now = h.now.Add(20 * time.Microsecond) // how long the consumer took
	h.redis.step(h.now)
	i := rapid.IntRange(0, len(h.inHand)-1).Draw(h.t, "which")
	in := h.inHand[i]
	var e Effects
	switch how {
	case 0, 1:
		f := queue.Failure{Leased: &in.Leased, Retry: h.retry(), Limit: 5}
		if h.interrupted { // as the shell says
			f = queue.Failure{Leased: &in.Leased, Postponed: true}
		}
		e = h.m.Nacked(h.now, in, f)
	case 2:
		e = h.m.Nacked(h.now, in, queue.Failure{Leased: &in.Leased, Dead: true})
	default:
		e = h.m.Acked(h.now, in)
	}
	h.log("settled %s: %d", in.ID, how)
	h.hasEnded(in, e.Settled == in)
	h.effects(e)
}

// hasEnded notes that the consumer has ended a delivery.
func (h *model) hasEnded(in *InHand, ended bool) {
	if !ended {
		h.fatalf("%s was settled in vain, though nothing has said that it had ended", in.ID)
	}
	h.decide(in.Lease())
	h.inHand = slices.DeleteFunc(h.inHand, func(other *InHand) bool { return in == other })
	if h.offered == in {
		h.offered = nil
	}
}

// judge has the message on offer expire at some time, or has it withdrawn.
func (h *model) judge() {
	in := h.offered
	if in == nil {
		h.effects(h.m.Withdrawn())
		return
	}
	server := h.now.Add(h.redis.offset)
	end := server.Add(time.Duration(rapid.IntRange(-2, 2).Draw(h.t, "left")) * time.Second)
	thenDead := rapid.Bool().Draw(h.t, "then dead")
	v, left, e := h.m.Judge(h.now, in, end, thenDead)
	switch v {
	case InTime:
		if left <= 0 || server.Add(left).After(end) {
			h.fatalf("%s may be on offer for %v, and is too late in %v", in.ID, left, end.Sub(server))
		}
	case TooLate:
		if server.Before(end) {
			h.fatalf("%s was given up %v too early", in.ID, end.Sub(server))
		}
		h.hasEnded(in, e.Settled == in)
	}
	h.effects(e)
	h.effects(h.m.Withdrawn())
}

func (h *model) tick() {
	if at := h.m.Watch(); !at.IsZero() {
		h.now = maxTime(h.now, at)
		h.redis.step(h.now)
		h.log("tick")
		h.effects(h.m.Tick(h.now))
		if next := h.m.Watch(); !next.After(h.now) && !next.IsZero() {
			h.fatalf("watched for %v ago", h.now.Sub(next))
		}
	}
}

// hurry has the subscription close with CloseTimeout, once.
func (h *model) hurry() {
	if !h.hurried {
		h.log("it hurries")
		h.hurried = true
		h.heard = h.now
		h.effects(h.m.Hurry(h.now))
	}
}

// interrupt has the contexts of all messages in hand end, but for one that was just settled. Their
// deliveries go on.
func (h *model) interrupt() {
	h.log("the contexts end")
	settled := map[*InHand]bool{}
	if len(h.inHand) > 0 && rapid.Bool().Draw(h.t, "one is settled") {
		settled[h.inHand[0]] = true
	}
	before := len(h.m.held.inHand)
	e := h.m.Interrupt(settled)
	if len(e.Ended) > 0 || len(h.m.held.inHand) != before || len(e.Interrupted) != before-len(settled) {
		h.fatalf("%d contexts end of %d, and %d deliveries", len(e.Interrupted), before, len(e.Ended))
	}
	for _, in := range e.Interrupted {
		if settled[in] || !h.m.Has(in) {
			h.fatalf("%s is not in hand", in.ID)
		}
	}
	h.interrupted = true
	h.effects(e)
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (h *model) ask() {
	h.asked++
	n := h.asked
	h.effects(h.m.Asked(func() { h.answered[n]++ }))
}

// hear has a wake-up come, or be lost.
func (h *model) hear(heard bool) {
	if h.redis.wakes > 0 {
		h.redis.wakes--
		if heard {
			h.log("woken")
			h.effects(h.m.Woken())
		}
	}
}

func (h *model) close() {
	h.log("close")
	h.closed = true
	h.effects(h.m.Close())
	if h.offered != nil {
		h.m.TakenBack(h.offered)
		h.offered = nil
	}
	h.takerGone = true
	h.effects(h.m.TakerGone())
}

// disown has others take the process for gone, whose leases end.
func (h *model) disown(shown bool) {
	h.log("its leases are ended")
	h.redis.disown(h.now)
	h.disowned = true
	if shown {
		h.log("it is heard again")
		h.effects(h.m.Shown())
		h.shows = maps.Clone(h.held)
	}
}

// checkShown is that a process that is heard again asks at once for all that it holds.
func (h *model) checkShown(x *Exchange) {
	for _, l := range x.Extend {
		delete(h.shows, l.Lease())
	}
	h.m.held.each(func(held *Message) {
		if _, asks := h.shows[held.Lease()]; asks {
			h.fatalf("it does not ask for %s", held.ID)
		}
	})
	clear(h.shows)
}

// another subscription takes a message that is ready, and acks it.
func (h *model) another() {
	if len(h.redis.ready) > 0 {
		m := h.redis.ready[0]
		h.log("another takes %s", m.id)
		h.redis.ready = h.redis.ready[1:]
		delete(h.redis.messages, m.id)
	}
}

// check is what has to hold at any time.
func (h *model) check() {
	m := h.m
	places := map[string]string{}
	put := func(lease, place string) {
		if other, is := places[lease]; is {
			h.fatalf("%s is both %s and %s", lease, other, place)
		}
		places[lease] = place
	}
	for i := range m.held.buffer.all() {
		put(m.held.buffer.all()[i].Lease(), "in the buffer")
	}
	for _, in := range m.held.inHand {
		put(in.Lease(), "in hand")
	}
	for i, s := range h.settlements() {
		where := []string{"untold", "being told", "being told beside"}[i]
		for _, l := range s.Acks {
			put(l.Lease(), "acked "+where)
		}
		for _, l := range s.Drops {
			put(l.Lease(), "dropped "+where)
		}
		for _, r := range s.Releases {
			put(r.Lease(), "released "+where)
		}
		for _, n := range s.Nacks {
			put(n.Lease(), "nacked "+where)
		}
	}
	for lease := range h.decided {
		if places[lease] == "" {
			h.fatalf("the fate of %s is neither told nor to be told", lease)
		}
	}
	h.checkCompany()
	h.checkAcked()
	if owes := m.Owes(); owes != (h.owed() > 0) {
		h.fatalf("it owes settlements: %v, and %d are not answered", owes, h.owed())
	}
	if n := len(m.held.inHand); n > m.limits.MaxInFlight {
		h.fatalf("%d messages in hand", n)
	}
	if n := m.held.len() + m.main.coming() + m.second.coming(); n > m.limits.MaxInFlight+mostAhead {
		h.fatalf("%d messages are held or coming", n)
	}
	// A lease that is held no more is settled, or given back, or CloseTimeout is over.
	for lease, deadline := range h.held {
		if places[lease] == "" && !h.finished[lease] && !h.givenUp[lease] {
			h.fatalf("%s is nowhere, and its lease holds until %v from now", lease, deadline.Sub(h.now))
		}
	}
	clear(h.held)
	// No deadline is later than the server's.
	m.held.each(func(held *Message) {
		h.held[held.Lease()] = held.deadline
		leased := h.redis.leased(&held.Leased)
		if leased == nil && !h.losses && !h.disowned && h.now.Before(held.deadline) || leased != nil && leased.deadline.Before(held.deadline) {
			h.fatalf("the lease of %s ends later than the server says", held.ID)
		}
	})
	for n, times := range h.answered {
		if times != 1 {
			h.fatalf("question %d was answered %d times", n, times)
		}
	}
	if want := len(h.inHand) + len(h.lingers) + btoi(h.offered != nil); len(m.held.inHand) != want {
		h.fatalf("%d messages in hand, not %d", len(m.held.inHand), want)
	}
}

// checkAcked is that each ack that Redis confirmed is told once, or has yet to be told.
func (h *model) checkAcked() {
	untold := h.m.counts.Acked
	for _, l := range []*Lane{&h.m.main, &h.m.second} {
		if l.claim != nil {
			untold += l.claim.Counts.Acked
		}
	}
	if h.acked != h.toldAcked+untold {
		h.fatalf("%d messages were acked, %d are told, and %d are to be told", h.acked, h.toldAcked, untold)
	}
	if h.m.finished() && untold > 0 {
		h.fatalf("%d acks were never told", untold)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// settleDown has all go well from now on, and everything come to its end: every message is acked,
// or the subscription has closed.
func (h *model) settleDown() {
	h.log("all goes well from here")
	h.strays = nil
	end := h.now.Add(time.Minute)
	for h.now.Before(end) {
		h.hear(true)
		h.outlive()
		h.check()
		if h.main == nil {
			h.plan()
		}
		if h.main != nil {
			h.pass(100 * time.Microsecond)
			h.answerMain(9)
			if h.beside != nil {
				h.answerBeside(9)
			}
			continue
		}
		if h.beside != nil {
			h.answerBeside(9)
			continue
		}
		h.arrive()
		if h.settleAll() || len(h.lingers) > 0 {
			continue
		}
		if h.closed && h.m.finished() {
			break
		}
		next := h.wake
		if at := h.m.Watch(); !at.IsZero() {
			next = earlier(next, at)
		}
		if at, ok := h.redis.next(); ok {
			next = earlier(next, at)
		}
		h.pass(next.Sub(h.now))
		h.effects(h.m.Tick(h.now))
	}
	if !h.closed {
		for _, m := range h.redis.messages {
			if !m.dead {
				h.fatalf("%s is left: %+v", m.id, *m)
			}
		}
		h.close()
		h.settleDown()
		return
	}
	if !h.m.finished() {
		h.fatalf("it does not end: phase %v, %d held, untold %+v, main %+v, second %+v", h.m.phase, h.m.held.len(), h.m.untold, h.m.main, h.m.second)
	}
	h.check() // which leases were lost since
	for _, m := range h.redis.messages {
		if m.token != "" && !h.lost[m.id+" "+m.token] {
			h.fatalf("%s is leased yet", m.id)
		}
	}
	h.effects(h.m.End())
	if len(h.answered) != h.asked {
		h.fatalf("%d of %d questions were answered", len(h.answered), h.asked)
	}
	h.check()
}

// settleAll has the consumer take what it can and ack all, and reports whether there was anything.
func (h *model) settleAll() (some bool) {
	for {
		h.take()
		if h.offered == nil {
			break
		}
		h.hand()
	}
	for _, in := range slices.Clone(h.inHand) {
		if !slices.Contains(h.inHand, in) {
			continue
		}
		e := h.m.Acked(h.now, in)
		h.hasEnded(in, e.Settled == in)
		h.effects(e)
		some = true
	}
	return some
}
