package faulttest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Check finds what is wrong with the history of a world that was drained, and what it amounts to. It knows
// nothing of how the project works but what it promises; docs/reliability.md lists the properties. OneState and
// Clean are about Redis and not about the history: World.Verify checks them.
func Check(history []Event, rules Rules) ([]Violation, Figures) {
	c := &checker{
		rules:    rules,
		messages: map[string]*published{},
		courses:  map[place]*course{},
		firsts:   map[place]*lease{},
		asked:    map[string]int64{},
		lostAsks: map[string][]int64{},
	}
	history = slices.Clone(history)
	slices.SortStableFunc(history, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	for _, e := range history {
		c.take(e)
	}
	c.findLostAsks(history)
	for _, m := range c.messages {
		c.checkMessage(m)
	}
	for _, k := range c.courses {
		c.checkCourse(k)
	}
	slices.SortFunc(c.found, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.Property, b.Property), cmp.Compare(a.Text, b.Text))
	})
	return c.found, c.figures
}

type checker struct {
	rules    Rules
	messages map[string]*published // by UUID
	courses  map[place]*course
	firsts   map[place]*lease   // of messages, in whatever group
	asked    map[string]int64   // when a claim was sent first, by what the tokens of its leases begin with
	lostAsks map[string][]int64 // by group: when claims were sent whose answer nobody has
	found    []Violation
	figures  Figures
}

// published is what a publisher says of a message.
type published struct {
	Event           // Publish
	outcome   Kind  // Published, Failed, Unknown, or "" if the publisher was killed
	answered  int64 // when it was known
	cancel    int64 // when its cancellation began
	cancelled int64 // when it was confirmed
	ids       []string
}

// place is a message in a group.
type place struct{ topic, group, id string }

// course is all that happened to a message in a group.
type course struct {
	place
	uuid    string
	leases  []*lease // in the order of the server's clock
	starts  []Event
	ends    []Event
	acked   int64  // when an ack was confirmed; 0: never
	ackSent bool   // some ack was sent at least
	dead    *Event // the death that was found at the end
	deaths  int
}

// lease is one claim of a message.
type lease struct {
	Event                      // Claimed
	extended int64             // the server's time before its last extension was sent
	until    int64             // µs by the server's clock: not before this it ends by itself
	settle   *Event            // the first settlement that was sent under it
	sure     map[string]*Event // settlements that Redis has confirmed for sure, by script
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
	case Ask:
		if _, again := c.asked[e.Token]; !again {
			c.asked[e.Token] = e.At
		}
	case Claimed:
		c.course(e).claimed(e, c.asked[claimOf(e.Token)])
	case Start:
		c.start(e)
	case End:
		k := c.course(e)
		k.ends = append(k.ends, e)
	case Settle, Settled, Extend, Extended:
		c.course(e).told(e)
	case Dead:
		k := c.course(e)
		k.uuid = e.UUID
		k.dead = &e
		k.deaths++
		c.figures.Dead++
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

// shown is the latest that the server's clock has shown at an event, as far as is known, in µs.
func (c *checker) shown(e Event) int64 {
	if c.rules.ClockSteps {
		return max(e.Redis, e.At/1000)
	}
	return e.Redis
}

// notBefore checks the time of a first delivery against what the publisher knows: the server's time just before
// it published, and the delay.
func (c *checker) notBefore(m *published, at int64, e Event) {
	if m.Redis == 0 || c.rules.ClockSteps { // the clock may have been set between the look at it and the publish
		return
	}
	if earliest := over(m.Redis, m.Delay); at < earliest {
		c.report(NotEarly, "%s came %v before its delay of %d ms was over: %s", m.UUID, micros(earliest-at), m.Delay, e)
	}
}

// over is when a delay is over that began at a time or later, in µs. The server looks at whole milliseconds, and
// rounds what has a delay up.
func over(from, delay int64) int64 {
	if delay <= 0 {
		return from - from%1000
	}
	return (from+999)/1000*1000 + delay*1000
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// copyOf notes which messages in Redis are of one that was published.
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
	if within := cmp.Or(c.rules.CloseWithin, 7*time.Second); time.Duration(e.Took) > within {
		c.report(Closing, "%s took %v to close, more than %v", e.By, time.Duration(e.Took), within)
	}
}

// findLostAsks finds the claims whose answer did not come, or was not written down before its worker died.
func (c *checker) findLostAsks(history []Event) {
	type call struct {
		by     string
		number int
	}
	asked := map[call]Event{}
	for _, e := range history {
		switch {
		case e.Kind == Ask:
			asked[call{e.By, e.Call}] = e
		case e.Kind == Answer && e.Script == "claim" && (e.Err == "" || serverSaid(e.Err)):
			delete(asked, call{e.By, e.Call})
		}
	}
	for _, e := range asked {
		c.lostAsks[e.Group] = append(c.lostAsks[e.Group], e.At)
	}
}

func serverSaid(err string) bool { return len(err) > 8 && err[:8] == "server: " }

// claimOf is what the tokens of all leases of a claim begin with.
func claimOf(token string) string { return token[:max(0, strings.LastIndexByte(token, ':'))] }

// claimed takes in a lease. A claim whose reply was lost is sent again, and the answer tells the time of its last
// run, while the lease began with the first: at the earliest when the claim was sent first.
func (k *course) claimed(e Event, asked int64) {
	if k.lease(e.Token) != nil {
		return
	}
	e.Sent = asked
	began := e.Redis - (e.At-asked)/1000
	began -= began % 1000 // the server looks at whole milliseconds
	k.leases = append(k.leases, &lease{Event: e, until: began + e.Lease*1000, sure: map[string]*Event{}})
}

func (k *course) lease(token string) *lease {
	for _, l := range k.leases {
		if l.Token == token {
			return l
		}
	}
	return nil
}

// told takes in what a worker says to Redis about a lease, and what Redis answers.
func (k *course) told(e Event) {
	if e.Script == "ack" {
		k.ackSent = true
	}
	l := k.lease(e.Token)
	if l == nil {
		// The journal has the claim after what was done with it only if the worker's journal lost it.
		return
	}
	switch e.Kind {
	case Settle:
		if l.settle == nil {
			l.settle = &e
		}
	case Settled:
		if e.Count != e.Of {
			return // some were stale, nobody knows which
		}
		l.sure[e.Script] = &e
		if e.Script == "ack" && k.acked == 0 {
			k.acked = e.At
		}
	case Extend:
		l.extended = e.Redis
		if e.Redis != 0 { // a clock that was set back makes the lease shorter
			l.until = min(l.until, e.Redis-e.Redis%1000+e.Lease*1000)
		}
	case Extended:
		if l.extended != 0 {
			l.until = l.extended - l.extended%1000 + e.Lease*1000
		}
	}
}
