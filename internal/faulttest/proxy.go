package faulttest

import (
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Proxy is a network between workers and a server that can be made to fail. It knows which reply answers
// which call.
type Proxy struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu      sync.Mutex
	conns   map[*proxied]bool
	delay   time.Duration
	flows   chan struct{} // closed: data flows
	refuses bool
	chooses func(call []string) bool
	swallow int
	silent  bool // the connection stays, instead of being cut
	same    bool // only the first call that is chosen loses its replies, however often it is sent
	chosen  []string
	gone    int // replies that were swallowed
	calls   int // that have come
	held    int // calls and replies that came while nothing arrived
	missed  int // connections that could not be made, as there was no server

	failing  time.Time // since when nothing can be reached; zero: it can
	failures []Event   // Outage
}

// proxies are all that there are, by their addresses.
var proxies sync.Map

// NewProxy is a proxy to an address, which ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &Proxy{listener: listener, target: target, conns: map[*proxied]bool{}, flows: make(chan struct{})}
	close(p.flows)
	p.wg.Go(p.accept)
	proxies.Store(listener.Addr().String(), p)
	t.Cleanup(func() {
		proxies.Delete(listener.Addr().String())
		_ = listener.Close()
		p.Resume()
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Place is where workers find the server through the proxy.
func (p *Proxy) Place() Place { return At(p.listener.Addr().String()) }

// Cut cuts all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.cut()
	}
}

// Refuse cuts all connections, and refuses others until it is called with false.
func (p *Proxy) Refuse(refuses bool) {
	p.mu.Lock()
	p.refuses = refuses
	p.noteFailure("connections are refused")
	p.mu.Unlock()
	if refuses {
		p.Cut()
	}
}

// Delay holds whatever passes for so long, in each direction.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
	p.noteFailure("the network is slow")
}

// Stall has nothing arrive any more, in either direction, while all connections stay open and new ones can be
// made: they are half open.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flows = make(chan struct{})
	p.noteFailure("nothing arrives")
}

// Resume ends Stall. What was held arrives.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flows:
	default:
		close(p.flows)
	}
	p.noteFailure("")
}

// slow is from what delay on a network counts as one that fails.
const slow = 50 * time.Millisecond

// noteFailure notes when something begins to fail, and when nothing does any more. p.mu is held.
func (p *Proxy) noteFailure(why string) {
	flows := false
	select {
	case <-p.flows:
		flows = true
	default:
	}
	fails := p.refuses || p.delay >= slow || !flows
	switch now := time.Now(); {
	case fails && p.failing.IsZero():
		p.failing = now
		p.failures = append(p.failures, Event{Kind: Outage, Sent: now.UnixNano(), Err: why})
	case !fails && !p.failing.IsZero():
		p.failing = time.Time{}
		p.failures[len(p.failures)-1].At = now.UnixNano()
	}
}

// outages are when nothing could be reached by way of the proxy.
func (p *Proxy) outages() []Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.failures) // one that goes on ends where it is written down
}

// Swallow has the replies to the next n calls that are chosen get lost: the server has done what was asked, and
// the connection is cut.
func (p *Proxy) Swallow(n int, chooses func(call []string) bool) {
	p.swallows(n, false, false, chooses)
}

// SwallowOfOne is Swallow, but all the replies are to one call, the first that is chosen: a client that sends it so
// often and no more gives it up.
func (p *Proxy) SwallowOfOne(n int, chooses func(call []string) bool) {
	p.swallows(n, false, true, chooses)
}

// SwallowSilently is Swallow, but the connection stays open, and nothing comes on it any more.
func (p *Proxy) SwallowSilently(n int, chooses func(call []string) bool) {
	p.swallows(n, true, false, chooses)
}

func (p *Proxy) swallows(n int, silent, same bool, chooses func(call []string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swallow, p.silent, p.same, p.chosen, p.chooses, p.gone = n, silent, same, nil, chooses, 0
}

// Swallowed is how many replies have been lost since the last Swallow.
func (p *Proxy) Swallowed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone
}

// Calls is how many have come from clients.
func (p *Proxy) Calls() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls
}

// Held is how many calls and replies have come while nothing arrived.
func (p *Proxy) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// Missed is how many connections could not be made because there was no server.
func (p *Proxy) Missed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.missed
}

// Script chooses the calls of a script.
func Script(name string) func(call []string) bool {
	sha := queue.ScriptSHA(queue.Scripts()[name])
	return func(call []string) bool {
		return len(call) > 2 && strings.EqualFold(call[0], "evalsha") && call[1] == sha
	}
}

// swallowsReplyTo decides it, and counts.
func (p *Proxy) swallowsReplyTo(call []string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if p.swallow == 0 || !p.chooses(call) {
		return false
	}
	if p.same {
		if p.chosen == nil {
			p.chosen = call
		}
		if !slices.Equal(p.chosen, call) {
			return false
		}
	}
	p.swallow--
	return true
}

func (p *Proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuses := p.refuses
		p.mu.Unlock()
		if refuses {
			_ = in.Close()
			continue
		}
		out, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = in.Close()
			p.mu.Lock()
			p.missed++
			p.mu.Unlock()
			continue
		}
		c := &proxied{proxy: p, in: in, out: out, fates: make(chan bool, 1<<16), ended: make(chan struct{})}
		p.mu.Lock()
		p.conns[c] = true
		p.mu.Unlock()
		p.wg.Go(func() {
			c.run()
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.conns, c)
		})
	}
}

// losesSilently counts a reply that gets lost, and tells whether its connection stays open.
func (p *Proxy) losesSilently() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone++
	return p.silent
}

// pass waits for as long as the network takes; false if the connection was cut meanwhile.
func (c *proxied) pass(arrived time.Time) bool {
	c.proxy.mu.Lock()
	flows, delay := c.proxy.flows, c.proxy.delay
	select {
	case <-flows:
	default:
		c.proxy.held++
	}
	c.proxy.mu.Unlock()
	select {
	case <-flows:
	case <-c.ended:
		return false
	}
	if wait := delay - time.Since(arrived); delay > 0 && wait > 0 {
		select {
		case <-time.After(wait):
		case <-c.ended:
			return false
		}
	}
	return true
}
