package faulttest

// asked is a claim with its repeats, which have the same number.
type asked struct {
	Event         // the first Ask
	by     []call // calls under way
	runs   int    // maximum number of times that it ran
	ended  int64  // when its last call was answered or given up
	answer bool   // the last call was answered, so what it leased is known
}

// lostAsk is a claim that may have leased messages, between two times, without a known answer.
type lostAsk struct {
	topic    string
	from, to int64
	lease    int64 // ms
}

func (c *checker) ask(e Event) {
	a := c.asked[e.Token]
	if a == nil {
		a = &asked{Event: e}
		c.asked[e.Token] = a
	}
	a.answer = false
	a.by = append(a.by, call{e.By, e.Call})
	c.asking[call{e.By, e.Call}] = a
}

func (c *checker) answered(e Event) {
	a := c.asking[call{e.By, e.Call}]
	if a == nil || e.Script != "claim" {
		return
	}
	delete(c.asking, call{e.By, e.Call})
	a.ended = e.At
	a.runs += max(e.Tries, 1)
	a.answer = e.Err == "" || serverSaid(e.Err) && a.runs == 1
}

func (c *checker) firstAsked(token string) int64 {
	if a := c.asked[claimOf(token)]; a != nil {
		return a.At
	}
	return 0
}

// grace is how long a call that its caller has given up may still be on its way, without an outage.
const grace = int64(patience)

// findLostAsks finds the claims that may have leased messages without a known answer. The answer
// did not come, or its worker was killed before it wrote it down. Or it came after the leases of
// the first run may have ended. While these last, the answer to a repeat has all leases of the
// claim.
func (c *checker) findLostAsks(history []Event) {
	gone := map[string]int64{} // when a worker ended
	for _, e := range history {
		switch e.Kind {
		case Down, Killed:
			gone[e.By] = e.At
		case Up:
			delete(gone, e.By)
		}
	}
	for _, a := range c.asked {
		if a.answer && (a.runs == 1 || !c.rules.ClockSteps && a.ended-a.At < a.Lease*1_000_000) {
			continue
		}
		to := a.ended
		if !a.answer {
			for _, by := range a.by {
				if c.asking[by] != nil { // the call ended with its worker
					to = forever
					if at, ok := gone[by.by]; ok {
						to = at
					}
				}
			}
			to = c.underway(a.At, to)
		}
		c.lostAsks[a.Group] = append(c.lostAsks[a.Group], lostAsk{a.Topic, a.At, to, a.Lease})
	}
}

// underway returns until when a call that its caller has given up may reach the server. Outages
// delay it.
func (c *checker) underway(from, to int64) int64 {
	if to == forever {
		return to
	}
	to += grace
	for _, out := range c.unreachable {
		if out.from <= to && out.to >= from {
			to = max(to, out.to+grace)
		}
	}
	return to
}

// unseen returns how many leases of a message in a span of time may be unknown.
func (c *checker) unseen(k *course, from, to int64) (n int) {
	for _, ask := range c.lostAsks[k.group] {
		if ask.topic == k.topic && ask.from < to && ask.to > from {
			n++
		}
	}
	return n
}
