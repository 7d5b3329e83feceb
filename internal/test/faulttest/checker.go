package faulttest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Check returns the violations in the history of a drained world, and its figures. It uses only the
// project's promises, not its implementation. The package comment lists the properties.
// World.Verify checks OneState and Clean, which are about Redis and not about the history.
func Check(history []Event, rules Rules) ([]Violation, Figures) {
	c := &checker{
		rules:    rules,
		messages: map[string]*published{},
		courses:  map[place]*course{},
		firsts:   map[place]*lease{},
		asked:    map[string]*asked{},
		lostAsks: map[string][]lostAsk{},
		gone:     map[place]Event{},
		asking:   map[call]*asked{},
		partly:   map[call]*partly{},
	}
	history = slices.Clone(history)
	slices.SortStableFunc(history, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	for _, e := range history {
		c.take(e)
	}
	c.name()
	c.findOutages(history)
	c.findLostAsks(history)
	for _, k := range c.courses {
		c.sort(k)
	}
	turns := c.allTurns()
	for _, t := range turns {
		t.endTogether()
	}
	for _, m := range c.messages {
		c.checkMessage(m)
	}
	c.checkKeys()
	for _, t := range turns {
		c.checkTurns(t)
	}
	c.checkPartly()
	for _, k := range c.courses {
		c.checkCourse(k)
	}
	slices.SortFunc(c.found, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.Property, b.Property), cmp.Compare(a.Text, b.Text))
	})
	return c.found, c.figures
}

type checker struct {
	rules       Rules
	messages    map[string]*published // by UUID
	courses     map[place]*course
	firsts      map[place]*lease     // first lease of each message, in any group
	asked       map[string]*asked    // claims, by the start of their leases' tokens
	lostAsks    map[string][]lostAsk // by group: claims that may have leased messages without a known answer
	asking      map[call]*asked      // calls without an answer so far
	frozen      map[string]spans     // by worker: when it was frozen
	unreachable spans                // when the server or the network failed
	gone        map[place]Event      // the last time that a message was seen to be gone
	partly      map[call]*partly     // acks of which Redis accepted only some messages
	steps       []int64              // when the server's clock was set
	outages     map[string]spans     // by group: when the server was unreachable or no consumer was at work
	found       []Violation
	figures     Figures
}

// published is a message, as its publisher recorded it.
type published struct {
	Event           // Publish
	outcome   Kind  // Published, Failed, Unknown, or "" if the publisher was killed
	answered  int64 // when the outcome was known
	cancel    int64 // when its cancellation began
	cancelled int64 // when it was confirmed
	notThere  bool  // the cancellation did not find it
	ids       []string
}

// place is a message in a group.
type place struct{ topic, group, id string }

// course is the history of a message in a group.
type course struct {
	place
	uuid   string
	leases []*lease // in the order of the server's clock
	starts []Event
	ends   []Event
	dead   *Event // its dead letter at the end
	deaths int
}

// lease is one claim of a message.
type lease struct {
	Event                         // Claimed
	began       int64             // earliest possible start, in µs by the server's clock
	extended    int64             // the server's time before its last extension was sent
	until       int64             // earliest possible expiry, in µs by the server's clock
	latest      int64             // latest possible expiry, likewise, if calls arrived in time
	last        int64             // time of the last event about it, as Event.At
	settle      *Event            // the first settlement sent under it
	told        *Event            // the last event about a settlement
	handled     *handling         // the handler that began under it
	settlements map[string][]*ack // settlements sent under it, by script
	sure        map[string]*Event // settlements that Redis certainly accepted, by script
}

func (c *checker) report(p Property, format string, args ...any) {
	c.found = append(c.found, Violation{p, fmt.Sprintf(format, args...)})
}

func (c *checker) course(e Event) *course {
	at := place{e.Topic, e.Group, e.ID}
	if c.courses[at] == nil {
		c.courses[at] = &course{place: at}
	}
	return c.courses[at]
}

func (c *checker) take(e Event) {
	switch e.Kind {
	case Publish:
		if c.messages[e.UUID] != nil {
			c.report(OneCopy, "the workload is wrong: %s was published twice by the application", e.UUID)
		}
		c.messages[e.UUID] = &published{Event: e}
	case Published, Failed, Unknown:
		c.messages[e.UUID].outcome, c.messages[e.UUID].answered = e.Kind, e.At
		c.countPublished(e.Kind)
	case Cancel:
		c.messages[e.UUID].cancel = e.At
	case Cancelled:
		c.messages[e.UUID].cancelled = e.At
		c.figures.Cancelled++
	case NotThere:
		c.messages[e.UUID].notThere = true
	case Ask:
		c.ask(e)
	case Answer:
		c.answered(e)
	case Claimed:
		c.course(e).claimed(e, c.firstAsked(e.Token))
	case Start:
		c.start(e)
	case End:
		k := c.course(e)
		k.ends = append(k.ends, e)
		k.stops(e)
	case Over:
		c.course(e).stops(e)
	case Settle, Settled, Refused, Unsure, Extend, Extended:
		c.course(e).told(e)
	case Stepped:
		c.steps = append(c.steps, e.At)
	case Gone:
		c.gone[place{e.Topic, e.Group, e.ID}] = e
	case Dead:
		k := c.course(e)
		k.uuid = e.UUID
		k.dead = &e
		k.deaths++
		c.figures.Dead++
		if m := c.messages[e.UUID]; m != nil && e.Sum != "" && m.Sum != e.Sum {
			c.report(Contents, "%s was published as %s and is dead as %s", e.UUID, m.Sum, e.Sum)
		}
		c.copyOf(e)
	case Closed:
		c.closed(e)
	}
}

func (c *checker) countPublished(outcome Kind) {
	switch outcome {
	case Published:
		c.figures.Published++
	case Failed:
		c.figures.Refused++
	case Unknown:
		c.figures.Unknown++
	}
}

func (c *checker) start(e Event) {
	k := c.course(e)
	k.uuid = e.UUID
	k.starts = append(k.starts, e)
	c.starts(k, e)
	c.figures.Deliveries++
	if len(k.starts) > 1 {
		c.figures.Redeliveries++
	}
	c.copyOf(e)
	m := c.messages[e.UUID]
	if m != nil && m.Sum != e.Sum {
		c.report(Contents, "%s was published as %s and delivered as %s", e.UUID, m.Sum, e.Sum)
	}
	if e.Redis == 0 {
		return
	}
	now := c.shown(e)
	c.figures.Handed = max(c.figures.Handed, micros(now-e.Due*1000))
	if now < e.Due*1000 {
		c.report(NotEarly, "%s was handled %v before it was due: %s", e.UUID, micros(e.Due*1000-now), e)
	}
	if m != nil && len(k.starts) == 1 {
		c.notBefore(m, now, e)
	}
}

// shown returns the latest possible time of the server's clock at an event, in µs.
func (c *checker) shown(e Event) int64 {
	if c.rules.ClockSteps {
		return max(e.Redis, e.At/1000)
	}
	return e.Redis
}

// notBefore checks the time of a first delivery against the server's time just before the publish,
// plus the delay, and against the instant of a message that is due at one.
func (c *checker) notBefore(m *published, at int64, e Event) {
	if at < m.Due*1000 {
		c.report(NotEarly, "%s came %v before the instant it was published for: %s", m.UUID, micros(m.Due*1000-at), e)
	}
	if m.Redis == 0 || c.rules.ClockSteps { // the clock may have been set between reading it and the publish
		return
	}
	if earliest := over(m.Redis, m.Delay); at < earliest {
		c.report(NotEarly, "%s came %v before its delay of %d ms was over: %s", m.UUID, micros(earliest-at), m.Delay, e)
	}
}

// over returns the end of a delay that began at from or later, in µs. The server uses whole
// milliseconds, and rounds delays up.
func over(from, delay int64) int64 {
	if delay <= 0 {
		return from - from%1000
	}
	return (from+999)/1000*1000 + delay*1000
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// copyOf records which messages in Redis are copies of a published one.
func (c *checker) copyOf(e Event) {
	m := c.messages[e.UUID]
	if m == nil {
		c.report(Contents, "%s was never published: %s", e.UUID, e)
		return
	}
	if !slices.Contains(m.ids, e.ID) {
		m.ids = append(m.ids, e.ID)
	}
}

func (c *checker) closed(e Event) {
	if e.Err != "" {
		c.report(Closing, "%s: %s", e.By, e.Err)
	}
	if e.Outcome != ClientOpen {
		c.report(Closing, "%s: the caller's client is %s", e.By, cmp.Or(e.Outcome, "not known to be open"))
	}
	if within := cmp.Or(c.rules.CloseWithin, 7*time.Second); time.Duration(e.Took) > within {
		c.report(Closing, "%s took %v to close, more than %v", e.By, time.Duration(e.Took), within)
	}
}

// call is a call of a worker.
type call struct {
	by     string
	number int
}

func serverSaid(err string) bool { return len(err) > 8 && err[:8] == "server: " }

// claimOf returns the start of a token: the subscription and the number of the claim.
func claimOf(token string) string {
	part := strings.SplitN(token, ":", 3)
	return strings.Join(part[:min(2, len(part)-1)], ":")
}

// claimed records a lease. A claim whose reply was lost is sent again. The answer then has the time
// of the last run, but the lease began with the first one. That is at the earliest when the claim
// was first sent.
func (k *course) claimed(e Event, asked int64) {
	if k.lease(e.Token) != nil {
		return
	}
	e.Sent = cmp.Or(asked, e.At)
	began := e.Redis - (e.At-e.Sent)/1000
	k.leases = append(k.leases, &lease{
		Event: e, began: began, last: e.At, sure: map[string]*Event{}, settlements: map[string][]*ack{},
		until:  began - began%1000 + e.Lease*1000, // the server uses whole milliseconds
		latest: e.Redis + (e.Lease+1)*1000,
	})
}

func (k *course) lease(token string) *lease {
	for _, l := range k.leases {
		if l.Token == token {
			return l
		}
	}
	return nil
}

// server returns the server's time in µs at a time after the claim, if its clock was not set
// meanwhile. The result may be late by the time that the claim took.
func (l *lease) server(at int64) int64 { return l.Redis + (at-l.Sent)/1000 }

// told records a worker's call about a lease, or Redis's answer.
func (k *course) told(e Event) {
	l := k.lease(e.Token)
	if l == nil {
		// The claim is missing only if the worker's journal lost it.
		return
	}
	l.last = e.At
	if e.Kind == Extend || e.Kind == Extended || e.Script == "extend" {
		l.extend(e)
		return
	}
	l.told = &e
	l.take(e)
	switch {
	case e.Kind == Settle && l.settle == nil:
		l.settle = &e
		if l.handled != nil && !l.handled.ended {
			l.handled.settled = &e
		}
	case e.Kind == Settled && e.Count == e.Of: // otherwise some were stale, and it is unknown which
		l.sure[e.Script] = &e
	}
}

// extend records an event about an extension.
func (l *lease) extend(e Event) {
	if e.Kind != Refused {
		l.latest = max(l.latest, l.server(e.At)+(e.Lease+1)*1000)
	}
	switch e.Kind {
	case Extend:
		l.extended = e.Redis
		if e.Redis != 0 { // setting the clock back makes the lease shorter
			l.until = min(l.until, e.Redis-e.Redis%1000+e.Lease*1000)
		}
	case Extended:
		if l.extended != 0 {
			l.until = l.extended - l.extended%1000 + e.Lease*1000
		}
	}
}
