package faulttest

// asked is a claim with its repeats, which have the same number.
type asked struct {
	Event         // the first Ask
	by     []call // that are under way
	runs   int    // how often it may have run
	ended  int64  // when its last call had an answer, or none was to come any more
	answer bool   // it had one in the end, which tells what it holds
}

// lostAsk is a claim that may have leased, between two times, what nobody has heard of.
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

// grace is how long a call may be on its way that its caller has given up, without an outage.
const grace = int64(patience)

// findLostAsks finds the claims that may have leased what nobody has heard of: whose answer did not come, or was not
// written down before its worker died; or came when what the first run had leased may have been another's. A claim
// that is answered after a repeat tells what it still holds, so that nothing of it is unheard of while its leases last.
func (c *checker) findLostAsks(history []Event) {
	gone := map[string]int64{} // when a worker was not at work any more
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
				if c.asking[by] != nil { // it ends with its worker
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

// underway is until when a call may reach the server that its caller has given up: outages hold it up.
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

// unseen is how many leases of a message in a span of time nobody may have heard of.
func (c *checker) unseen(k *course, from, to int64) (n int) {
	for _, ask := range c.lostAsks[k.group] {
		if ask.topic == k.topic && ask.from < to && ask.to > from {
			n++
		}
	}
	return n
}
